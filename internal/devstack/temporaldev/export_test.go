package temporaldev

import "context"

// RestoreIndexes makes again what a start has removed, in the cluster at url.
func RestoreIndexes(ctx context.Context, url string) error {
	st, err := parseStore(url)
	if err != nil {
		return err
	}
	return restoreIndexes(ctx, st)
}
