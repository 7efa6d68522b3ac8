package agent

import (
	"testing"
	"time"
)

func TestTheLeadBeforeTheTimeLimitCoversTwoSavesAndTheGrace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ limit, grace, lastSave, want time.Duration }{
		{time.Hour, 30 * time.Second, 0, 30 * time.Second},
		{time.Hour, 30 * time.Second, time.Minute, 150 * time.Second},
		{4 * time.Minute, 30 * time.Second, time.Minute, 2 * time.Minute}, // half the limit
		{10 * time.Second, 30 * time.Second, 0, 5 * time.Second},
	} {
		if got := saveLead(c.limit, c.grace, c.lastSave); got != c.want {
			t.Errorf("limit %s, grace %s, last save %s: lead is %s, want %s", c.limit, c.grace, c.lastSave, got, c.want)
		}
	}
}
