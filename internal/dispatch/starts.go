package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"berth"
	"berth/db"
	"berth/internal/failpoint"
)

var (
	tenantAttribute = temporal.NewSearchAttributeKeyKeyword(berth.AttributeTenant)
	kindAttribute   = temporal.NewSearchAttributeKeyKeyword(berth.AttributeKind)
)

// hear starts what the hints of an origin tell of. What this process stored is
// its own to start; for what others stored it waits a moment, and mostly finds
// it started.
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
		if len(ids) == 0 || !d.health.isUp() {
			continue // the sweep finds them
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(moment):
		}
		rows, err := d.db.Submitted(ctx, ids)
		if err != nil {
			d.log.Warn("submitted jobs not read", "err", err)
			continue
		}
		d.queue(ctx, rows)
	}
}

// jobs drops what is no job id: after a break in the hints there is an empty key.
func jobs(keys []string) []berth.JobID {
	ids := make([]berth.JobID, 0, len(keys))
	for _, k := range keys {
		if id, err := berth.ParseJobID(k); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// sweep starts what nobody started: now and then, and as soon as Temporal
// answers again.
func (d *Dispatcher) sweep(ctx context.Context) {
	tick := time.NewTicker(d.opts.SweepEvery)
	defer tick.Stop()
	for {
		age := d.opts.SweepEvery
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-d.health.up:
			age = 0
		}
		d.forget()
		if !d.health.isUp() {
			continue
		}
		rows, err := d.db.SubmittedBefore(ctx, age, sweepBatch)
		if err != nil {
			if ctx.Err() == nil {
				d.log.Warn("submitted jobs not read", "err", err)
			}
			continue
		}
		d.queue(ctx, rows)
	}
}

// queue hands jobs to the goroutines that start them, except those just started.
func (d *Dispatcher) queue(ctx context.Context, rows []db.Dispatch) {
	for _, row := range rows {
		if !d.claim(row.Job) {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case d.starts <- row:
		}
	}
}

// claim marks a job as being started; false if it is already.
func (d *Dispatcher) claim(id berth.JobID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.started[id]; ok {
		return false
	}
	d.started[id] = time.Now()
	return true
}

// unclaim lets the sweep try a job again.
func (d *Dispatcher) unclaim(id berth.JobID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.started, id)
}

// forget drops old marks.
func (d *Dispatcher) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, at := range d.started {
		if time.Since(at) > remembered {
			delete(d.started, id)
		}
	}
}

func (d *Dispatcher) sendStarts(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case row := <-d.starts:
			err := d.startQueued(ctx, row)
			if err != nil {
				d.unclaim(row.Job)
			}
			if err != nil && ctx.Err() == nil && d.health.isUp() { // else it was said once, for all
				d.log.Warn("workflow not started; the sweep tries again", "job_id", row.Job, "err", err)
			}
		}
	}
}

func (d *Dispatcher) startQueued(ctx context.Context, row db.Dispatch) error {
	if !d.health.isUp() {
		return errors.New("temporal does not answer")
	}
	if err := d.limit.Wait(ctx); err != nil {
		return err
	}
	_, err := d.start(ctx, row, enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY)
	return err
}

// start starts the workflow of a job. It returns false if there is one already,
// open, or closed in a way that the policy does not let be repeated.
func (d *Dispatcher) start(ctx context.Context, row db.Dispatch, policy enumspb.WorkflowIdReusePolicy) (started bool, err error) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if err := failpoint.Hit("dispatch.start.before"); err != nil {
		return false, err
	}
	_, err = d.temporal.ExecuteWorkflow(call, client.StartWorkflowOptions{
		ID:                                       berth.JobWorkflowID(row.Job),
		TaskQueue:                                berth.QueueControl,
		WorkflowIDReusePolicy:                    policy,
		WorkflowIDConflictPolicy:                 enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
		WorkflowExecutionErrorWhenAlreadyStarted: true,
		TypedSearchAttributes:                    temporal.NewSearchAttributes(tenantAttribute.ValueSet(string(row.Tenant)), kindAttribute.ValueSet(row.Kind)),
		StaticSummary:                            row.Name,
		EnableEagerStart:                         true, // a worker of this process takes the first task along
	}, berth.WorkflowOf(berth.Kind(row.Kind)), berth.JobInput{Job: row.Job})
	d.note(ctx, err)
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
