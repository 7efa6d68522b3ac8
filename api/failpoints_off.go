//go:build !failpoints

package api

// withFailpoints returns w unchanged in this build.
func withFailpoints(w writes) writes { return w }
