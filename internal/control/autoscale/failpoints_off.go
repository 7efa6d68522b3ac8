//go:build !failpoints

package autoscale

// withFailpoints returns the writes as they are.
func withFailpoints(w writes) writes { return w }
