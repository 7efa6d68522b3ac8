package check

import (
	"fmt"
	"time"

	"berth"
	"berth/db/history"
	"berth/spec"
	"berth/wire"
)

// Budgets of time within which each state moves on, while the control plane
// works; see docs/design/failures.md. Options.Patience comes on top.
const (
	submittedFor = 30 * time.Second
	unclaimedFor = 2 * time.Minute
	stoppingFor  = time.Minute // in addition to the job's grace
	settledIn    = 10 * time.Minute
	fencedAfter  = 17 * time.Minute // for at_most_one jobs, in addition to their grace
)

// makesProgress proves invariant 6: a job that neither is terminal nor waits in the queue
// has not exceeded the budget of its state. While containers stop, the job's grace and
// the time after which a silent machine is given up come on top. A job with capacity must
// have a live member, or be settled within settledIn of its last end. Queued jobs have no
// budget: they wait for capacity.
func makesProgress(c *jobCase) {
	j, now := c.j, c.v.now
	overdue := func(since time.Time, budget time.Duration, what string) {
		if late := now.Sub(since) - budget - c.v.o.Patience; late > 0 {
			c.breach(rows(ranksRows(c)...), "%s since %s: %s over its budget of %s", what, since.Format(time.RFC3339),
				late.Round(time.Second), budget+c.v.o.Patience)
		}
	}
	grace := time.Duration(j.GraceMS) * time.Millisecond
	silence := time.Duration(j.LostAfterMS) * time.Millisecond
	if j.Execution == atMostOne {
		silence = max(silence, fencedAfter+grace)
	}
	switch {
	case j.State == berth.Submitted && j.Blocked: // its pipeline unblocks the step: see stepsAreLetGo
	case j.State == berth.Submitted: // a step: since it was unblocked, which is no change of state
		ages := j.SubmittedAt.Add(time.Duration(j.UnagedMS) * time.Millisecond)
		overdue(later(j.StateAt, &ages), submittedFor, "submitted")
	case j.State == berth.Canceling || j.State == berth.Preempting:
		overdue(j.StateAt, grace+stoppingFor+silence+settledIn, string(j.State))
	}
	if !holds(j.State) {
		return
	}
	live := false
	var last time.Time
	for _, a := range c.ranks(j.Attempt) {
		switch {
		case a.State == berth.AllocReserved:
			live = true
			overdue(a.ReservedAt, unclaimedFor, fmt.Sprintf("rank %d unclaimed", a.Rank))
		case a.State == berth.AllocActive, a.State == berth.AllocExited && a.SealedAt == nil:
			live = true
		}
		for _, at := range []*time.Time{a.SealedAt, a.OrphanedAt, a.ReleasedAt, a.ExitedAt} {
			if at != nil && at.After(last) {
				last = *at
			}
		}
	}
	if !live && !last.IsZero() {
		overdue(last, settledIn, "ended and not settled")
	}
}

// stepsAreLetGo proves invariant 6 for the blocked steps of a pipeline that has begun.
// Each waits for one of its needs, or for the release of a hold. Steps of a nested
// pipeline that has not begun wait for that pipeline.
func stepsAreLetGo(c *familyCase) {
	if c.f.Kind != string(berth.KindPipeline) || c.f.State != berth.Queued && c.f.State != berth.Running {
		return
	}
	byID := map[berth.JobID]history.Child{}
	for _, e := range c.f.Children {
		byID[e.ID] = e
	}
	budget := submittedFor + c.v.o.Patience
	for _, e := range c.f.Children {
		if !e.Blocked || e.State != berth.Submitted {
			continue
		}
		because := c.due(e, byID)
		if because == "" {
			continue
		}
		since := c.f.StateAt
		for _, id := range c.needsOf(e) {
			since = later(since, byID[id].FinishedAt)
		}
		since = later(since, e.UpdatedAt)
		if late := c.v.now.Sub(since) - budget; late > 0 {
			c.breach(rows(e), "step %s is blocked, although %s, since %s: %s over its budget of %s", nameOf(e),
				because, since.Format(time.RFC3339), late.Round(time.Second), budget).Job = e.ID
		}
	}
}

// due returns the reason why a step should no longer be blocked; "" if the step has to
// wait. A step that can no longer run is canceled, even if the step is held.
func (c *familyCase) due(e history.Child, byID map[berth.JobID]history.Child) string {
	strict := needsSuccess(e)
	failed, waits, skipped := 0, false, false
	for _, id := range c.needsOf(e) {
		need, known := byID[id]
		switch {
		case !known: // the need is not in this family, or in the archive: its state is unknown
			waits = true
		case unsuccessful(need) && strict:
			return fmt.Sprintf("%s, which it needs, is %s", nameOf(need), need.State)
		case unsuccessful(need):
			failed++
		case need.Skipped:
			skipped = true
		case !need.State.Terminal():
			waits = true
		}
	}
	runs := e.When == spec.WhenAlways || (e.When == spec.WhenFailure) == (failed > 0) && !(strict && skipped)
	switch {
	case waits, runs && (c.f.Held || e.Held):
		return ""
	case runs:
		return "its condition is met and it is not on hold"
	}
	return "its condition does not hold"
}

// later returns the later of two times; nil counts as before all times.
func later(t time.Time, at *time.Time) time.Time {
	if at != nil && at.After(t) {
		return *at
	}
	return t
}

// ranksRows are the allocations of the current attempt, as proof of a breach.
func ranksRows(c *jobCase) []any {
	var list []any
	for _, a := range c.ranks(c.j.Attempt) {
		list = append(list, a)
	}
	return list
}

// submittedOnce proves the part of invariant 7 about one job: a spec is stored, and
// exactly one event submits the job.
func submittedOnce(c *jobCase) {
	if !c.j.HasSpec {
		c.breach(nil, "the job was accepted without a spec")
	}
	n := 0
	for _, e := range c.states() {
		if e.From == "" && e.To == berth.Submitted {
			n++
		}
	}
	if n != 1 {
		c.breach(nil, "the job was submitted %d times", n)
	}
}

// acceptedOnce proves the part of invariant 7 about all jobs. The rows have no
// idempotency key twice in a tenant. Each submit that a client saw accepted has a job, so
// no acknowledged submit was lost, and equal keys were answered with the same job.
func acceptedOnce(c *clusterCase) {
	for _, k := range c.c.SameKey {
		c.breach(rows(k), "%d jobs of tenant %s carry the idempotency key %q", len(k.Jobs), k.Tenant, k.Key)
	}
	missing := map[berth.JobID]bool{}
	for _, id := range c.missing {
		missing[id] = true
	}
	type key struct {
		tenant berth.TenantID
		key    string
	}
	byKey := map[key]Accepted{}
	for _, a := range c.accepted {
		if missing[a.Job] {
			c.breach(rows(a), "a submit was accepted as this job, which does not exist").Job = a.Job
		}
		if a.Key == "" {
			continue
		}
		k := key{a.Tenant, a.Key}
		if first, ok := byKey[k]; ok && first.Job != a.Job {
			c.breach(rows(first, a), "idempotency key %q was answered with two jobs", a.Key).Job = a.Job
		}
		byKey[k] = a
	}
}

// jobSettled proves the part of invariant 20 about jobs: the job is terminal, and each
// container that was started has ended, by the word of its engine or of its agent. It
// runs only with Options.Settled.
func jobSettled(c *jobCase) {
	if !c.v.o.Settled {
		return
	}
	if !c.j.State.Terminal() {
		c.breach(nil, "the job is still %s", c.j.State)
	}
	c.nothingLeft()
	for _, l := range c.lives {
		if len(l.Starts) == 0 || !l.ended().IsZero() {
			continue
		}
		over := false
		for _, a := range c.j.Allocations {
			over = over || a.ID == l.Alloc && !endOf(l, a).IsZero()
		}
		if !over {
			b := c.breach(rows(l), "container %s was started, and neither its engine nor its agent saw it end", l.ID)
			b.Attempt, b.Machine = l.Attempt, l.Machine
		}
	}
}

// strayFor is the age up to which a container may remain that its engine created after
// the agent gave up waiting: the agent's sweep must see the container twice.
const strayFor = time.Minute

// nothingLeft looks for containers that were created, never started and never removed,
// although their machine has confirmed that none is left.
func (c *jobCase) nothingLeft() {
	for _, l := range c.lives {
		if l.Created.IsZero() || len(l.Starts) > 0 || !l.ended().IsZero() ||
			c.v.now.Sub(l.Created) <= strayFor+c.v.o.Skew {
			continue
		}
		for _, a := range c.j.Allocations {
			if a.ID == l.Alloc && a.ForgottenAt != nil {
				c.of(a, rows(l, a), "container %s was made and never started, and is left over: machine %s has "+
					"confirmed that nothing of rank %d is there", l.ID, a.Machine, a.Rank)
			}
		}
	}
}

// causesComeFirst proves invariant 23. Events in the order of seq have times that do not
// fall by more than Skew. A restore follows the checkpoint of its step, and each change
// of state has its cause; see hasCause. The phases of an allocation follow each other:
// reserved, claimed, started, exited, sealed.
func causesComeFirst(c *jobCase) {
	var at time.Time
	saved, allKnown := map[int64]bool{}, true
	if s := c.j.Start; s != nil {
		saved[s.Step] = true // by another job
	}
	for _, e := range c.j.Events {
		if e.At.Add(c.v.o.Skew).Before(at) {
			c.breach(rows(e), "event %d is older than one before it: %s, %s", e.Seq, e.At.Format(time.RFC3339Nano),
				at.Format(time.RFC3339Nano))
		}
		if e.At.After(at) {
			at = e.At
		}
		switch e.Kind {
		case wire.EventCheckpoint:
			if e.Facts == nil || e.Facts.Step == nil {
				allKnown = false // an older berthd wrote the row: the saved step is unknown
				continue
			}
			saved[*e.Facts.Step] = true
		case wire.EventRestored:
			if f := e.Facts; allKnown && f != nil && f.Step != nil && f.Rank != nil && !saved[*f.Step] {
				c.breach(rows(e), "rank %d resumed from step %d before that was registered", *f.Rank, *f.Step)
			}
		case wire.EventState:
			c.hasCause(e.To, e.Attempt)
		}
	}
	for _, a := range c.j.Allocations {
		last := a.ReservedAt
		for _, step := range []struct {
			what string
			at   *time.Time
		}{{"claimed", a.ClaimedAt}, {"started", a.StartedAt}, {"exited", a.ExitedAt}, {"sealed", a.SealedAt}} {
			if step.at == nil {
				continue
			}
			if step.at.Add(c.v.o.Skew).Before(last) {
				c.of(a, rows(a), "rank %d was %s before what had to come first", a.Rank, step.what)
			}
			last = *step.at
		}
		if a.StartedAt != nil && a.ClaimedAt == nil {
			c.of(a, rows(a), "rank %d started without having been claimed", a.Rank)
		}
	}
}

// hasCause searches the rows for the cause that a change of state requires: running needs
// a claim of every member, and success needs exit code 0 of every member that decides about it.
func (c *jobCase) hasCause(to berth.State, attempt int) {
	for _, a := range c.ranks(attempt) {
		switch {
		case to == berth.Running && a.ClaimedAt == nil:
			c.of(a, rows(a), "attempt %d ran although rank %d was never claimed", attempt, a.Rank)
		case to == berth.Succeeded && c.leads(a.Rank) && (a.Exit == nil || a.Exit.Code != 0):
			c.of(a, rows(a), "it succeeded although rank %d did not exit 0", a.Rank)
		}
	}
}

// storageAddsUp proves invariant 29: for each tenant and kind, the counter of stored data
// equals the sum over the rows. Quotas are enforced by the counters, so a drift would
// refuse data below the limit, or accept data above.
func storageAddsUp(c *clusterCase) {
	for _, s := range c.c.Stored {
		if s.Counted != s.Rows {
			c.breach(rows(s), "%s of tenant %s are counted as %d, and the rows come to %d",
				s.Kind, s.Tenant, s.Counted, s.Rows)
		}
	}
}
