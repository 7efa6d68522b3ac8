package db_test

import (
	"testing"
	"time"
)

// TestLossesOfMachinesLikeTheJobs writes the history of a few machines, and counts the losses of those that are like the
// machine of a job.
func TestLossesOfMachinesLikeTheJobs(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(saves(1))
	a.mustClaim(id, s.place(id, "m0"))
	mustExec(t, s.pool, `DELETE FROM machine_events`)
	for _, m := range []string{"like", "pool", "size"} {
		mustExec(t, s.pool, `
			INSERT INTO machines (id, state, pool, site, gpu_milli)
			SELECT $1, 'ready', CASE WHEN $1 = 'pool' THEN 'other' ELSE pool END, site,
				CASE WHEN $1 = 'size' THEN gpu_milli + 1000 ELSE gpu_milli END
			FROM machines
			WHERE id = 'm0'`, m)
	}
	mustExec(t, s.pool, `DELETE FROM machine_events`)
	event := func(machine, state, boot string, days int) {
		mustExec(t, s.pool, `
			INSERT INTO machine_events (machine_id, state, host_boot, at)
			VALUES ($1, $2, $3, now() - $4::int * interval '1 day')`, machine, state, boot, days)
	}
	for _, e := range []struct {
		machine, state, boot string
		days                 int
	}{
		{"m0", "ready", "a", 50},
		{"m0", "lost", "a", 45}, // before the window
		{"m0", "ready", "a", 40},
		{"m0", "suspect", "a", 20}, // 10 days in service, in the window
		{"m0", "lost", "a", 20},    // a loss
		{"m0", "joining", "b", 19}, // no second loss: the machine was lost already
		{"m0", "ready", "b", 18},
		{"m0", "draining", "b", 16}, // 2 days
		{"m0", "draining", "c", 15}, // a planned reboot
		{"m0", "ready", "c", 14},
		{"m0", "joining", "d", 10}, // 4 days, and a loss: it rebooted while in service
		{"m0", "ready", "d", 10},
		{"m0", "draining", "d", 9}, // 1 day
		{"like", "ready", "a", 3},  // 3 days
		{"pool", "ready", "a", 25}, {"pool", "lost", "a", 5},
		{"size", "ready", "a", 25}, {"size", "lost", "a", 5},
	} {
		event(e.machine, e.state, e.boot, e.days)
	}
	got, err := s.db.Machines.Losses(t.Context(), id, 30*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if got.Machines != 1 || got.Lost != 2 || got.Service.Round(time.Hour) != 20*24*time.Hour {
		t.Errorf("losses are %+v, want 1 machine, 2 losses, 480h", got)
	}

	waits := s.submit(saves(1))
	if got, err := s.db.Machines.Losses(t.Context(), waits, time.Hour); err != nil || got.Machines != 0 || got.Service != 0 {
		t.Errorf("a job that waits: %+v, %v", got, err)
	}
}
