package workflows

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/wire"
)

// ranks is one attempt under way, with a waiter for each member. The end of a
// member stands in its row; a waiter only signals that it is time to read the row.
type ranks struct {
	*job
	attempt    int
	limit      time.Duration // of a run, with its grace; 0: none
	ctx        workflow.Context
	news       workflow.Selector
	waiters    []waiter // by rank
	then       func()   // what the last news ask for
	stopped    bool     // the rest of a gang was told to stop
	escalation time.Time
	superseded bool // the row is past this attempt
	err        error
}

// waiter is how the workflow waits for one member.
type waiter struct {
	slot    berth.Slot
	pending bool // its Run, or the pause before the next one, is under way
	done    bool // nothing more to wait for
	losses  int  // Runs in a row that ended without a result
}

// runRanks waits until every member of a grant has ended, is given up, or belongs
// to an attempt of the past. It serves one member and a gang alike, and a first
// run as well as a rebuilt workflow, whose Run finds the container there. It
// returns false if the caller should read the row again before it settles.
func (j *job) runRanks(ctx workflow.Context, view wire.JobView) (ended bool, err error) {
	ctx, abandon := workflow.WithCancel(ctx)
	defer abandon() // of waiters and timers; no container hears of it
	r := &ranks{job: j, attempt: view.Attempt, limit: view.RunLimit.Std(), ctx: ctx, news: workflow.NewSelector(ctx)}
	for _, slot := range view.Slots {
		r.waiters = append(r.waiters, waiter{slot: slot})
	}
	j.listen(r.news, func() { r.then = r.look })
	r.apply(view)
	for r.err == nil && !r.superseded && r.open() > 0 {
		if workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
			return false, nil
		}
		r.then = func() {}
		r.news.Select(ctx)
		if j.cancelPending() {
			r.look()
		}
		r.then()
	}
	return r.err == nil, r.err
}

func (r *ranks) open() int {
	n := 0
	for _, w := range r.waiters {
		if !w.done {
			n++
		}
	}
	return n
}

// look reads the row and does what follows from it.
func (r *ranks) look() {
	if r.err != nil || r.superseded {
		return
	}
	view, err := r.read(r.ctx, berth.ActivityLoad)
	if err != nil {
		r.err = err
		return
	}
	r.apply(view)
}

// apply compares the waiters with the row: members that are live get one, members
// that are not need none any more.
func (r *ranks) apply(view wire.JobView) {
	if view.Attempt != r.attempt || !view.State.HoldsCapacity() {
		r.superseded = true
		return
	}
	workflow.SetCurrentDetails(r.ctx, describe(view))
	ended := false
	for i, slot := range view.Slots {
		w := &r.waiters[i]
		w.slot = slot
		if !w.done && !slot.Live() {
			w.done, ended = true, true
		}
		if !w.done && !w.pending {
			r.wait(i)
		}
	}
	if ended {
		r.stopRest()
	}
	r.escalateAt(view.StopBy)
}

// wait schedules the activity that waits for the member of rank i.
func (r *ranks) wait(i int) {
	w := &r.waiters[i]
	w.pending = true
	request := wire.RunRequest{Job: r.id, Attempt: r.attempt, Alloc: w.slot.Alloc}
	run := workflow.ExecuteActivity(r.runOptions(w.slot), berth.ActivityRun, request)
	r.news.AddFuture(run, func(workflow.Future) { r.then = func() { r.returned(i, run) } })
}

// returned deals with the end of the activity that waited for the member of rank i.
func (r *ranks) returned(i int, run workflow.Future) {
	w := &r.waiters[i]
	w.pending = false
	var result wire.RunResult
	err := run.Get(r.ctx, &result)
	switch {
	case w.done || r.superseded || r.err != nil: // given up meanwhile
	case err != nil:
		r.lost(i, err)
	case result.Phase != berth.PhaseSealed: // not that machine's work, as far as it knows
		r.lost(i, errNotSealed)
	default:
		w.done = true
		if result.Exit == nil || !result.Exit.Done() {
			r.stopRest()
		}
	}
}

var errNotSealed = errors.New("the machine does not have it to its end")

// lost deals with a waiter that failed or timed out. That says nothing about
// the member: the row does. If it is live there, it gets another waiter, later.
func (r *ranks) lost(i int, why error) {
	w := &r.waiters[i]
	workflow.GetLogger(r.ctx).Warn("waiter lost", "job_id", r.id, "attempt", r.attempt, "machine_id", w.slot.Machine,
		"losses", w.losses, "err", why)
	w.pending = true // no other waiter before the pause is over
	r.look()
	if w.done || r.superseded || r.err != nil {
		return
	}
	r.news.AddFuture(workflow.NewTimer(r.ctx, backoff(w.losses)), func(workflow.Future) {
		r.then = func() {
			if !w.done && !r.superseded {
				r.wait(i)
			}
		}
	})
	w.losses++
}

// stopRest stops the other members of a gang after one of them ended. Whether it
// ended badly or was lost the step finds in the rows, and answers.
func (r *ranks) stopRest() {
	if r.stopped || r.err != nil || r.open() == 0 {
		return
	}
	r.stopped, r.err = step[bool](r.ctx, berth.ActivityStopAttempt, r.id, r.attempt)
}

// escalationSlack is given to a machine beyond the grace it was told, to kill
// by itself and to say so.
const escalationSlack = 10 * time.Second

// escalateAt orders the kill of what has not ended by then. The time is known
// only where the row was read after a stop order.
func (r *ranks) escalateAt(t time.Time) {
	if t.IsZero() || t.Equal(r.escalation) {
		return
	}
	r.escalation = t
	timer := workflow.NewTimer(r.ctx, max(0, t.Sub(workflow.Now(r.ctx)))+escalationSlack)
	r.news.AddFuture(timer, func(workflow.Future) {
		r.then = func() {
			if r.err != nil || !r.escalation.Equal(t) {
				return
			}
			if _, r.err = step[bool](r.ctx, berth.ActivityEscalate, r.id, r.attempt); r.err == nil {
				r.look()
			}
		}
	})
}

func (r *ranks) runOptions(slot berth.Slot) workflow.Context {
	o := runRank
	if r.limit > 0 {
		o.StartToCloseTimeout = r.limit + runSlack
	}
	o.Summary = describeSlot(slot)
	return workflow.WithActivityOptions(r.ctx, o)
}

// describe tells in Temporal's UI what the workflow is at. It costs no event.
func describe(v wire.JobView) string {
	const shown = 4
	var b strings.Builder
	fmt.Fprintf(&b, "%s: attempt %d", v.State, v.Attempt)
	for i, slot := range v.Slots {
		if i == shown {
			fmt.Fprintf(&b, ", %d more ranks", len(v.Slots)-shown)
			break
		}
		b.WriteString(", " + describeSlot(slot))
	}
	return b.String()
}

func describeSlot(s berth.Slot) string {
	if len(s.GPUs) == 0 {
		return fmt.Sprintf("rank %d on %s", s.Rank, s.Machine)
	}
	return fmt.Sprintf("rank %d on %s, GPU %s", s.Rank, s.Machine, strings.Trim(fmt.Sprint(s.GPUs), "[]"))
}
