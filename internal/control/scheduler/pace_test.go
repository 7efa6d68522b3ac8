package scheduler

import (
	"testing"
	"time"

	"berth/db"
)

func TestPokesOfOneJobAreSpaced(t *testing.T) {
	t.Parallel()
	var p pace
	job, other := db.Aged{ID: "a", Attempt: 1}, db.Aged{ID: "b", Attempt: 1}
	start := time.Now()
	var at []time.Duration
	for pass := range 100 { // every 10 s
		now := start.Add(time.Duration(pass) * 10 * time.Second)
		if p.due("unclaimed", job, now) {
			at = append(at, now.Sub(start))
		}
	}
	if len(at) < 5 || len(at) > 8 || at[0] != 0 || at[1] != 20*time.Second {
		t.Errorf("poked at %v of 1000 s", at)
	}
	last := start.Add(1000 * time.Second)
	if !p.due("unclaimed", other, last) || !p.due("unsettled", job, last) {
		t.Error("another job, or another matter, waits for the first one's turn")
	}
	p.forget("unclaimed", []db.Aged{other})
	if !p.due("unclaimed", job, last) || len(p.told) != 3 {
		t.Errorf("a job that went on and came back is not poked at once: %v", p.told)
	}
	if job.Attempt = 2; !p.due("unclaimed", job, last) {
		t.Error("the next attempt waits for the turn of the last")
	}
}
