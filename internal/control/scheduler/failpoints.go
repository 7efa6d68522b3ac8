//go:build failpoints

package scheduler

import (
	"context"
	"time"

	"berth"
	"berth/db"
	"berth/internal/lib/failpoint"
	"berth/wire"
)

// withFailpoints returns stores that may die before and after each call. Programs without the build tag
// have none of this.
func withFailpoints(w writes) writes {
	w.starts, w.verdicts, w.fires = failingStarts{w.starts}, failingVerdicts{w.verdicts}, failingFires{w.fires}
	w.hangs, w.lists = failingHangs{w.hangs}, failingLists{w.lists}
	if w.clocks != nil {
		w.clocks = failingClocks{w.clocks}
	}
	return w
}

// failingStarts has the failpoints around the commit of placements. The one after GiveUpRepairs is
// hit only if nominations were deleted, so that a kill there always meets a change.
type failingStarts struct{ starts }

func (f failingStarts) CommitStarts(ctx context.Context, term db.Term, batch []berth.Start) (db.Committed, error) {
	if err := failpoint.Hit("leader.commit.before"); err != nil {
		return db.Committed{}, err
	}
	c, err := f.starts.CommitStarts(ctx, term, batch)
	if err != nil {
		return c, err
	}
	return c, failpoint.Hit("leader.commit.after")
}

func (f failingStarts) GiveUpRepairs(ctx context.Context, term db.Term, gangs []berth.JobID) (int, error) {
	n, err := f.starts.GiveUpRepairs(ctx, term, gangs)
	if err != nil || n == 0 {
		return n, err
	}
	return n, failpoint.Hit("leader.yield.after")
}

// failingVerdicts has the failpoints around the verdict on a silent machine.
type failingVerdicts struct{ verdicts }

func (f failingVerdicts) PassVerdict(ctx context.Context, term db.Term, id berth.MachineID,
	s db.Silence) (db.Verdict, error) {
	if err := failpoint.Hit("leader.lost.before"); err != nil {
		return db.Verdict{}, err
	}
	v, err := f.verdicts.PassVerdict(ctx, term, id, s)
	if err != nil {
		return v, err
	}
	return v, failpoint.Hit("leader.lost.after")
}

// failingClocks has the failpoints of every change of a clock.
type failingClocks struct{ clockStore }

// clockStore has another name than its method Clocks, so that a decorator can embed it.
type clockStore = Clocks

func (f failingClocks) SetClock(ctx context.Context, c db.Clock) error {
	return f.change(func() error { return f.clockStore.SetClock(ctx, c) })
}

func (f failingClocks) RemoveClock(ctx context.Context, id berth.ScheduleID) (existed bool, err error) {
	err = f.change(func() (err error) { existed, err = f.clockStore.RemoveClock(ctx, id); return err })
	return existed, err
}

func (failingClocks) change(call func() error) error {
	if err := failpoint.Hit("leader.clock.before"); err != nil {
		return err
	}
	if err := call(); err != nil {
		return err
	}
	return failpoint.Hit("leader.clock.after")
}

// failingFires has the failpoint between the decision of a fire and the leader's next act.
type failingFires struct{ Fires }

func (f failingFires) Fire(ctx context.Context, id berth.ScheduleID, at time.Time) (wire.FireResult, error) {
	result, err := f.Fires.Fire(ctx, id, at)
	if err != nil {
		return result, err
	}
	return result, failpoint.Hit("leader.fire.after")
}

// failingHangs has the failpoint after the order to stop a gang that hangs.
type failingHangs struct{ hangs }

func (f failingHangs) JudgeHangs(ctx context.Context, term db.Term, limit int) (int, error) {
	n, err := f.hangs.JudgeHangs(ctx, term, limit)
	if err != nil || n == 0 {
		return n, err
	}
	return n, failpoint.Hit("leader.hang.after")
}

// failingLists has the failpoints around the commit of an array's elements from a list.
type failingLists struct{ lists }

func (f failingLists) FillArray(ctx context.Context, id berth.JobID, each []map[string]string, fault string) error {
	if err := failpoint.Hit("leader.list.before"); err != nil {
		return err
	}
	if err := f.lists.FillArray(ctx, id, each, fault); err != nil {
		return err
	}
	return failpoint.Hit("leader.list.after")
}
