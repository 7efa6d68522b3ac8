//go:build !failpoints

package failpoint

// Hit is nothing in this build: it always returns nil.
func Hit(string) error { return nil }
