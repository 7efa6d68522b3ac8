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

// ranks is one attempt under way, with a waiter for each member. The end of a member is in
// its row; a waiter only signals that it is time to read the row.
type ranks struct {
	*job
	attempt    int
	limit      time.Duration // of a run, with its grace; 0: none
	ctx        workflow.Context
	news       workflow.Selector // signals, timers and ends of waiters
	waiters    []waiter          // by rank
	then       func()            // the action for the latest news
	stopped    bool              // the rest of a gang was ordered to stop
	escalation time.Time         // when members that still run are killed; zero: never
	superseded bool              // the row is past this attempt
	err        error             // of a step; ends the attempt's wait
}

// waiter is the workflow's wait for one member.
type waiter struct {
	slot    berth.Slot
	pending bool // its Run, or the pause before the next one, is under way
	done    bool // the member has ended
	losses  int  // Runs in a row that ended without a result
}

// runRanks waits until every member of a grant has ended, is given up, or belongs to a past
// attempt. It serves one member and a gang alike, and a first run as well as a rebuilt
// workflow, whose Run finds the running container. It returns false if the caller should
// read the row again before it settles.
func (j *job) runRanks(ctx workflow.Context, view wire.JobView) (ended bool, err error) {
	ctx, abandon := workflow.WithCancel(ctx)
	defer abandon() // of waiters and timers; containers are not affected
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
		// The callbacks of the selector only choose the action; it runs here, after Select.
		r.then = func() {}
		r.news.Select(ctx)
		if j.cancelPending() {
			r.look()
		}
		r.then()
	}
	return r.err == nil, r.err
}

// this returns the input of steps about this attempt.
func (r *ranks) this() wire.AttemptInput { return wire.AttemptInput{Job: r.id, Attempt: r.attempt} }

// open returns the number of members that may still run.
func (r *ranks) open() int {
	n := 0
	for _, w := range r.waiters {
		if !w.done {
			n++
		}
	}
	return n
}

// look reads and applies the row.
func (r *ranks) look() {
	if r.err != nil || r.superseded {
		return
	}
	view, err := r.read(r.ctx, wire.ActivityLoad)
	if err != nil {
		r.err = err
		return
	}
	r.apply(view)
}

// apply compares the waiters with the row: a live member gets a waiter, any other one needs
// none.
func (r *ranks) apply(view wire.JobView) {
	// The row is authoritative: a verdict or a cancel may have ended this attempt without
	// its waiters.
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
	r.stopFollowers()
	r.escalateAt(view.StopBy)
}

// leadEnded reports whether a group leads the gang and all its members have ended. A worker of the version
// before may have seen their ends without stopping the others.
func (r *ranks) leadEnded() bool {
	leads := false
	for _, w := range r.waiters {
		if w.slot.Leads && !w.done {
			return false
		}
		leads = leads || w.slot.Leads
	}
	return leads
}

// wait schedules the activity that waits for the member of rank i.
func (r *ranks) wait(i int) {
	w := &r.waiters[i]
	w.pending = true
	request := wire.RunRequest{Job: r.id, Attempt: r.attempt, Alloc: w.slot.Alloc}
	run := begin(r.runOptions(w.slot), wire.ActivityRun, request)
	r.news.AddFuture(run.Future, func(workflow.Future) { r.then = func() { r.returned(i, run) } })
}

// returned handles the end of the activity that waited for the member of rank i.
func (r *ranks) returned(i int, run future[wire.RunResult]) {
	w := &r.waiters[i]
	w.pending = false
	result, err := run.get(r.ctx)
	switch {
	case w.done || r.superseded || r.err != nil: // given up meanwhile
	case err != nil:
		r.lost(i, err)
	case result.Phase != berth.PhaseSealed: // the row had no end for this allocation
		r.lost(i, errNotSealed)
	default:
		w.done = true
		if result.Exit == nil || !result.Exit.Done() {
			r.stopRest()
		}
		r.stopFollowers()
	}
}

var errNotSealed = errors.New("the machine does not have it to its end")

// lost handles a waiter that failed or timed out. That says nothing about the member: the
// row does. If the member is live there, it gets another waiter after a pause.
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

// stopRest stops the other members of a gang after one member ended. The step finds in the
// rows whether that end was bad or a loss, or whether all leading members are done, and returns true only
// then.
func (r *ranks) stopRest() {
	if r.stopped || r.err != nil || r.open() == 0 {
		return
	}
	r.stopped, r.err = step(r.ctx, wire.ActivityStopAttempt, r.this())
}

// stopFollowers stops the other members once all leading ones have ended. Workers of the version before schedule no
// step then, so a history may go on without it. Each decision has its own change id: a decision that such a worker
// made stays without a stop in replays, and the next poke leads to a new one. The number is of the whole run, since
// an attempt can be waited for twice in a run. Gangs without a leading group record nothing.
func (r *ranks) stopFollowers() {
	if r.stopped || r.err != nil || r.open() == 0 || !r.leadEnded() {
		return
	}
	r.leadEnds++
	change := fmt.Sprintf("lead-ended-%d", r.leadEnds)
	if workflow.GetVersion(r.ctx, change, workflow.DefaultVersion, 1) == 1 {
		r.stopRest()
	}
}

// escalationSlack is the time, beyond the grace, in which a machine is expected to kill its
// members and to report that.
const escalationSlack = 10 * time.Second

// escalateAt orders the kill of the members that run at a time. The time is known only if
// the row was read after a stop order.
func (r *ranks) escalateAt(t time.Time) {
	if t.IsZero() || t.Equal(r.escalation) {
		return
	}
	r.escalation = t
	timer := workflow.NewTimer(r.ctx, max(0, t.Sub(workflow.Now(r.ctx)))+escalationSlack)
	r.news.AddFuture(timer, func(workflow.Future) {
		r.then = func() {
			// A later stop order has moved the time: its own timer acts.
			if r.err != nil || !r.escalation.Equal(t) {
				return
			}
			if _, r.err = step(r.ctx, wire.ActivityEscalate, r.this()); r.err == nil {
				r.look()
			}
		}
	})
}

// runOptions returns the options of the activity. Its timeout follows the job's run limit.
func (r *ranks) runOptions(slot berth.Slot) workflow.Context {
	o := runRank
	if r.limit > 0 {
		o.StartToCloseTimeout = r.limit + runSlack
	}
	o.Summary = describeSlot(slot)
	return workflow.WithActivityOptions(r.ctx, o)
}

// describe returns the text that Temporal's UI shows about the workflow. It adds no event
// to the history.
func describe(v wire.JobView) string {
	const shown = 4
	var b strings.Builder
	fmt.Fprintf(&b, "%s: attempt %d", v.State, v.Attempt)
	for i, slot := range v.Slots {
		if i == shown {
			fmt.Fprintf(&b, ", %d more members", len(v.Slots)-shown)
			break
		}
		b.WriteString(", " + describeSlot(slot))
	}
	return b.String()
}

func describeSlot(s berth.Slot) string {
	if len(s.GPUs) == 0 {
		return fmt.Sprintf("member %d on %s", s.Rank, s.Machine)
	}
	return fmt.Sprintf("member %d on %s, GPU %s", s.Rank, s.Machine, strings.Trim(fmt.Sprint(s.GPUs), "[]"))
}
