package agent

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// The memory of a foreign process changes all the time. Each change must not be a report.
func TestADeviceInUseIsToldOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newGPUHealth(nil, slog.New(slog.DiscardHandler))
		for i, c := range []struct {
			why     string
			after   time.Duration
			changed bool
		}{
			{"process 7 with 4 GiB", 0, true},
			{"process 7 with 5 GiB", 2 * time.Second, false},
			{"process 7 with 5 GiB", time.Minute, true},
			{"process 7 with 5 GiB", time.Hour, false},
			{"", time.Second, true}, // free at once
			{"process 8 with 1 GiB", time.Second, true},
		} {
			time.Sleep(c.after)
			if changed := h.hold("GPU-1", c.why); changed != c.changed {
				t.Errorf("step %d, %q: changed is %v", i, c.why, changed)
			}
		}
	})
}
