package temporaldev

import "context"

// RestoreIndexes creates the indexes again that a start has removed from the cluster at url.
func RestoreIndexes(ctx context.Context, url string) error {
	st, err := parseStore(url, "")
	if err != nil {
		return err
	}
	return restoreIndexes(ctx, st)
}

// FreeAddress returns an address of 127.0.0.1 whose port no program gets by chance for a minute.
func FreeAddress() (string, error) {
	port, err := claim("test", 0)
	return address(port), err
}
