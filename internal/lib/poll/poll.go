// Package poll waits for conditions that nothing announces.
//
// Each check of a condition loads the observed system. So the pauses between two checks grow, and each is at least
// three times as long as the check before it: a slow system is observed less often.
package poll

import (
	"context"
	"time"
)

// first is the first pause. Most conditions of tests hold within some milliseconds.
const first = 2 * time.Millisecond

// share is the least ratio of a pause to the check before it. With it, a wait spends at most a quarter of its time in
// checks.
const share = 3

// Until calls check until it returns true, with pauses of at most longest or three times the last check. It returns
// false if check has not returned true within limit.
func Until(limit, longest time.Duration, check func() bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return For(ctx, longest, func(context.Context) error {
		if !check() {
			return context.DeadlineExceeded
		}
		return nil
	}) == nil
}

// For calls check until it returns nil, with pauses as Until has. It returns the last error of check once ctx is done.
func For(ctx context.Context, longest time.Duration, check func(context.Context) error) error {
	for pause := min(first, longest); ; pause = min(pause*3/2, longest) {
		began := time.Now()
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(max(pause, share*time.Since(began))):
		case <-ctx.Done():
			return err
		}
	}
}
