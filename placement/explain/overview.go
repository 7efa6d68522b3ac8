package explain

import (
	"cmp"
	"time"

	"berth"
	"berth/placement/queue"
)

// Waiting is a waiting job in an overview of the queue: its position and the first reason
// of its explanation. Both come from the same blockers, so they agree.
type Waiting struct {
	Job      berth.JobID
	Tenant   berth.TenantID
	Parent   berth.JobID // "": none
	Version  int64       // of the row that the overview is based on
	Attempt  int
	Priority int
	Held     bool

	Position int       // in the queue, from 1; 0: the job is not in the queue
	Band     int       // priority band; the highest goes first
	Share    float64   // of the cluster that the job's tenant uses now, 0 to 1
	Start    time.Time // as JobExplanation.Start; zero: unknown
	Reserved bool
	Guess    bool // as JobExplanation.Guess

	// Code is the code of the first blocker; "" if nothing keeps the job from starting.
	Code  string
	Text  string   // the reason in a few words
	Pools []string // pools with a machine that could run the job; shared, read-only
}

// Summarize fills in the reason of a job from its blockers, the first of which decides. A job
// without room also shows the jobs ahead, which get free room first, unless no machine
// accepts jobs at all.
func (w *Waiting) Summarize(list []Blocker, shut bool) {
	if len(list) == 0 {
		return
	}
	w.Code, w.Text = list[0].Code, list[0].short()
	if last := list[len(list)-1]; w.Code == "no_room" && !shut && last.Code == "behind" && len(list) > 1 {
		w.Text = last.short() + "; " + w.Text
	}
}

// short returns the text for tables.
func (b Blocker) short() string {
	return cmp.Or(b.Short, b.Text)
}

// Note returns the overview's row of a job, without its reason.
func (r *Reading) Note(x *queue.Contender, e *queue.Entry, w JobExplanation) Waiting {
	return Waiting{
		Job: e.ID, Tenant: e.Tenant, Parent: e.Parent, Version: e.Version, Attempt: e.Attempt,
		Priority: e.Priority, Held: e.Held,
		Position: w.Position, Band: int(e.Band), Start: w.Start, Reserved: w.Reserved, Guess: w.Guess,
		Pools: w.Fit.Pools,
		Share: queue.AmountsOf(x.Held.Capacity).Dominant(r.shares.Owned),
	}
}
