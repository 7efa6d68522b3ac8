package check_test

import (
	"testing"
	"time"

	"berth"
	"berth/db/history"
	"berth/failure"
	"berth/internal/check"
	"berth/wire"
)

// shapes are histories without a breach, by their subject.
var shapes = map[string]func() check.History{
	"one job succeeds": func() check.History {
		s := newStory()
		m := s.machine("m1")
		j := s.submit(1, "at_least_once")
		j.place(0, m)
		j.run()
		j.checkpoint(10)
		j.exits(0, failure.CauseExited)
		j.settle(berth.Succeeded, "", failure.BudgetNone)
		return s.history()
	},
	"machines of a cloud with their money": launched,
	"tenants with launches are deleted":    deletedTenants,
	"costs are settled a second beyond the end": func() check.History {
		h := launched()
		settleBeyond(&h, time.Second, 417)
		return h
	},
	"a machine is lost, the job resumes elsewhere, the machine comes back": lost,
	"a machine is lost and an operator confirms it": func() check.History {
		s := newStory()
		m1, m2 := s.machine("m1"), s.machine("m2")
		j := s.submit(1, "at_least_once")
		j.place(0, m1)
		j.run()
		j.loseMachine(m1)
		j.settle(berth.Retrying, berth.ReasonMachineLost, failure.BudgetInfra)
		j.release("user:ada", "operator")
		j.place(0, m2)
		j.run()
		j.exits(0, failure.CauseExited)
		j.settle(berth.Succeeded, "", failure.BudgetNone)
		return s.history()
	},
	"a machine reboots": rebooted,
	"a tenant and the one above it fill their quotas": full,
	"a quota is lowered below what runs, and a job waits until enough is free": func() check.History {
		s := newStory()
		m := s.machine("m1")
		s.limits("default", "", 2, 2)
		s.at = s.at.Add(time.Hour)
		first, second := s.submit(1, "at_least_once"), s.submit(1, "at_least_once")
		first.place(0, m)
		second.place(1, m)
		first.run()
		second.run()
		s.limits("default", "", 1, 1)
		s.at = s.at.Add(time.Hour)
		succeed(first, second)
		third := s.submit(1, "at_least_once")
		third.place(0, m)
		third.run()
		succeed(third)
		return s.history()
	},
	"a job is placed by a plan from before its quota was lowered": func() check.History {
		s := newStory()
		m := s.machine("m1")
		s.limits("default", "", 2, 2)
		s.at = s.at.Add(time.Hour)
		first, second := s.submit(1, "at_least_once"), s.submit(1, "at_least_once")
		first.place(0, m)
		first.run()
		s.limits("default", "", 1, 1)
		second.place(1, m)
		second.run()
		succeed(first, second)
		return s.history()
	},
	"a tenant that holds more than its new parent may": func() check.History {
		s := newStory()
		m := s.machine("m1")
		s.limits("default", "", 2, 2)
		s.limits("faculty", "", 1, 1)
		s.at = s.at.Add(time.Hour)
		first, second := s.submit(1, "at_least_once"), s.submit(1, "at_least_once")
		first.place(0, m)
		first.run()
		s.limits("default", "faculty", 2, 2)
		second.place(1, m)
		second.run()
		succeed(first, second)
		return s.history()
	},
	"a user's failure is retried of at_most_one work, one after the other on one GPU": func() check.History {
		s := newStory()
		m := s.machine("m1")
		j := s.submit(1, "at_most_one")
		j.place(0, m)
		j.run()
		j.exits(1, failure.CauseExited)
		j.settle(berth.Retrying, berth.ReasonExitCode, failure.BudgetUser)
		j.place(0, m)
		j.run()
		j.exits(0, failure.CauseExited)
		j.settle(berth.Succeeded, "", failure.BudgetNone)
		return s.history()
	},
	"a gang is canceled": canceled,
	"a gang is canceled before its last start": func() check.History {
		s := newStory()
		j := s.submit(2, "at_least_once")
		j.place(0, s.machine("m1"), s.machine("m2"))
		j.ready()
		j.start(j.now()[0])
		j.state(berth.Canceling, "user:ada")
		at := s.at
		j.CancelRequestedAt = &at
		last := j.now()[1]
		j.exits(143, failure.CauseOrdered)
		last.Exit = &failure.Exit{Cause: failure.CauseNotStarted, FinishedAt: last.Exit.FinishedAt}
		j.settle(berth.Canceled, berth.ReasonCanceledByUser, failure.BudgetNone)
		return s.history()
	},
	"a gang is repaired":                                  repaired,
	"a job gives way and is back":                         preempted,
	"a damaged checkpoint is left":                        fellBack,
	"a job starts from a checkpoint of another job":       continued,
	"a pipeline of two steps":                             line,
	"an array runs two elements at a time, and one fails": sweep,
	"canceled while queued": func() check.History {
		s := newStory()
		s.machine("m1")
		j := s.submit(1, "at_least_once")
		j.state(berth.Canceled, "user:ada")
		at := s.at
		j.CancelRequestedAt = &at
		return s.history()
	},
}

// line is a pipeline whose second step needs its first.
func line() check.History {
	s := newStory()
	m := s.machine("m1")
	p, e := s.array(2, 0)
	p.Kind, s.families[0].Kind = string(berth.KindPipeline), string(berth.KindPipeline)
	e[0].step, e[1].step, e[1].needs = "a", "b", []berth.JobID{e[0].ID}
	for i := range e {
		e[i].place(0, m)
		if i == 0 {
			p.state(berth.Running, "leader")
		}
		e[i].run()
		e[i].exits(0, failure.CauseExited)
		e[i].settle(berth.Succeeded, "", failure.BudgetNone)
	}
	p.state(berth.Succeeded, "workflow")
	return s.history()
}

// sweep is an array of which the third element waits for the first.
func sweep() check.History {
	s := newStory()
	m1, m2 := s.machine("m1"), s.machine("m2")
	p, e := s.array(3, 2)
	e[0].place(0, m1)
	p.state(berth.Running, "leader")
	e[1].place(1, m1)
	e[0].run()
	e[0].exits(0, failure.CauseExited)
	e[0].settle(berth.Succeeded, "", failure.BudgetNone)
	e[2].place(0, m2)
	for i, code := range map[int]int{1: 0, 2: 1} {
		e[i].run()
		e[i].exits(code, failure.CauseExited)
	}
	e[1].settle(berth.Succeeded, "", failure.BudgetNone)
	e[2].settle(berth.Failed, berth.ReasonExitCode, failure.BudgetUser)
	p.state(berth.Failed, "workflow")
	return s.history()
}

// full: two jobs hold all that their tenant and the one above it may.
func full() check.History {
	s := newStory()
	m := s.machine("m1")
	s.limits("faculty", "", 2, 2)
	s.limits("default", "faculty", 2, 2)
	s.at = s.at.Add(time.Hour)
	first, second := s.submit(1, "at_least_once"), s.submit(1, "at_least_once")
	first.place(0, m)
	second.place(1, m)
	first.run()
	second.run()
	succeed(first, second)
	return s.history()
}

// succeed ends jobs that run on one machine each.
func succeed(jobs ...*teller) {
	for _, j := range jobs {
		j.exits(0, failure.CauseExited)
		j.settle(berth.Succeeded, "", failure.BudgetNone)
	}
}

func lost() check.History {
	s := newStory()
	m1, m2 := s.machine("m1"), s.machine("m2")
	j := s.submit(1, "at_least_once")
	j.place(0, m1)
	j.run()
	j.checkpoint(10)
	j.loseMachine(m1)
	j.settle(berth.Retrying, berth.ReasonMachineLost, failure.BudgetInfra)
	j.place(0, m2)
	j.resume(10)
	j.run()
	s.machineIs(m1, "ready", m1.Epoch, "boot-1")
	j.release("agent:m1", "agent")
	j.exits(0, failure.CauseExited)
	j.settle(berth.Succeeded, "", failure.BudgetNone)
	return s.history()
}

func rebooted() check.History {
	s := newStory()
	m := s.machine("m1")
	j := s.submit(1, "at_least_once")
	j.place(0, m)
	j.run()
	j.exits(255, failure.CauseBoot)
	j.now()[0].FreedBy = "boot"
	s.machineIs(m, "ready", m.Epoch+1, "boot-2")
	j.settle(berth.Retrying, berth.ReasonMachineError, failure.BudgetInfra)
	j.place(0, m)
	j.run()
	j.exits(0, failure.CauseExited)
	j.settle(berth.Succeeded, "", failure.BudgetNone)
	return s.history()
}

func canceled() check.History {
	s := newStory()
	m1, m2 := s.machine("m1"), s.machine("m2")
	j := s.submit(2, "at_least_once")
	j.place(0, m1, m2)
	j.run()
	j.state(berth.Canceling, "user:ada")
	at := s.at
	j.CancelRequestedAt = &at
	for _, a := range j.now() {
		a.Orders.Stop = true
	}
	j.exits(143, failure.CauseOrdered)
	j.settle(berth.Canceled, berth.ReasonCanceledByUser, failure.BudgetNone)
	return s.history()
}

// repaired is a gang of which one rank fails and whose other room is kept.
func repaired() check.History {
	s := newStory()
	m1, m2, m3 := s.machine("m1"), s.machine("m2"), s.machine("m3")
	j := s.submit(2, "at_least_once")
	j.place(0, m1, m2)
	j.run()
	kept := j.repairs(0)
	j.exits(1, failure.CauseExited)
	j.settle(berth.Retrying, berth.ReasonExitCode, failure.BudgetUser)
	j.place(0, m1, m3)
	at := s.at
	kept.GoneAt = &at
	j.run()
	j.exits(0, failure.CauseExited)
	j.settle(berth.Succeeded, "", failure.BudgetNone)
	return s.history()
}

func preempted() check.History {
	s := newStory()
	m := s.machine("m1")
	victim := s.submit(1, "at_least_once")
	victim.place(0, m)
	victim.run()
	victim.checkpoint(5)
	other := s.submit(1, "at_least_once")
	victim.state(berth.Preempting, "leader")
	victim.GaveWayTo = append(victim.GaveWayTo, other.ID)
	kept := s.keeps(m, 0, other, victim)
	victim.exits(0, failure.CauseOrdered)
	victim.settle(berth.Retrying, berth.ReasonPreempted, failure.BudgetNone)
	other.place(0, m)
	kept.UntilSeq = s.next()
	other.run()
	other.exits(0, failure.CauseExited)
	other.settle(berth.Succeeded, "", failure.BudgetNone)
	victim.place(0, m)
	victim.resume(5)
	victim.run()
	victim.exits(0, failure.CauseExited)
	victim.settle(berth.Succeeded, "", failure.BudgetNone)
	return s.history()
}

// continued is a job that starts from step 7 of another job, saves step 9 and resumes there.
func continued() check.History {
	s := newStory()
	m := s.machine("m1")
	j := s.submit(1, "at_least_once")
	j.Start = &history.StartPoint{Job: "00000000-0000-7000-8000-000000000099", Attempt: 3, Step: 7, State: berth.CheckpointVerified, Ranks: 1, Shards: 1}
	j.place(0, m)
	j.resume(7)
	j.run()
	j.checkpoint(9)
	j.exits(1, failure.CauseExited)
	j.settle(berth.Retrying, berth.ReasonExitCode, failure.BudgetUser)
	j.place(0, m)
	j.resume(9)
	j.run()
	j.exits(0, failure.CauseExited)
	j.settle(berth.Succeeded, "", failure.BudgetNone)
	return s.history()
}

func fellBack() check.History {
	s := newStory()
	m := s.machine("m1")
	j := s.submit(1, "at_least_once")
	j.place(0, m)
	j.run()
	j.checkpoint(5)
	j.checkpoint(10)
	j.exits(1, failure.CauseExited)
	j.settle(berth.Retrying, berth.ReasonExitCode, failure.BudgetUser)
	j.place(0, m)
	j.tell(wire.EventCheckpointRejected, 2, "agent:m1", "step 10 of attempt 1: hash differs")
	j.Checkpoints[1].State = berth.CheckpointBad
	j.resume(5)
	j.run()
	j.exits(0, failure.CauseExited)
	j.settle(berth.Succeeded, "", failure.BudgetNone)
	return s.history()
}

// running is a job at work, read at once.
func running() check.History {
	s := newStory()
	m1, m2 := s.machine("m1"), s.machine("m2")
	j := s.submit(2, "at_least_once")
	j.place(0, m1, m2)
	j.run()
	s.submit(1, "at_least_once")
	return s.history()
}

// blocked is a pipeline at work, read long after its first step has ended: the
// second was not let go.
func blocked() check.History {
	s := newStory()
	m := s.machine("m1")
	p, e := s.array(2, 0)
	p.Kind, s.families[0].Kind = string(berth.KindPipeline), string(berth.KindPipeline)
	e[0].step, e[1].step, e[1].needs = "a", "b", []berth.JobID{e[0].ID}
	b := e[1]
	b.Events, b.EventSeq, b.Version = b.Events[:1], 1, b.Version-1
	b.State, b.StateAt, b.Blocked = berth.Submitted, b.Events[0].At, true
	e[0].place(0, m)
	p.state(berth.Running, "leader")
	e[0].run()
	e[0].exits(0, failure.CauseExited)
	e[0].settle(berth.Succeeded, "", failure.BudgetNone)
	s.at = s.at.Add(2 * time.Hour)
	return s.history()
}

// blockedWell are reasons for which it may wait for as long as it likes.
var blockedWell = map[string]func(h *check.History){
	"what it needs runs":   func(h *check.History) { unended(h, berth.Queued) },
	"it is held":           func(h *check.History) { h.Families[0].Children[1].Held = true },
	"its pipeline is held": func(h *check.History) { h.Families[0].Held = true },
	"its pipeline waits":   func(h *check.History) { h.Families[0].State = berth.Submitted },
	"it was released just now": func(h *check.History) {
		at := h.Cluster.ReadAt.Add(-time.Second)
		h.Families[0].Children[1].UpdatedAt = &at
	},
	"its pipeline began just now": func(h *check.History) { h.Families[0].StateAt = h.Cluster.ReadAt.Add(-time.Second) },
	"what it needs ended just now": func(h *check.History) {
		at := h.Cluster.ReadAt.Add(-time.Second)
		h.Families[0].Children[0].FinishedAt = &at
	},
}

// letGo is blocked, except that the second step was unblocked that long before the
// read, so its state is older. No machine has claimed the step.
func letGo(before time.Duration) check.History {
	h := blocked()
	for i := range h.Jobs {
		if j := &h.Jobs[i]; j.Blocked {
			j.Blocked = false
			j.UnagedMS = h.Cluster.ReadAt.Add(-before).Sub(j.SubmittedAt).Milliseconds()
			h.Families[0].Children[1].Blocked = false
		}
	}
	return h
}

// unended makes the first step of blocked one that has not ended.
func unended(h *check.History, state berth.State) {
	c := &h.Families[0].Children[0]
	c.State, c.FinishedAt = state, nil
}

// queued is a job that waits.
func queued() check.History {
	s := newStory()
	s.submit(1, "at_least_once")
	return s.history()
}

func TestGoodHistoriesPass(t *testing.T) {
	t.Parallel()
	for name, h := range shapes {
		for _, b := range check.Verify(h(), check.Options{Settled: true}) {
			t.Errorf("%s: %s", name, b)
		}
	}
	for _, b := range check.Verify(running(), check.Options{}) {
		t.Errorf("a job at work: %s", b)
	}
	for name, h := range restoredNames() {
		for _, b := range check.Verify(h, check.Options{}) {
			t.Errorf("a name that was used again, and %s: %s", name, b)
		}
	}
	for why, wait := range blockedWell {
		h := blocked()
		wait(&h)
		for _, b := range check.Verify(h, check.Options{}) {
			t.Errorf("a blocked step, and %s: %s", why, b)
		}
	}
	for _, b := range check.Verify(letGo(time.Second), check.Options{}) {
		t.Errorf("a step that was let go a second ago, after two hours: %s", b)
	}
	older := lost() // an older berthd wrote the event of the checkpoint, a newer one that of the restore
	event(&older, wire.EventCheckpoint, "").Facts = nil
	for _, b := range check.Verify(older, check.Options{Settled: true}) {
		t.Errorf("a checkpoint event without facts: %s", b)
	}
	long := running()
	long.Cluster.ReadAt = long.Cluster.ReadAt.Add(30 * 24 * time.Hour)
	for _, b := range check.Verify(long, check.Options{}) {
		t.Errorf("a job at work for a month: %s", b)
	}
}
