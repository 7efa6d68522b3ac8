package agent

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"berth/activities/node"
	"berth/failure"
)

// killable is an engine that notes the names of signals.
type killable struct {
	node.Runtime
	signals []string
}

func (s *killable) Signal(_ context.Context, _, signal string) error {
	s.signals = append(s.signals, signal)
	return nil
}

// The earlier process has stored the verdict and then ended, before or after the signal.
func TestReserveAndLimitOfDiskAreCarriedOutByTheNextProcess(t *testing.T) {
	t.Parallel()
	for _, cause := range []failure.ExitCause{failure.CauseDiskLimit, failure.CauseDiskReserve} {
		engine := &killable{}
		plan := &stopPlan{
			core: &core{
				identity: &identity{}, ctx: t.Context(), log: slog.New(slog.DiscardHandler), runtime: engine, claim: &claim{},
			},
			orders: newOrders(), gpus: &gpuHealth{}, disk: &diskUser{}, health: &engineHealth{},
		}
		began := time.Now().Add(-time.Hour)
		plan.adopt(memo{Intent: cause, IntentAt: began.Add(time.Minute), IntentSays: "used too much"}, began)
		plan.steer(&progressWatcher{}, &hangWatch{core: plan.core})
		if !slices.Equal(engine.signals, []string{"SIGKILL"}) || plan.cause != cause || plan.says != "used too much" {
			t.Errorf("%s: signals are %q, cause is %s: %s", cause, engine.signals, plan.cause, plan.says)
		}
	}
}
