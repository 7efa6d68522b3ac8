//go:build failpoints

package failpoint

import "os"

// dir is fixed for the life of the process.
var dir = os.Getenv("BERTH_FAILPOINT_DIR")

// Hit does what the file of this name says, if there is one, once. The error is
// ErrInjected's, or nil.
func Hit(name string) error { return hit(dir, name) }
