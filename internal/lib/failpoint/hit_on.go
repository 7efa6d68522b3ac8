//go:build failpoints

package failpoint

import (
	"os"
	"time"
)

// dir is fixed for the life of the process.
var dir = os.Getenv("BERTH_FAILPOINT_DIR")

// Hit carries out the action in the file of this name once, and does nothing without such a file.
// The error is ErrInjected or nil.
func Hit(name string) error { return hit(dir, name) }

// clock is fixed for the life of the process.
var clock, faster = parseClock(os.Getenv("BERTH_FAILPOINT_CLOCK"))

// Clock returns the map from real times to times of the faster clock that BERTH_FAILPOINT_CLOCK sets, and the
// factor between the two. Without the variable it returns nil and 1.
func Clock() (func(time.Time) time.Time, int) { return clock, faster }
