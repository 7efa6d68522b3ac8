package check

import (
	"context"
	"maps"
	"slices"
	"time"

	"berth"
	"berth/db/history"
)

// Source is the place that a history is read from, as of one moment; *db.History is one.
// Each method calls its function with one record after the other and stops at an error.
// since leaves out work that had ended before.
type Source interface {
	Cluster(ctx context.Context) (history.Cluster, error)
	Jobs(ctx context.Context, since time.Time, each func(history.Job) error) error
	Machines(ctx context.Context, since time.Time, each func(history.Machine) error) error
	Families(ctx context.Context, since time.Time, each func(history.Family) error) error
	Holdings(ctx context.Context, since time.Time, each func(history.Holding) error) error
	Launches(ctx context.Context, since time.Time, each func(history.Launched) error) error
	Missing(ctx context.Context, ids []berth.JobID) ([]berth.JobID, error)
}

// Result is the outcome of a run.
type Result struct {
	Breaches []Breach `json:"breaches"`
	Jobs     int      `json:"jobs"`     // number checked
	Machines int      `json:"machines"` // number checked
}

// Run verifies a history while reading. Its memory holds one page of jobs, one machine's
// allocations, every container event, the changes of tenants, the jobs that hold capacity
// at one moment, the launches for which tenants pay, and the breaches.
func Run(ctx context.Context, s Source, events []ContainerEvent, accepted []Accepted, o Options) (Result, error) {
	c, err := s.Cluster(ctx)
	if err != nil {
		return Result{}, err
	}
	v := newVerifier(c, events, accepted, o)
	r := Result{Breaches: []Breach{}}
	if err := s.Jobs(ctx, o.Since, func(j history.Job) error {
		r.Jobs++
		v.job(j)
		return ctx.Err()
	}); err != nil {
		return r, err
	}
	if err := s.Machines(ctx, o.Since, func(m history.Machine) error {
		r.Machines++
		v.machine(m)
		return ctx.Err()
	}); err != nil {
		return r, err
	}
	if err := s.Families(ctx, o.Since, func(f history.Family) error {
		v.family(f)
		return ctx.Err()
	}); err != nil {
		return r, err
	}
	if err := s.Holdings(ctx, o.Since, func(x history.Holding) error {
		v.holding(x)
		return ctx.Err()
	}); err != nil {
		return r, err
	}
	if err := s.Launches(ctx, o.Since, func(l history.Launched) error {
		v.launched(l)
		return ctx.Err()
	}); err != nil {
		return r, err
	}
	missing, err := v.missing(ctx, s)
	if err != nil {
		return r, err
	}
	v.finish(missing)
	r.Breaches = append(r.Breaches, v.breaches...)
	return r, nil
}

// missing returns the jobs that containers or accepted submits name and that have no row.
func (v *verifier) missing(ctx context.Context, s Source) ([]berth.JobID, error) {
	named := map[berth.JobID]bool{}
	for id := range v.lives {
		named[id] = true
	}
	for _, a := range v.accepted {
		named[a.Job] = true
	}
	if len(named) == 0 {
		return nil, nil
	}
	return s.Missing(ctx, slices.Sorted(maps.Keys(named)))
}
