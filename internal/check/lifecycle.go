package check

import (
	"slices"
	"strings"

	"berth"
	"berth/db/history"
	"berth/failure"
	"berth/wire"
)

// attemptsIncrease proves invariant 3 from three independent records. The rows of
// attempts are numbered from 1 without a gap, and the leaders' terms never fall, so no
// deposed leader has placed an attempt after its successor. The events place attempt n+1
// only after n, and name no other attempt between. No allocation belongs to an attempt
// that the job never reached.
func attemptsIncrease(c *jobCase) {
	for i, t := range c.j.Attempts {
		if t.Attempt != i+1 {
			c.breach(rows(t), "attempt %d stands in place %d", t.Attempt, i+1)
		}
		if i > 0 && t.LeaderEpoch < c.j.Attempts[i-1].LeaderEpoch {
			c.breach(rows(c.j.Attempts[i-1], t),
				"attempt %d was placed in term %d of the leader, after one in term %d", t.Attempt, t.LeaderEpoch,
				c.j.Attempts[i-1].LeaderEpoch)
		}
	}
	placed := 0
	for _, e := range c.states() {
		switch {
		case e.To == berth.Scheduled && e.Attempt != placed+1:
			c.breach(rows(e), "attempt %d was placed after attempt %d", e.Attempt, placed)
		case e.To != berth.Scheduled && e.Attempt != placed:
			c.breach(rows(e), "the job changed at attempt %d, although attempt %d was placed last", e.Attempt, placed)
		}
		placed = max(placed, e.Attempt)
	}
	for _, a := range c.j.Allocations {
		if a.Attempt < 1 || a.Attempt > c.j.Attempt {
			c.of(a, rows(a), "an allocation of attempt %d, of a job at attempt %d", a.Attempt, c.j.Attempt)
		}
	}
}

// writes are the kinds of events that record a write of an agent for its current
// attempt. An older attempt may still report that it exited, fell silent, or was
// released.
var writes = []wire.EventKind{wire.EventClaimed, wire.EventImagePulled, wire.EventRestored, wire.EventCheckpoint,
	wire.EventCheckpointRejected, wire.EventCheckpointPassedOver}

// noStaleWrite proves the part of invariant 4 about jobs: in the order of seq, no change
// of state and no write of an agent belongs to an attempt older than the latest one, and
// no agent writes after the end. Events get their seq under the lock of the job's row, so
// a stale write that was accepted stands behind the newer attempt's event.
func noStaleWrite(c *jobCase) {
	now, ended := 0, false
	for _, e := range c.j.Events {
		switch {
		case e.Kind == wire.EventState:
			if e.Attempt < now {
				c.breach(rows(e), "attempt %d moved the job to %s, at attempt %d", e.Attempt, e.To, now)
			}
			now, ended = max(now, e.Attempt), ended || e.To.Terminal()
		case !slices.Contains(writes, e.Kind) || !strings.HasPrefix(e.Actor, "agent:"):
		case e.Attempt < now && !ofAnotherJob(e):
			c.breach(rows(e), "a %s of attempt %d was accepted at attempt %d", e.Kind, e.Attempt, now)
		case ended && !ofAnotherJob(e):
			c.breach(rows(e), "a %s was accepted after the job had ended", e.Kind)
		}
	}
	for _, p := range c.j.Checkpoints {
		if p.Attempt > c.j.Attempt {
			c.breach(rows(p), "checkpoint %d is of attempt %d, of a job at attempt %d", p.Step, p.Attempt, c.j.Attempt)
		}
	}
}

// ofAnotherJob reports whether an event records that another job, which started from a step of
// this one, found the step damaged. It comes from that job's agent, at any time.
func ofAnotherJob(e history.Event) bool {
	return e.Kind == wire.EventCheckpointRejected && e.Facts != nil && e.Facts.Job != ""
}

// mayFollow are the kinds of events that a job may still get after its end: the
// ends of members that were given up.
var mayFollow = []wire.EventKind{wire.EventReleased, wire.EventExited, wire.EventOrphaned, wire.EventWarning}

// listedTransitions proves invariant 5: each change starts from the state that the change
// before reached, and is listed in berth.Transitions or berth.ParentTransitions. A
// terminal state has no listed change, so a job ends exactly once; after that only events
// in mayFollow may occur.
func listedTransitions(c *jobCase) {
	var state berth.State // a terminal state has no successor, so no job ends twice
	for _, e := range c.j.Events {
		if e.Kind != wire.EventState {
			if state.Terminal() && !slices.Contains(mayFollow, e.Kind) && !ofAnotherJob(e) {
				c.breach(rows(e), "an event %s after the job was %s", e.Kind, state)
			}
			continue
		}
		if e.From != state {
			c.breach(rows(e), "a change from %q, although the job was %q", e.From, state)
		}
		if !berth.Kind(c.j.Kind).CanBecome(e.From, e.To) {
			c.breach(rows(e), "%q cannot become %q", e.From, e.To)
		}
		state = e.To
	}
}

// eventsGiveTheRow proves invariant 21: the seq of events runs from 1 without a gap to
// the row's counter, and a replay of the changes of state yields the row's state, its
// attempt, and the start and the result of each attempt. An event that was lost, or a row
// that was changed without an event, breaks one of these equalities.
func eventsGiveTheRow(c *jobCase) {
	j := c.j
	for i, e := range j.Events {
		if e.Seq != int64(i+1) {
			c.breach(rows(e), "event %d stands in place %d: there is a gap, or one twice", e.Seq, i+1)
			break
		}
	}
	if n := int64(len(j.Events)); n != j.EventSeq {
		c.breach(nil, "there are %d events, and the row counts %d", n, j.EventSeq)
	}
	var state berth.State
	attempt := 0
	ran := map[int]bool{}
	next := map[int]berth.State{}
	for _, e := range c.states() {
		if holds(state) && !holds(e.To) {
			next[attempt] = e.To
		}
		state, attempt = e.To, e.Attempt
		if e.To == berth.Running {
			ran[e.Attempt] = true
		}
	}
	if state != j.State {
		c.breach(nil, "its events end in %q, its row says %q", state, j.State)
	}
	if attempt != j.Attempt || len(j.Attempts) != j.Attempt {
		c.breach(nil, "its events end at attempt %d, its row says %d, and it has %d attempts", attempt, j.Attempt,
			len(j.Attempts))
	}
	if j.State.Terminal() != (j.FinishedAt != nil) {
		c.breach(nil, "it is %s, and finished_at is %v", j.State, j.FinishedAt)
	}
	for _, t := range j.Attempts {
		if ran[t.Attempt] != (t.StartedAt != nil) {
			c.breach(rows(t), "attempt %d: an event says that it ran: %t; its row: %t", t.Attempt, ran[t.Attempt],
				t.StartedAt != nil)
		}
		if t.NextState != next[t.Attempt] {
			c.breach(rows(t), "attempt %d led to %q by its row, and to %q by the events", t.Attempt, t.NextState,
				next[t.Attempt])
		}
	}
}

// victimsGiveWay proves invariant 14, for preempted and for suspended jobs, except for the
// devices, which nominationsHold and gpusGivenOnce follow. A preempted attempt never runs
// again; it ends as preempted, the job is requeued, no budget is charged, and the capacity of
// each member is freed. The job gives way to the same job at most once. An orphaned member is
// exempt: its capacity counts as used until its end is confirmed.
func victimsGiveWay(c *jobCase) {
	victims := map[int]bool{} // attempts that must give way
	last := 0
	for _, e := range c.states() {
		switch {
		case e.To == berth.Preempting:
			victims[e.Attempt], last = true, e.Attempt
		case last != 0 && e.To == berth.Running && e.Attempt == last:
			c.breach(rows(e), "attempt %d runs again after it had to give way", last)
		}
	}
	for i, id := range c.j.GaveWayTo {
		if slices.Contains(c.j.GaveWayTo[:i], id) {
			c.breach(nil, "it gave way to job %s twice", id)
		}
	}
	for _, t := range c.j.Attempts {
		preempted := t.Outcome != nil &&
			(t.Outcome.Code == berth.ReasonPreempted || t.Outcome.Code == berth.ReasonSuspended)
		if victims[t.Attempt] && t.NextState == berth.Retrying && !preempted {
			c.breach(rows(t), "attempt %d had to give way, and did not end as preempted", t.Attempt)
		}
		if !preempted {
			continue
		}
		if t.NextState != berth.Retrying {
			c.breach(rows(t), "attempt %d gave way, and the job became %s in place of retrying", t.Attempt, t.NextState)
		}
		if t.Budget != "" && t.Budget != failure.BudgetNone {
			c.breach(rows(t), "attempt %d gave way and was charged to %s", t.Attempt, t.Budget)
		}
		for _, a := range c.ranks(t.Attempt) {
			if a.TakenSeq != 0 && a.FreedSeq == 0 && a.State != berth.AllocOrphaned {
				c.of(a, rows(a), "rank %d gave way, and its capacity was never freed", a.Rank)
			}
		}
	}
}

// cancelsHold proves invariant 13. After the first event of a cancel, the job only moves
// to a terminal state other than failed, no member gets an order to start, and no agent
// claims a member. A job that succeeded after its cancel needs every member to have ended
// its work by itself. starts records the attempts that were ordered to start, or ran,
// before the cancel: orders in the rows carry no time.
func cancelsHold(c *jobCase) {
	if c.j.Kind != "job" {
		return // a parent holds no capacity; its children are checked one by one
	}
	var canceled *history.Event
	starts := map[int]bool{} // attempts that were ordered to start, or ran, before the cancel
	for _, e := range c.j.Events {
		if e.Kind == wire.EventOrdered && strings.HasPrefix(e.Detail, "start: ") && canceled == nil {
			starts[e.Attempt] = true
		}
		if e.Kind != wire.EventState {
			continue
		}
		if canceled != nil && !e.To.Terminal() {
			c.breach(rows(canceled, e), "it became %s after its cancel", e.To)
		}
		if canceled != nil && e.To == berth.Failed {
			c.breach(rows(canceled, e), "it became failed after its cancel")
		}
		if e.To == berth.Running {
			starts[e.Attempt] = true
		}
		if e.To == berth.Canceling || e.To == berth.Canceled && canceled == nil {
			canceled = &e
		}
	}
	if canceled == nil {
		if c.j.CancelRequestedAt != nil {
			c.breach(nil, "a cancel was accepted at %s, and the job's history has none", c.j.CancelRequestedAt)
		}
		return
	}
	for _, a := range c.ranks(c.j.Attempt) {
		if a.Orders.Start && !starts[a.Attempt] {
			c.of(a, rows(canceled, a), "rank %d was ordered to start, although the job was canceled before that",
				a.Rank)
		}
		if a.ClaimedAt != nil && a.ClaimedAt.After(canceled.At.Add(c.v.o.Skew)) {
			c.of(a, rows(canceled, a), "rank %d was claimed after the cancel", a.Rank)
		}
		if c.j.State == berth.Succeeded && c.leads(a.Rank) && (a.Exit == nil || !a.Exit.Done()) {
			c.of(a, rows(canceled, a), "it succeeded after its cancel, and rank %d had not done its work by itself",
				a.Rank)
		}
	}
}
