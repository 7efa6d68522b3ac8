package lifecycle

import (
	"berth"
	"berth/wire"
)

// Saved is the part of an ended job that the choice of a checkpoint needs.
type Saved struct {
	Succeeded bool
	Had       bool             // a step was verified once, whether or not it is left
	Steps     []SavedStep      // verified ones, by step and attempt, newest first
	From      *wire.StartPoint // the checkpoint from which the job itself started; nil: none
}

// SavedStep is a verified checkpoint.
type SavedStep struct {
	Attempt int
	Step    int64
	Members int
	Bytes   int64
}

// Resume returns the checkpoint from which a successor of an ended job starts, and nil for a
// start from the beginning. saved holds the job and, as far as their rows are left, the jobs
// from which it started directly or through others.
//
// The newest step of the job itself counts first, then the step from which the job started,
// and then the older steps before that one: a restore has found the step damaged. lost reports
// that the job had checkpoints and none is left.
func Resume(id berth.JobID, saved map[berth.JobID]Saved) (source *wire.StartPoint, lost bool) {
	at, job := id, saved[id]
	if job.Succeeded {
		return nil, false // nothing is left to do
	}
	if len(job.Steps) > 0 {
		return job.Steps[0].of(at), false
	}
	had := job.Had
	// An id in a chain is higher than that of its source, so a chain has no circle; the bound
	// holds for rows written by hand.
	for range len(saved) + 1 {
		if job.From == nil {
			break
		}
		had = true
		from := *job.From
		at, job = from.Job, saved[from.Job]
		for _, s := range job.Steps {
			if s.Step < from.Step || s.Step == from.Step && s.Attempt <= from.Attempt {
				return s.of(at), false
			}
		}
	}
	return nil, had
}

func (s SavedStep) of(job berth.JobID) *wire.StartPoint {
	return &wire.StartPoint{Job: job, Attempt: s.Attempt, Step: s.Step, Members: s.Members, Bytes: s.Bytes}
}
