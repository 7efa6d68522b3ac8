package autoscale_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/autoscale"
	"berth/internal/control/cloud"
)

func TestAPassKnowsWhenTheNextMachineIsDue(t *testing.T) {
	t.Parallel()
	type add = func(*autoscale.Facts, berth.MachineID)
	emptyFor := func(d time.Duration) add {
		return func(f *autoscale.Facts, id berth.MachineID) {
			launched(f, id, "root", cloud.LaunchServing, berth.MachineReady).EmptySince = now.Add(-d)
		}
	}
	drainedFor := func(d time.Duration, by string) add {
		return func(f *autoscale.Facts, id berth.MachineID) {
			l := launched(f, id, "root", cloud.LaunchServing, berth.MachineDraining)
			l.DrainActor, l.DrainedAt = by, now.Add(-d)
		}
	}
	byScaler := func(d time.Duration) add { return drainedFor(d, db.ScalerActor) }
	inUse := func(f *autoscale.Facts, id berth.MachineID) {
		launched(f, id, "root", cloud.LaunchServing, berth.MachineReady).EmptySince = time.Time{}
	}
	ends := func(f *autoscale.Facts, id berth.MachineID) {
		l := launched(f, id, "root", cloud.LaunchServing, berth.MachineReady)
		l.EmptySince, l.StopAt = now.Add(-time.Minute), now
	}
	boots := func(f *autoscale.Facts, id berth.MachineID) { launched(f, id, "root", cloud.LaunchRunning, "") }
	for name, c := range map[string]struct {
		machines []add
		due      time.Duration // after now; 0: never
	}{
		"no machine":                  {nil, 0},
		"in use":                      {[]add{inUse}, 0},
		"booting":                     {[]add{boots}, 0},
		"ending":                      {[]add{ends}, 0},
		"empty for a minute":          {[]add{inUse, emptyFor(time.Minute)}, 4 * time.Minute},
		"the first of two":            {[]add{emptyFor(time.Minute), emptyFor(3 * time.Minute)}, 2 * time.Minute},
		"empty for longer than kept":  {[]add{emptyFor(time.Hour)}, 0},
		"drained for ten seconds":     {[]add{emptyFor(0), byScaler(10 * time.Second)}, 5 * time.Second},
		"drained for a minute":        {[]add{byScaler(time.Minute)}, 0},
		"drained by a person":         {[]add{drainedFor(time.Second, "user:ann")}, 0},
		"drained, and the next empty": {[]add{byScaler(0), emptyFor(290 * time.Second)}, 10 * time.Second},
	} {
		f := full()
		for i, add := range c.machines {
			add(f, berth.MachineID(fmt.Sprintf("v%d", i)))
		}
		var due time.Duration
		if at := autoscale.Decide(*f).Due; !at.IsZero() {
			due = at.Sub(now)
		}
		if due != c.due {
			t.Errorf("%s: due after %s, want %s", name, due, c.due)
		}
	}
}

// The passes of the timer are an hour apart: only the time at which the machine is due starts one.
func TestALoopDrainsAMachineWhenItIsDue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sells(offered("big", 8))
	wait(w.facts, string(berth.NewJobID(time.Now())), "default", 1)
	w.pass()
	w.facts.Waiting = nil // it starts on premises
	w.join(gpus)
	w.pass()
	id := w.facts.Machines[1].ID
	w.exec(`UPDATE launches SET empty_since = now() - interval '58 seconds'`)
	w.loop.Every = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.loop.Run(ctx, w.term, w.mirror) }()
	limit := time.Now().Add(5 * time.Minute)
	for w.machine(id) != berth.MachineDraining {
		if time.Now().After(limit) {
			t.Error("the machine was not drained when it was due")
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("run: %v", err)
	}
}
