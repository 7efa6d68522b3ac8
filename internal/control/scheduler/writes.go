package scheduler

import (
	"context"

	"berth"
	"berth/db"
)

// writes are the calls of the leader that change the course of a job. In programs with failpoints
// these calls may die before and after their commit.
type writes struct {
	starts   starts
	verdicts verdicts
	clocks   Clocks // nil: schedules have no clocks
	fires    Fires
}

// starts commits placements. *db.Queue implements it.
type starts interface {
	CommitStarts(ctx context.Context, term db.Term, starts []berth.Start) (db.Committed, error)
	GiveUpRepairs(ctx context.Context, term db.Term, gangs []berth.JobID) (int, error)
}

// verdicts decides about silent machines. *db.Machines implements it.
type verdicts interface {
	PassVerdict(ctx context.Context, term db.Term, id berth.MachineID, s db.Silence) (db.Verdict, error)
}
