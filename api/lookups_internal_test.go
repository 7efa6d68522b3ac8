package api

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A caller that has its answer must not wait for a second query, which would ask for nothing.
func TestALookUpCostsOneQuery(t *testing.T) {
	t.Parallel()
	for _, pause := range []time.Duration{0, strangePause} {
		t.Run(pause.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				queries := 0
				l := newLookups(func(_ context.Context, keys []string) ([]string, error) {
					queries++
					return keys, nil
				}, pause)
				for range 200 {
					if answer, err := l.ask(t.Context(), "key"); err != nil || answer != "key" {
						t.Fatalf("%q, %v", answer, err)
					}
				}
				if queries != 200 {
					t.Errorf("200 look-ups, one after the other, cost %d queries", queries)
				}
			})
		})
	}
}
