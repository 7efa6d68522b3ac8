package placement_test

import (
	"slices"
	"testing"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// holds is a running job that no other job may stop. It ends after the given time.
func holds(id berth.JobID, after time.Duration) placement.Running {
	return placement.Running{Job: id, Priority: 900, TimeLimit: time.Hour + after}
}

// lacks is a cluster in which gang g of two members with a limit of an hour has the GPU of m0 nominated for ten minutes and
// lacks another one. The running job of m1 releases one after the given time, and g finds no victims.
func lacks(first placement.Running, after time.Duration) *nominated {
	s := newNominated(first, holds("p", after))
	s.UpsertJob(placement.Job{ID: "g", Tenant: "x", Class: "2", Version: 1, Priority: 500, SubmittedAt: noon, EligibleAt: noon,
		TimeLimit: time.Hour})
	s.nominate("g", 0, first.Job, until(10*time.Minute))
	return s
}

// until lets a nomination expire after the given time.
func until(after time.Duration) func(*placement.Nomination) {
	return func(m *placement.Nomination) { m.ExpiresAt = noon.Add(after) }
}

// reserve returns the plan and the time from now until the reserved start of a job; -1 without one.
func (s *nominated) reserve(id berth.JobID, change func(*placement.Planner)) (placement.Plan, time.Duration) {
	p := placement.Planner{Policy: placement.Policy{Order: placement.Priority, BandWidth: 100, Backfill: 4, Preempt: true}}
	if change != nil {
		change(&p)
	}
	plan, starts, _ := p.Reserve(s.Snapshot, noon)
	if at, ok := starts[id]; ok {
		return plan, at.Sub(noon)
	}
	return plan, -1
}

// TestAReservedStartReplacesNominations checks the table of docs/design/states.md for a job that has nominations, no room
// and no victims: the capacity nominated for the job does not delay its reserved start, and the plan withdraws exactly
// the nominations that the job cannot start with.
func TestAReservedStartReplacesNominations(t *testing.T) {
	t.Parallel()
	sick := func(s *nominated) {
		m, _ := s.Machine("m0")
		m.State = berth.MachineDraining
		s.UpsertMachine(m)
		s.waits("g", 1, 500)
	}
	repair := func(s *nominated) {
		s.kept[0].Repair = true
		s.SetNominations(s.kept)
	}
	barred := func(p *placement.Planner) { p.Barred = map[berth.JobID]bool{"g": true} }
	for name, x := range map[string]struct {
		first    placement.Running // of m0
		after    time.Duration     // the end of the job on m1
		edit     func(*nominated)
		planner  func(*placement.Planner)
		at       time.Duration
		withdraw bool
	}{
		"start before the expiry":  {after: 5 * time.Minute, at: 5 * time.Minute},
		"start at the expiry":      {after: 10 * time.Minute, at: 10 * time.Minute},
		"start after the expiry":   {after: 30 * time.Minute, at: 30 * time.Minute, withdraw: true},
		"victim still stops":       {first: stopping("s", 2*time.Minute), after: 5 * time.Minute, at: 5 * time.Minute},
		"late, victim still stops": {first: stopping("s", 2*time.Minute), after: 30 * time.Minute, at: 30 * time.Minute, withdraw: true},
		"start on another machine": {after: 5 * time.Minute, edit: sick, at: 5 * time.Minute, withdraw: true},
		"repair":                   {after: 30 * time.Minute, edit: repair, at: 30 * time.Minute},
		"preempts no others now":   {after: 30 * time.Minute, planner: barred, at: 30 * time.Minute},
		"preemption is off": {after: 30 * time.Minute, planner: func(p *placement.Planner) { p.Policy.Preempt = false },
			at: 30 * time.Minute, withdraw: true},
		"no reserved starts": {after: 30 * time.Minute, planner: func(p *placement.Planner) { p.Policy.Backfill = 0 }, at: -1},
	} {
		s := lacks(x.first, x.after)
		if x.edit != nil {
			x.edit(s)
		}
		plan, at := s.reserve("g", x.planner)
		if at != x.at {
			t.Errorf("%s: the start is reserved after %v, want %v", name, at, x.at)
		}
		var want []placement.Withdrawal
		if x.withdraw {
			want = []placement.Withdrawal{{For: "g", Machine: "m0", ExpiresAt: noon.Add(10 * time.Minute)}}
		}
		if !slices.Equal(plan.Withdraw, want) || len(plan.Release) != len(want) {
			t.Errorf("%s: withdraws %+v and releases %+v, want %+v", name, plan.Withdraw, plan.Release, want)
		}
		if len(plan.Start) != 0 {
			t.Errorf("%s: starts %v in capacity that is still nominated", name, places(plan))
		}
	}
}

// TestWithdrawnCapacityIsUsedUntilTheReservedStart checks that other jobs use the capacity of withdrawn nominations as
// far as they end before the reserved start, which stays as it was.
func TestWithdrawnCapacityIsUsedUntilTheReservedStart(t *testing.T) {
	t.Parallel()
	s := lacks(placement.Running{}, 30*time.Minute)
	if plan, _ := s.reserve("g", nil); len(plan.Withdraw) != 1 {
		t.Errorf("withdraws %+v, want one", plan.Withdraw)
	}
	s.SetNominations(nil)
	s.UpsertJob(placement.Job{ID: "long", Tenant: "x", Class: "1", Version: 1, Priority: 450, SubmittedAt: noon, EligibleAt: noon,
		TimeLimit: 40 * time.Minute})
	plan, at := s.reserve("g", nil)
	if got := places(plan); len(got) != 1 || !slices.Equal(got["w"], []berth.MachineID{"m0"}) || at != 30*time.Minute {
		t.Errorf("starts %v, and g is expected after %v, want w on m0 and 30m", got, at)
	}
}

// TestAReservedStartLeavesNominatedCapacityInTime checks that the start of a later job is reserved where a nomination that
// stays has ended: the job of the nomination has started elsewhere by then, or the nomination has expired.
func TestAReservedStartLeavesNominatedCapacityInTime(t *testing.T) {
	t.Parallel()
	for _, repair := range []bool{false, true} {
		s := newNominated(placement.Running{}, holds("p", 5*time.Minute), holds("q", 2*time.Hour))
		s.DefineClass("apart", spec.Request{GPUs: 1, GPUMilli: 1000, Members: 1, Avoid: []berth.MachineID{"m0"}, Execution: spec.AtLeastOnce})
		s.UpsertJob(placement.Job{ID: "g", Tenant: "x", Class: "apart", Version: 1, Priority: 500, SubmittedAt: noon, EligibleAt: noon,
			TimeLimit: time.Hour})
		s.nominate("g", 0, "", func(m *placement.Nomination) { m.Repair, m.ExpiresAt = repair, noon.Add(3*time.Minute) })
		want := time.Duration(0)
		if repair {
			want = 3 * time.Minute
		}
		if _, at := s.plan(); at != want {
			t.Errorf("repair %t: the start behind g is reserved after %v, want %v", repair, at, want)
		}
	}
}
