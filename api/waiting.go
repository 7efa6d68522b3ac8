package api

import (
	"context"
	"fmt"
	"slices"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/explain"
	"berth/placement"
	"berth/spec"
	"berth/wire"
)

// waitReasons fills in the field Waiting of jobs. The row of a job comes first: a job that
// no longer waits has no reason, and a reason that a board has for another state of the job
// is left out (adr/0042).
type waitReasons struct {
	jobs      *db.Jobs
	explainer boards
	control   controlPlane
	scaling   notes
}

// boards makes the boards of waiting jobs; see explain.Explainer.
type boards interface {
	Board(ctx context.Context, missing func(*explain.Board) bool) *explain.Board
}

// notes are the notes of the scaler; see db.Scaling.
type notes interface {
	ShowNotes(ctx context.Context, ids []berth.JobID) (map[berth.JobID]db.ShownNote, error)
}

// fill sets the reason of all jobs in a list that wait, and leaves the others as they are. It
// does not wait for the next board if the present one lacks a job: beside a flood a list would
// wait for each job that was queued a moment ago. The reason of such a job is unknown for now.
func (w *waitReasons) fill(ctx context.Context, jobs ...*wire.Job) error {
	return w.fillFrom(ctx, false, jobs)
}

// fillFrom sets the reason of all jobs that wait. All jobs of one call share one board. await
// means that the call waits for a board with these jobs. Without waiting jobs nothing is read.
func (w *waitReasons) fillFrom(ctx context.Context, await bool, jobs []*wire.Job) error {
	var waiting []*wire.Job
	for _, j := range jobs {
		if j.Status.Waiting() {
			waiting = append(waiting, j)
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	needs, err := w.needs(ctx, waiting)
	if err != nil {
		return err
	}
	var missing func(b *explain.Board) bool
	if await {
		missing = func(b *explain.Board) bool {
			return slices.ContainsFunc(waiting, func(j *wire.Job) bool {
				_, listed := onBoard(b, j)
				return j.Status != berth.Submitted && j.Tally == nil && !listed
			})
		}
	}
	board := w.explainer.Board(ctx, missing)
	for _, j := range waiting {
		j.Waiting = w.reason(j, needs, board)
	}
	return w.addNotes(ctx, waiting)
}

// addNotes adds the notes of the scaler to the reasons of waiting jobs.
func (w *waitReasons) addNotes(ctx context.Context, jobs []*wire.Job) error {
	ids := waitingIDs(jobs)
	if len(ids) == 0 {
		return nil
	}
	notes, err := w.scaling.ShowNotes(ctx, ids)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if n, ok := notes[j.ID]; ok {
			withCloud(j.Waiting, n)
		}
	}
	return nil
}

// fillAll sets the reasons of a job and of its steps, from one board. It waits a moment for a
// board with the job. A step has the reason of its own document.
func (w *waitReasons) fillAll(ctx context.Context, job *wire.Job) error {
	var ids []berth.JobID
	for _, s := range job.Steps {
		if s.Status.Waiting() {
			ids = append(ids, s.Job)
		}
	}
	if err := w.control.tellQuarantine(ctx, job); err != nil {
		return err
	}
	if len(ids) == 0 {
		return w.fillFrom(ctx, true, []*wire.Job{job})
	}
	// The caller may see the pipeline, and so its steps.
	steps, err := w.jobs.Among(ctx, "", ids)
	if err != nil {
		return err
	}
	all, each := []*wire.Job{job}, map[berth.JobID]*wire.Job{}
	for id, step := range steps {
		each[id] = &step
		all = append(all, &step)
	}
	if err := w.control.tellPause(ctx, all[1:]...); err != nil {
		return err
	}
	if err := w.fillFrom(ctx, true, all); err != nil {
		return err
	}
	for i, s := range job.Steps {
		if step := each[s.Job]; step != nil {
			job.Steps[i].Waiting = step.Waiting
		}
	}
	return nil
}

// needs reads the unmet needs of the blocked steps and jobs in the list.
func (w *waitReasons) needs(ctx context.Context, jobs []*wire.Job) (map[berth.JobID]db.Need, error) {
	var steps []berth.JobID
	for _, j := range jobs {
		if (j.Step != "" || j.Parent == nil) && j.Status == berth.Submitted {
			steps = append(steps, j.ID)
		}
	}
	if len(steps) == 0 {
		return nil, nil
	}
	return w.jobs.Needs(ctx, steps)
}

// reason returns why a job waits, or nil for a job about which nothing is known: without a
// board, or a parent without waiting children. Facts of the row come before the board.
func (w *waitReasons) reason(j *wire.Job, needs map[berth.JobID]db.Need, board *explain.Board) *wire.Waiting {
	need, blocked := needs[j.ID]
	entry, listed := onBoard(board, j)
	var out *wire.Waiting
	switch {
	case j.Reason != nil && j.Reason.Code == berth.ReasonAdmissionPaused: // see tellPause
		out = &wire.Waiting{Code: "paused", Message: j.Reason.Message}
	case j.Held && j.Reason != nil && j.Reason.Code == berth.ReasonSuspended:
		out = &wire.Waiting{Code: "held", Message: j.Reason.Message}
	case j.Held:
		out = &wire.Waiting{Code: "held", Message: "on hold"}
	case blocked:
		out = &wire.Waiting{Code: "needs", Message: needText(need)}
	case j.Tally != nil:
		if !listed {
			return nil
		}
		out = reasonOf(entry)
	case j.EligibleAt != nil && j.EligibleAt.After(time.Now()):
		out = &wire.Waiting{Code: "not_eligible", Message: "retrying at " + backoffText(*j.EligibleAt) + " (backoff)"}
	case j.Status == berth.Submitted:
		out = &wire.Waiting{Code: "not_accepted", Message: "waiting for the control plane to pick it up"}
	case listed:
		out = reasonOf(entry)
	case board != nil:
		out = &wire.Waiting{Code: "unknown", Message: "changed a moment ago; the reason is not known yet"}
	default:
		return nil
	}
	if text := w.control.overloaded(j.Status); text != "" && !blocked && out.Code != "held" && out.Code != "paused" {
		out = &wire.Waiting{Code: "control_plane", Message: "waiting for the control plane: " + text}
	}
	if listed || out.Code == "unknown" {
		at := board.At.UTC()
		out.AsOf = &at
	}
	if listed && j.Tally == nil {
		out.Position, out.EstimatedStart, out.Reserved = entry.Position, known(entry.Start), entry.Reserved
		out.EstimatedBy = estimatedBy(entry.Start, entry.Guess)
	}
	return out
}

// onBoard returns the entry of a job: of a parent its first waiting child. ok is false if the
// job has changed since the reading: a reason for another state would be wrong.
func onBoard(b *explain.Board, j *wire.Job) (w placement.Waiting, ok bool) {
	if b == nil {
		return w, false
	}
	if j.Tally != nil {
		return b.FirstOf(j.ID)
	}
	w, ok = b.Of(j.ID)
	return w, ok && w.Held == j.Held && w.Attempt == j.Attempt && w.Priority == int(j.Priority)
}

// reasonOf renders the reason of a board.
func reasonOf(w placement.Waiting) *wire.Waiting {
	if w.Code == "" {
		return &wire.Waiting{Code: "ready", Message: "ready to start; the leader places it in its next pass"}
	}
	code, quota := quotaCode(w.Code)
	return &wire.Waiting{Code: code, Quota: quota, Message: w.Text}
}

// quotaCode returns the code of a blocker in the API: every setting of a quota has the code
// quota, and the name of the setting.
func quotaCode(code string) (public, quota string) {
	switch code {
	case "limit", "max_running", "budget":
		return "quota", code
	case "borrowing":
		return "quota", "borrow"
	}
	return code, ""
}

// needText describes the unmet need of a step or a job.
func needText(n db.Need) string {
	switch {
	case n.Job != "":
		return fmt.Sprintf("waits for job %s, %s (%s)", n.Job, n.Name, n.Status)
	case n.Step != "" && n.Final:
		return fmt.Sprintf("is a final step; step %s is %s", n.Step, n.Status)
	case n.Step != "" && n.When == spec.WhenFailure:
		return fmt.Sprintf("runs after a failure; needs step %s (%s)", n.Step, n.Status)
	case n.Step != "":
		return fmt.Sprintf("needs step %s (%s)", n.Step, n.Status)
	case n.Around != "":
		return "waiting for its pipeline " + n.Around + " to start"
	}
	return "its needs are met; it starts in a moment"
}

// backoffText formats the time of a next attempt: the time of day, unless it is a day away.
func backoffText(at time.Time) string {
	if time.Until(at) < 24*time.Hour {
		return at.UTC().Format("15:04:05Z")
	}
	return at.UTC().Format("2006-01-02 15:04Z")
}
