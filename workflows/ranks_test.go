package workflows_test

import (
	"errors"
	"testing"
	"time"

	"berth"
	"berth/failure"
	"berth/wire"
)

func TestAGangIsStoppedAfterItsFirstBadRank(t *testing.T) {
	t.Parallel()
	w := newWorld(t, granted(1, 3))
	w.at(time.Hour, func() { w.exit(101, exited(1)) })
	ordered := failure.Exit{Cause: failure.CauseOrdered, Code: 143, StartedAt: start, FinishedAt: start}
	w.at(time.Hour+time.Minute, func() { w.exit(100, ordered) })
	w.at(time.Hour+2*time.Minute, func() {
		w.decide(1, berth.Failed)
		w.exit(102, ordered)
	})
	w.execute()
	w.want("reserve", "stop 1", "settle 1")
	for i := range 3 {
		w.wantRuns(berth.AllocationID(100+i), 1)
	}
}

func TestAGangInOrderIsNotStopped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, granted(1, 3))
	for i := range 3 {
		w.at(time.Duration(i+1)*time.Hour, func() {
			w.decide(1, berth.Succeeded)
			w.exit(berth.AllocationID(100+i), exited(0))
		})
	}
	w.execute()
	w.want("reserve", "settle 1")
}

func TestAGangIsStoppedWhenARankFallsSilent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, granted(1, 3))
	w.at(time.Hour, func() {
		w.slot(102, func(s *berth.Slot) { s.State = berth.AllocOrphaned })
		w.poke()
	})
	w.at(time.Hour+time.Minute, func() { w.exit(100, exited(143)) })
	w.at(time.Hour+2*time.Minute, func() {
		w.decide(1, berth.Retrying)
		w.exit(101, exited(143))
	})
	w.at(2*time.Hour, func() {
		w.change(func(row *wire.JobView) { *row = wire.JobView{State: berth.Canceled} })
		w.poke()
	})
	w.execute() // though nobody answers for the silent rank
	w.want("reserve", "load", "stop 1", "settle 1", "reserve", "reserve")
}

func TestALoneRankThatIsGivenUpIsSettled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, granted(1, 1))
	w.at(time.Hour, func() {
		w.slot(100, func(s *berth.Slot) { s.State = berth.AllocOrphaned })
		w.decide(1, berth.Failed)
		w.poke()
	})
	w.execute()
	w.want("reserve", "load", "settle 1")
}

func TestALostWaiterIsNoVerdict(t *testing.T) {
	t.Parallel()
	w := newWorld(t, granted(1, 1))
	w.at(time.Hour, func() { w.finish(100, wire.RunResult{}, errTimeout) })
	w.at(2*time.Hour, func() { w.finish(100, wire.RunResult{}, errors.New("agent is stopping")) })
	w.at(3*time.Hour, func() { w.finish(100, wire.RunResult{Phase: berth.PhaseRunning}, nil) })
	w.at(5*time.Hour, func() {
		w.decide(1, berth.Succeeded)
		w.exit(100, exited(0))
	})
	w.execute()
	w.want("reserve", "load", "load", "load", "settle 1")
	w.wantRuns(100, 4)
}

func TestALostWaiterOfARankThatHasEndedIsNotReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, granted(1, 1))
	w.at(time.Hour, func() {
		w.decide(1, berth.Succeeded)
		w.seal(100)
		w.finish(100, wire.RunResult{}, errTimeout)
	})
	w.execute()
	w.want("reserve", "load", "settle 1")
	w.wantRuns(100, 1)
}

func TestASupersededAttemptIsLeftBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t, granted(1, 1))
	w.at(time.Hour, func() { // the reconciler settled it, and the leader placed it again
		w.decide(1, berth.Retrying)
		w.grant(2, 1)
		w.poke()
	})
	w.at(2*time.Hour, func() {
		w.decide(2, berth.Succeeded)
		w.exit(200, exited(0))
	})
	w.execute()
	w.want("reserve", "load", "settle 1", "reserve", "settle 2")
	w.wantRuns(100, 1)
	w.wantRuns(200, 1)
}

func TestAJobThatSomebodyElseSettledEndsItsWorkflow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, granted(1, 1))
	w.at(time.Hour, func() {
		w.decide(1, berth.Failed)
		w.change(func(row *wire.JobView) { *row = wire.JobView{State: berth.Failed, Attempt: 1} })
		w.poke()
	})
	w.execute()
	w.want("reserve", "load", "settle 1")
}

func TestWhatDoesNotStopInTimeIsKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, granted(1, 1))
	w.env.SetStartTime(start)
	w.at(time.Hour, func() {
		w.change(func(row *wire.JobView) {
			row.State, row.StopBy = berth.Preempting, start.Add(time.Hour+30*time.Second)
		})
		w.poke()
		w.poke()
	})
	w.at(time.Hour+35*time.Second, func() {
		if w.called("escalate 1") != 0 {
			t.Error("killed before the machine had time to say that it did")
		}
	})
	w.at(time.Hour+45*time.Second, func() {
		if w.called("escalate 1") != 1 {
			t.Error("not killed")
		}
		w.change(func(row *wire.JobView) { row.StopBy = time.Time{} })
	})
	w.at(2*time.Hour, func() {
		w.decide(1, berth.Failed)
		w.exit(100, exited(137))
	})
	w.execute()
	if n := w.called("escalate 1"); n != 1 {
		t.Errorf("killed %d times", n)
	}
}

func TestARankThatIsWithdrawnNeedsNoMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, granted(1, 1))
	w.at(time.Minute, func() { // a cancel releases what no machine has claimed
		w.slot(100, func(s *berth.Slot) { s.State, s.Sealed = berth.AllocReleased, true })
		w.decide(1, berth.Canceled)
		w.env.SignalWorkflow(berth.SignalCancel, nil)
	})
	w.execute()
	w.want("reserve", "cancel", "settle 1")
}
