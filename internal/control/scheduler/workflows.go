package scheduler

import (
	"context"
	"fmt"
	"time"

	"berth"
	"berth/db"
)

// workflows compares rows and workflows for at most Ages.Compare. On a busy
// Temporal the calls of the comparison wait for calls of more urgent classes; the
// other steps of the reconciler, which relieve Temporal, must not wait with it.
func (r *reconciler) workflows(ctx context.Context) error {
	if r.Workflows == nil {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, r.Ages.Compare)
	defer cancel()
	err := r.compare(within)
	if err != nil && ctx.Err() == nil && within.Err() != nil {
		r.Logger.Warn("comparison with Temporal cut short, will be repeated", "after", r.Ages.Compare, "err", err)
		return nil
	}
	return err
}

// compare compares the live rows with Temporal's open workflows. Temporal's list
// lags, so the comparison never acts on the list alone: it describes a workflow
// that the list lacks before it starts one.
func (r *reconciler) compare(ctx context.Context) error {
	live, err := r.DB.Jobs.ListLive(ctx, r.Ages.Submitted)
	if err != nil {
		return err
	}
	if err := r.startSubmitted(ctx, live); err != nil || r.passes%compareEvery != 0 {
		return err
	}
	open := map[berth.JobID]bool{}
	if err := r.Workflows.Open(ctx, func(id berth.JobID) { open[id] = true }); err != nil {
		return fmt.Errorf("list open workflows: %w", err)
	}
	if err := r.startMissing(ctx, live, open); err != nil {
		return err
	}
	return r.closeEnded(ctx, live, open)
}

// mayStart reports whether the gate has room for the start of a submitted job's
// workflow. Rows without room stay as they are; a later pass finds them.
func (r *reconciler) mayStart() bool { return r.Gate == nil || r.Gate.Starts.Room() > 0 }

// countStart reports the start of a submitted job's workflow to the gate.
func (r *reconciler) countStart() {
	if r.Gate != nil {
		r.Gate.Starts.Pass(1)
	}
}

// startSubmitted starts the workflows that the submit's own start has missed, as
// far as the gate has room.
func (r *reconciler) startSubmitted(ctx context.Context, live []db.Aged) error {
	if !r.mayStart() {
		return nil
	}
	n := 0
	var submitted []db.Aged
	for _, j := range live {
		if j.State != berth.Submitted {
			continue
		}
		submitted = append(submitted, j)
		// A first step that is late is not hastened by another start of its workflow.
		if n >= passLimit || !r.mayStart() || !r.pace.due("submitted", j, time.Now()) {
			continue
		}
		if err := r.Workflows.Start(ctx, j.ID, false); err != nil {
			return fmt.Errorf("start the workflow of job %s: %w", j.ID, err)
		}
		r.countStart()
		n++
	}
	r.pace.forget("submitted", submitted)
	r.did("workflow_started", n)
	return nil
}

// startMissing starts the workflows of live rows that have none. One that has
// completed although its row lives on, as after the restore of a backup, is
// started again: its first step reads the row. A submitted row is new work, which
// needs room at the gate as every other start does.
func (r *reconciler) startMissing(ctx context.Context, live []db.Aged, open map[berth.JobID]bool) error {
	checked, started := 0, 0
	for _, j := range live {
		if open[j.ID] || j.Age < r.Ages.NoWorkflow || checked >= passLimit {
			continue
		}
		if j.State == berth.Submitted && !r.mayStart() {
			continue
		}
		checked++
		isOpen, completed, err := r.Workflows.Describe(ctx, j.ID)
		if err != nil {
			return fmt.Errorf("describe the workflow of job %s: %w", j.ID, err)
		}
		if isOpen {
			continue
		}
		if err := r.Workflows.Start(ctx, j.ID, completed); err != nil {
			return fmt.Errorf("start the workflow of job %s: %w", j.ID, err)
		}
		if j.State == berth.Submitted {
			r.countStart()
		}
		started++
	}
	r.did("workflow_restarted", started)
	return nil
}

// closeEnded pokes the open workflows of ended jobs, and terminates the ones that stay
// open. Workflows without a row are counted and left to an operator: they may belong to
// rows that a restored backup lacks.
func (r *reconciler) closeEnded(ctx context.Context, live []db.Aged, open map[berth.JobID]bool) error {
	for _, j := range live {
		delete(open, j.ID)
	}
	suspects := make([]berth.JobID, 0, len(open))
	for id := range open {
		suspects = append(suspects, id)
	}
	rows, err := r.DB.Jobs.StatesOf(ctx, suspects)
	if err != nil {
		return err
	}
	var pokes []berth.JobID
	terminated := 0
	for _, j := range rows {
		delete(open, j.ID)
		switch {
		case !j.State.Terminal() || j.Age < r.Ages.Closing || len(pokes) >= passLimit:
		case j.Age < r.Ages.Terminate:
			pokes = append(pokes, j.ID)
		default:
			if err := r.Workflows.Terminate(ctx, j.ID, "its job has ended"); err != nil {
				return fmt.Errorf("terminate the workflow of job %s: %w", j.ID, err)
			}
			terminated++
		}
	}
	r.did("workflow_poked", len(pokes))
	r.did("workflow_terminated", terminated)
	r.Poker.Poke(pokes...)
	r.Metrics.forgotten.Set(float64(len(open)))
	if len(open) > 0 && len(open) != r.strays {
		some := ""
		for id := range open {
			some = berth.JobWorkflowID(id)
			break
		}
		r.Logger.Error("open workflows without a job row", "count", len(open), "example", some)
	}
	r.strays = len(open)
	return nil
}
