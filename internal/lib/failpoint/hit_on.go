//go:build failpoints

package failpoint

import "os"

// dir is fixed for the life of the process.
var dir = os.Getenv("BERTH_FAILPOINT_DIR")

// Hit carries out the action in the file of this name once, and does nothing without such a file.
// The error is ErrInjected or nil.
func Hit(name string) error { return hit(dir, name) }
