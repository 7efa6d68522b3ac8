package workflows_test

import (
	"testing"
	"time"

	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/failure"
)

// led is a gang of three of which the first members lead.
func led(t *testing.T, leaders int) *world {
	view := granted(1, 3)
	for i := range leaders {
		view.Slots[i].Leads = true
	}
	return newWorld(t, view)
}

func TestTheEndOfTheLeadingMembersStopsTheOthers(t *testing.T) {
	t.Parallel()
	w := led(t, 1)
	w.at(time.Hour, func() { w.exit(100, exited(0)) })
	ordered := failure.Exit{Cause: failure.CauseOrdered, Code: 143, StartedAt: start, FinishedAt: start}
	w.at(time.Hour+time.Minute, func() { w.exit(101, ordered) })
	w.at(time.Hour+2*time.Minute, func() {
		w.decide(1, berth.Succeeded)
		w.exit(102, ordered)
	})
	w.execute()
	w.want("reserve", "stop 1", "settle 1")
}

func TestTheEndOfAFollowerStopsNobody(t *testing.T) {
	t.Parallel()
	w := led(t, 1)
	w.at(time.Hour, func() { w.exit(101, exited(0)) })
	w.at(2*time.Hour, func() {
		if n := w.called("stop 1"); n != 0 {
			t.Errorf("%d stops after a follower had ended", n)
		}
		w.exit(102, exited(0))
	})
	w.at(3*time.Hour, func() {
		w.decide(1, berth.Succeeded)
		w.exit(100, exited(0))
	})
	w.execute()
	w.want("reserve", "settle 1")
}

// A worker of the version before decided after the end of the leading member to stop no other. A replay keeps that
// decision, and the next one stops the others.
func TestADecisionOfTheVersionBeforeHoldsUntilTheNextPoke(t *testing.T) {
	t.Parallel()
	w := led(t, 1)
	w.env.OnGetVersion("lead-ended-1", workflow.DefaultVersion, workflow.Version(1)).Return(workflow.DefaultVersion)
	w.at(time.Hour, func() { w.exit(100, exited(0)) })
	w.at(2*time.Hour, func() {
		if n := w.called("stop 1"); n != 0 {
			t.Errorf("%d stops in a decision of the version before", n)
		}
		w.poke()
	})
	w.at(3*time.Hour, func() { w.exit(101, exited(143)) })
	w.at(4*time.Hour, func() {
		w.decide(1, berth.Succeeded)
		w.exit(102, exited(143))
	})
	w.execute()
	w.want("reserve", "load", "stop 1", "settle 1")
}

// The versions of decisions are events of a history, of which other gangs get none.
func TestOnlyGangsWithALeadingGroupRecordVersions(t *testing.T) {
	t.Parallel()
	for leaders := range 2 {
		w := led(t, leaders)
		versions := 0
		w.env.OnGetVersion("lead-ended-1", workflow.DefaultVersion, workflow.Version(1)).
			Return(func(string, workflow.Version, workflow.Version) workflow.Version { versions++; return 1 }).Maybe()
		w.at(time.Hour, func() { w.exit(100, exited(0)) })
		w.at(2*time.Hour, func() { w.exit(101, exited(0)) })
		w.at(3*time.Hour, func() {
			w.decide(1, berth.Succeeded)
			w.exit(102, exited(0))
		})
		w.execute()
		if versions != leaders {
			t.Errorf("%d versions with %d leading members", versions, leaders)
		}
	}
}

// A worker of the version before saw the end of the leading member without a stop: its view had no leaders.
func TestAMissedEndOfTheLeadingMembersStopsTheOthers(t *testing.T) {
	t.Parallel()
	w := led(t, 0)
	w.at(time.Hour, func() { w.exit(100, exited(0)) })
	w.at(2*time.Hour, func() {
		if n := w.called("stop 1"); n != 0 {
			t.Errorf("%d stops without a leader", n)
		}
		w.slot(100, func(s *berth.Slot) { s.Leads = true })
		w.poke()
	})
	w.at(3*time.Hour, func() { w.exit(101, exited(143)) })
	w.at(4*time.Hour, func() {
		w.decide(1, berth.Succeeded)
		w.exit(102, exited(143))
	})
	w.execute()
	w.want("reserve", "load", "stop 1", "settle 1")
}
