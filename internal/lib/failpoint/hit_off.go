//go:build !failpoints

package failpoint

// Hit always returns nil in this build.
func Hit(string) error { return nil }
