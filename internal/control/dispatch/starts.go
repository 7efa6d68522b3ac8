package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/temporal"

	"berth"
	"berth/db"
	"berth/internal/lib/failpoint"
	"berth/internal/lib/overload"
)

var (
	tenantAttribute = temporal.NewSearchAttributeKeyKeyword(berth.AttributeTenant)
	kindAttribute   = temporal.NewSearchAttributeKeyKeyword(berth.AttributeKind)
)

// hear starts the workflows of newly submitted jobs, driven by the hints of an
// origin. Jobs that this process stored are started at once. For other jobs it waits
// a moment, and mostly finds them started. While Temporal is slow that moment is
// longer: the other processes are slow as well, and a second start costs as much as
// the first.
func (d *Dispatcher) hear(ctx context.Context, from db.Origin, moment time.Duration) {
	sub := d.db.Hub().SubscribeFrom(db.TopicSubmit, "*", from)
	defer sub.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sub.C:
		}
		ids := jobs(sub.Keys())
		if len(ids) == 0 || !d.health.isUp() || d.gate.Pressure().Paused {
			continue // the sweep finds them
		}
		if from == db.Elsewhere {
			moment = max(d.opts.Moment, min(d.opts.SweepEvery, slowMoments*d.limiter.Stats().Typical))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(moment):
		}
		rows, err := d.db.Submitted(overload.As(ctx, overload.Start), ids)
		if err != nil {
			d.log.Warn("cannot read submitted jobs, will retry", "err", err)
			continue
		}
		d.queue(rows)
	}
}

// jobs drops keys that are no job ids: a break in the hints leaves an empty key.
func jobs(keys []string) []berth.JobID {
	ids := make([]berth.JobID, 0, len(keys))
	for _, k := range keys {
		if id, err := berth.ParseJobID(k); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// sweep starts overlooked workflows: at intervals, as soon as Temporal answers again, and
// when the repeat of a failed start is due.
func (d *Dispatcher) sweep(ctx context.Context) {
	tick := time.NewTicker(d.opts.SweepEvery)
	defer tick.Stop()
	again := time.NewTicker(againEvery)
	defer again.Stop()
	for {
		age := d.opts.SweepEvery
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			d.repeatFailed(ctx)
			continue
		case <-tick.C:
		case <-d.health.up:
			age = 0
			d.marks.forgive()
		}
		d.marks.forget()
		if !d.health.isUp() || d.gate.Pressure().Paused {
			continue
		}
		rows, err := d.db.SubmittedBefore(overload.As(ctx, overload.Sweep), age, sweepBatch)
		if err != nil {
			if ctx.Err() == nil {
				d.log.Warn("cannot read submitted jobs, will retry", "err", err)
			}
			continue
		}
		d.queue(rows)
	}
}

// queue passes jobs to the goroutines that start workflows, except jobs just started and
// jobs with a failed start that is not due again.
func (d *Dispatcher) queue(rows []db.Dispatch) {
	read := time.Now()
	for _, row := range rows {
		if !d.marks.claim(row.Job) {
			continue
		}
		if !d.starts.push(start{row, read}) {
			d.marks.unclaim(row.Job) // the sweep finds it
		}
	}
}

// sendStarts starts workflows, one after another. It takes a job only when Temporal has
// room for its start: a job that waited for room in here would be out of turn, and a
// tenant's only job would wait for every start that came before.
func (d *Dispatcher) sendStarts(ctx context.Context) {
	for d.starts.reserve(ctx) {
		p, err := d.turn(ctx)
		if err != nil {
			d.starts.unreserve()
			continue // the context has ended, or there was no room for long
		}
		d.startQueued(ctx, p, d.starts.take())
	}
}

// turn returns a permit for one start, as soon as ended jobs, the operator, the database
// and the limit of calls to Temporal let one begin.
func (d *Dispatcher) turn(ctx context.Context) (*overload.Permit, error) {
	if err := d.gate.Starts.Wait(ctx); err != nil {
		return nil, err
	}
	err := d.pace.Wait(ctx)
	if err == nil {
		err = d.turns.await(ctx)
	}
	if err == nil {
		var p *overload.Permit
		if p, err = d.limiter.AcquireSlow(ctx, overload.Start); err == nil {
			return p, nil
		}
	}
	d.gate.Starts.Return(1)
	return nil, err
}

// databaseTurns lets one start at a time wait until the database has a turn for the first
// step of one more job. So few first steps ever wait there, and the jobs behind them wait in
// the dispatcher's queue, where tenants take turns. First steps have one queue for all
// tenants, in which a tenant's only job would wait for all others.
type databaseTurns struct {
	of  rows
	one chan struct{} // holds one: the right to wait
}

func newDatabaseTurns(of rows) databaseTurns { return databaseTurns{of, make(chan struct{}, 1)} }

// await returns when the database has a turn.
func (t databaseTurns) await(ctx context.Context) error {
	select {
	case t.one <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-t.one }()
	return t.of.AwaitTurn(ctx)
}

// startQueued starts the workflow of the next job in turn, with the permit of the turn, and
// records the outcome. If the budget refuses a repeat, its turn goes to another job.
func (d *Dispatcher) startQueued(ctx context.Context, p *overload.Permit, s start) {
	repeat := d.marks.hasFailed(s.Job)
	if repeat && !d.repeats.Repeat() {
		p.Drop()
		d.gate.Starts.Return(1)
		d.marks.postpone(s.Job)
		return
	}
	refund := func() {
		if repeat {
			d.repeats.Refund()
		}
	}
	if time.Since(s.since) > stale {
		rows, err := d.db.Submitted(overload.As(ctx, overload.Start), []berth.JobID{s.Job})
		if err == nil && len(rows) == 0 { // another process started it, or it was canceled
			p.Drop()
			refund()
			d.gate.Starts.Return(1)
			d.marks.succeed(s.Job)
			return
		}
	}
	if !d.health.isUp() {
		p.Drop()
		refund()
		d.gate.Starts.Return(1)
		d.marks.unclaim(s.Job) // the sweep finds it when Temporal answers again
		return
	}
	err := d.startOrFind(ctx, p, s.Dispatch, repeat)
	switch {
	case err == nil:
		d.marks.succeed(s.Job)
		refund()
		d.repeats.Succeeded()
	case errors.Is(err, overload.ErrShed), ctx.Err() != nil: // the call was not made
		refund()
		d.gate.Starts.Return(1)
		d.marks.postpone(s.Job)
	default:
		in := d.marks.fail(s.Job)
		if d.health.isUp() { // else it was said once, for all
			d.log.Warn("workflow start failed, will retry", "job_id", s.Job, "retry_in", in, "err", err)
		}
	}
}

// caller makes a call to Temporal, under the limit of calls.
type caller func(ctx context.Context, f func(ctx context.Context) error) error

// startOrFind starts the workflow of a job. A repeat first looks whether the
// call before it came through: a look costs Temporal less than a start that is
// refused. The first call uses the permit and ends it.
func (d *Dispatcher) startOrFind(ctx context.Context, p *overload.Permit, row db.Dispatch, repeat bool) error {
	used := false
	do := func(ctx context.Context, f func(context.Context) error) error {
		used = true
		return d.call(ctx, p, f)
	}
	defer func() {
		if !used {
			p.Drop()
		}
	}()
	if repeat {
		open, completed, err := describe(ctx, d.temporal, do, row.Job)
		if err != nil || open || completed {
			return err
		}
		do = d.under(overload.Start)
	}
	_, err := d.start(ctx, do, row, enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY)
	return err
}

// under returns a caller that makes its calls in the given class.
func (c *Calls) under(class overload.Class) caller {
	return func(ctx context.Context, f func(context.Context) error) error { return c.Call(ctx, class, f) }
}

// start starts the workflow of a job. It returns false if a workflow exists that is open,
// or closed with a status after which the policy allows no other.
func (d *Dispatcher) start(ctx context.Context, do caller, row db.Dispatch,
	policy enumspb.WorkflowIdReusePolicy) (started bool, err error) {
	// The points lie outside of the limited call to Temporal: a process that is frozen here must not
	// spend the call's time limit, and an injected error is no answer of Temporal.
	if err := failpoint.Hit("dispatch.start.before"); err != nil {
		return false, err
	}
	err = do(ctx, func(ctx context.Context) error {
		return d.starter.start(ctx, row, policy)
	})
	if _, already := errors.AsType[*serviceerror.WorkflowExecutionAlreadyStarted](err); already {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("start workflow of job %s: %w", row.Job, err)
	}
	if err := failpoint.Hit("dispatch.start.after"); err != nil {
		return false, err
	}
	return true, nil
}
