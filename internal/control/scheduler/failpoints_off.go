//go:build !failpoints

package scheduler

// withFailpoints returns w unchanged in this build.
func withFailpoints(w writes) writes { return w }
