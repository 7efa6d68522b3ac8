package agent

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/failure"
)

// idleMember returns a member without a goroutine, and a function that stops its agent.
func idleMember(t *testing.T) (*member, func()) {
	agent, stop := context.WithCancelCause(t.Context())
	ctx, cancel := context.WithCancelCause(agent)
	m := &member{
		core: &core{ctx: ctx, log: slog.New(slog.DiscardHandler), reports: testReporter(1)},
		sup:  &Supervisor{ctx: agent}, cancel: cancel, orders: newOrders(),
	}
	return m, func() { stop(errAgentStops) }
}

// The second table of doc.go, for phases that end with the member.
func TestEventsFromOutsideLeadToRemoveOrLeft(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		event func(m *member, stopAgent func()) error
		want  phase
	}{
		{"abandoned", func(m *member, _ func()) error { m.abandon(); return context.Cause(m.ctx) }, phaseRemove},
		{"claim refused", func(*member, func()) error { return errAbandoned }, phaseRemove},
		{"fault", func(*member, func()) error { return errors.New("fault") }, phaseRemove},
		{"disowned", func(m *member, _ func()) error { m.disown(); return context.Cause(m.ctx) }, phaseLeft},
		{"agent stops", func(m *member, stop func()) error { stop(); return context.Cause(m.ctx) }, phaseLeft},
		{"agent stops in remove", func(m *member, stop func()) error { m.abandon(); stop(); return errors.New("engine") }, phaseLeft},
		{"abandoned, then disowned", func(m *member, _ func()) error { m.abandon(); m.disown(); return errAbandoned }, phaseRemove},
	} {
		m, stop := idleMember(t)
		if got := m.interrupted(c.event(m, stop)); got != c.want {
			t.Errorf("%s leads to %s, want %s", c.name, got, c.want)
		}
		if m.ctx.Err() == nil {
			t.Errorf("%s: the member's helpers go on", c.name)
		}
	}
}

// The same table, for phases that end with the preparation.
func TestEventsDuringThePreparation(t *testing.T) {
	t.Parallel()
	const patience = time.Minute
	for _, c := range []struct {
		name  string
		event func(m *member)
		fails bool // the phase under way returns an error
		want  phase
		cause failure.ExitCause
	}{
		{"success", func(*member) {}, false, phaseReady, ""},
		{"stop", func(m *member) { m.orders.take(berth.Orders{Stop: true}, 0) }, true, phaseFence, failure.CauseNotStarted},
		{"stop after the last phase", func(m *member) { m.orders.take(berth.Orders{Stop: true}, 0) }, false, phaseReady, ""},
		{"start", func(m *member) { m.orders.start() }, false, phaseReady, ""},
		{"slow", func(*member) { time.Sleep(patience) }, true, phaseFence, failure.CauseEngine},
		{"slow pull", func(m *member) {
			m.reports.enter(0, berth.PhasePulling)
			time.Sleep(patience)
		}, true, phaseFence, failure.CauseImageUnavailable},
		{"abandoned", func(m *member) { m.abandon() }, true, "", ""},
		{"abandoned after the last phase", func(m *member) { m.abandon() }, false, "", ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			m, _ := idleMember(t)
			m.timing.PreparePatience = patience
			ctx := m.enter(phasePull)
			if again := m.enter(phaseCreate); again != ctx {
				t.Errorf("%s: the phases have preparations of their own", c.name)
			}
			c.event(m)
			synctest.Wait()
			next, err := phaseReady, error(nil)
			if c.fails {
				next, err = "", context.Cause(ctx)
			}
			next, err = m.exit(phaseCreate, next, err)
			if next != c.want || m.result.exit.Cause != c.cause {
				t.Errorf("%s leads to %q, cause %q; want %q, %q", c.name, next, m.result.exit.Cause, c.want, c.cause)
			}
			if gone := c.want == ""; gone != errors.Is(err, errAbandoned) {
				t.Errorf("%s: error %v", c.name, err)
			}
			if !kicked(m.orders) {
				t.Errorf("%s: the next phase does not look at the orders", c.name)
			}
			m.cancel(nil)
		})
	}
}
