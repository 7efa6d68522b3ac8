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
