package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
// that the list lacks before it starts one. A fault of one job, such as a workflow
// that cannot be started, does not skip the later steps; a failed listing does.
func (r *reconciler) compare(ctx context.Context) error {
	live, err := r.DB.Jobs.ListLive(ctx, r.Ages.Submitted)
	if err != nil {
		return err
	}
	started := r.startSubmitted(ctx, live)
	if r.passes%compareEvery != 0 {
		return started
	}
	open := map[berth.JobID]bool{}
	if err := r.Workflows.Open(ctx, func(id berth.JobID) { open[id] = true }); err != nil {
		return errors.Join(started, fmt.Errorf("list open workflows: %w", err))
	}
	// Ended jobs come first: most of their workflows take a poke, which calls nothing here.
	closed := r.closeEnded(ctx, live, maps.Clone(open))
	return errors.Join(started, closed, r.startMissing(ctx, live, open), r.replaceDeaf(ctx, live, open))
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

// faultLimit is the number of failed calls after which a step of the comparison leaves the rest to a
// later pass: calls that fail for one job may succeed for the next, but each may take seconds.
const faultLimit = 10

// startSubmitted starts the workflows that the submit's own start has missed, as
// far as the gate has room. A start that fails does not hold up the other jobs, and is not due again at once.
func (r *reconciler) startSubmitted(ctx context.Context, live []db.Aged) error {
	if !r.mayStart() {
		return nil
	}
	n := 0
	var faults []error
	var submitted []db.Aged
	for _, j := range live {
		if j.State != berth.Submitted {
			continue
		}
		submitted = append(submitted, j)
		// A first step that is late is not hastened by another start of its workflow.
		if n >= passLimit || len(faults) >= faultLimit || ctx.Err() != nil {
			continue
		}
		if !r.mayStart() || !r.pace.due("submitted", j, time.Now()) {
			continue
		}
		if err := r.Workflows.Start(ctx, j.ID, false); err != nil {
			faults = append(faults, fmt.Errorf("start the workflow of job %s: %w", j.ID, err))
			continue
		}
		r.countStart()
		n++
	}
	r.pace.forget("submitted", submitted)
	r.did("workflow_started", n)
	return errors.Join(faults...)
}

// startMissing starts the workflows of live rows that have none. One that has
// completed although its row lives on, as after the restore of a backup, is
// started again: its first step reads the row. A submitted row is new work, which
// needs room at the gate as every other start does. A pass that its limits end is
// continued by the next one, so jobs whose calls fail do not hold up the others.
func (r *reconciler) startMissing(ctx context.Context, live []db.Aged, open map[berth.JobID]bool) error {
	checked, started := 0, 0
	var faults []error
	from := r.missed
	r.missed = ""
	for _, j := range startingAt(live, from) {
		if open[j.ID] || j.Age < r.Ages.NoWorkflow {
			continue
		}
		if j.State == berth.Submitted && !r.mayStart() {
			continue
		}
		if checked >= passLimit || len(faults) >= faultLimit || ctx.Err() != nil {
			r.missed = j.ID
			break
		}
		checked++
		again, err := r.startIfMissing(ctx, j)
		if err != nil {
			faults = append(faults, err)
		}
		if again {
			started++
		}
	}
	r.did("workflow_restarted", started)
	return errors.Join(faults...)
}

// startIfMissing starts the workflow of a live row unless Temporal has an open one. It reports whether it
// has started one.
func (r *reconciler) startIfMissing(ctx context.Context, j db.Aged) (bool, error) {
	isOpen, completed, err := r.Workflows.Describe(ctx, j.ID)
	if err != nil {
		return false, fmt.Errorf("describe the workflow of job %s: %w", j.ID, err)
	}
	if isOpen {
		return false, nil
	}
	if err := r.Workflows.Start(ctx, j.ID, completed); err != nil {
		return false, fmt.Errorf("start the workflow of job %s: %w", j.ID, err)
	}
	if j.State == berth.Submitted {
		r.countStart()
	}
	return true, nil
}

// Bounds of one comparison: the workflows that it asks about, and those that it replaces, which lose
// their place in Temporal's queue.
const (
	askLimit     = 50
	replaceLimit = 10
)

// replaceDeaf ends the workflows of submitted jobs whose first task no worker carries out, though this
// leader has led, and Temporal has had room, for that long. A later pass starts them again. Temporal's
// matching service drops a task after an internal error, and a task without a place in its queue is never
// tried again; its workflow hears no signal, and only the workflow queues a submitted job.
func (r *reconciler) replaceDeaf(ctx context.Context, live []db.Aged, open map[berth.JobID]bool) error {
	if time.Since(r.since) < r.Ages.Deaf || !r.mayStart() {
		return nil
	}
	asked, ended := 0, 0
	var faults []error
	from := r.asked
	r.asked = ""
	for _, j := range startingAt(live, from) {
		if j.State != berth.Submitted || !open[j.ID] || j.Age < r.Ages.Deaf {
			continue
		}
		if asked >= askLimit || ended >= replaceLimit || len(faults) >= faultLimit || ctx.Err() != nil {
			r.asked = j.ID
			break
		}
		asked++
		deaf, err := r.endIfDeaf(ctx, j.ID)
		if err != nil {
			faults = append(faults, err)
		}
		if deaf {
			ended++
		}
	}
	r.did("workflow_replaced", ended)
	return errors.Join(faults...)
}

// endIfDeaf ends the workflow of a submitted job if its first task has waited for Ages.Deaf. It reports
// whether it has ended the workflow.
func (r *reconciler) endIfDeaf(ctx context.Context, id berth.JobID) (bool, error) {
	waited, err := r.Workflows.Pending(ctx, id)
	if err != nil {
		return false, fmt.Errorf("read the task of the workflow of job %s: %w", id, err)
	}
	if waited < r.Ages.Deaf {
		return false, nil
	}
	r.Logger.Warn("workflow does not begin, will be started again", "job_id", id, "waited", waited)
	if err := r.Workflows.Terminate(ctx, id, "no worker carried out its first task"); err != nil {
		return false, fmt.Errorf("end the workflow of job %s: %w", id, err)
	}
	return true, nil
}

// closeEnded pokes the open workflows of ended jobs, and terminates the ones that stay
// open, at most passLimit of each. Workflows without a row are counted and left to an operator: they may belong to
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
	var pokes, late []berth.JobID
	for _, j := range rows {
		delete(open, j.ID)
		switch {
		case !j.State.Terminal() || j.Age < r.Ages.Closing:
		case j.Age < r.Ages.Terminate && len(pokes) < passLimit:
			pokes = append(pokes, j.ID)
		case j.Age >= r.Ages.Terminate && len(late) < passLimit:
			late = append(late, j.ID)
		}
	}
	r.Poker.Poke(pokes...)
	r.did("workflow_poked", len(pokes))
	var faults []error
	for _, id := range late {
		if err := r.Workflows.Terminate(ctx, id, "its job has ended"); err != nil {
			faults = append(faults, fmt.Errorf("terminate the workflow of job %s: %w", id, err))
		}
	}
	r.did("workflow_terminated", len(late)-len(faults))
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
	return errors.Join(faults...)
}
