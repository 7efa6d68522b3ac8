//go:build !failpoints

package failpoint

import "time"

// Hit always returns nil in this build.
func Hit(string) error { return nil }

// Clock always returns nil and 1 in this build.
func Clock() (func(time.Time) time.Time, int) { return nil, 1 }
