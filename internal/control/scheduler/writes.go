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
	hangs    hangs
	lists    lists
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

// hangs judges hung gangs. *db.Attempts implements it.
type hangs interface {
	JudgeHangs(ctx context.Context, term db.Term, limit int) (int, error)
}

// lists stores the elements of arrays. *db.Parents implements it.
type lists interface {
	FillArray(ctx context.Context, id berth.JobID, each []map[string]string, fault string) error
}
