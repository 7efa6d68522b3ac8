//go:build !failpoints

package control

// withFailpoints returns s unchanged in this build.
func withFailpoints(s Steps) *Steps { return &s }
