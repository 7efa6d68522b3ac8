package scheduler

import (
	"context"
	"fmt"

	"berth"
	"berth/db"
)

// workflows compares the live rows with Temporal's open workflows. Temporal's
// list lags, so nothing is done on its word alone: a workflow it lacks is
// described before it is started.
func (r *reconciler) workflows(ctx context.Context) error {
	if r.Workflows == nil {
		return nil
	}
	live, err := r.DB.LiveJobs(ctx, r.Ages.Submitted)
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

// startSubmitted starts the workflows that the submit's own start has missed.
func (r *reconciler) startSubmitted(ctx context.Context, live []db.Aged) error {
	n := 0
	for _, j := range live {
		if j.State != berth.Submitted || n >= passLimit {
			continue
		}
		if err := r.Workflows.Start(ctx, j.ID, false); err != nil {
			return fmt.Errorf("start the workflow of job %s: %w", j.ID, err)
		}
		n++
	}
	r.did("workflow_started", n)
	return nil
}

// startMissing starts the workflows of live rows that have none. One that has
// completed although its row lives on, as after the restore of a backup, is
// started again: its first step reads the row.
func (r *reconciler) startMissing(ctx context.Context, live []db.Aged, open map[berth.JobID]bool) error {
	checked, started := 0, 0
	for _, j := range live {
		if open[j.ID] || j.Age < r.Ages.NoWorkflow || checked >= passLimit {
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
		started++
	}
	r.did("workflow_restarted", started)
	return nil
}

// closeEnded pokes open workflows whose job has ended, and ends them if that
// does not help. Workflows without a row are counted and left to an operator:
// they may belong to rows that a restored backup lacks.
func (r *reconciler) closeEnded(ctx context.Context, live []db.Aged, open map[berth.JobID]bool) error {
	for _, j := range live {
		delete(open, j.ID)
	}
	suspects := make([]berth.JobID, 0, len(open))
	for id := range open {
		suspects = append(suspects, id)
	}
	rows, err := r.DB.StatesOf(ctx, suspects)
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
		r.Logger.Error("open workflows without a job; terminate them if no backup is being restored", "count", len(open), "example", some)
	}
	r.strays = len(open)
	return nil
}
