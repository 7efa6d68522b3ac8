package dispatch

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"berth/db"
)

// lacking is a Temporal whose namespace lacks the newer attributes. It refuses calls with them
// once all are under way.
type lacking struct {
	Temporal
	underWay sync.WaitGroup
	started  atomic.Int64
}

func (l *lacking) ExecuteWorkflow(_ context.Context, o client.StartWorkflowOptions, _ any,
	_ ...any) (client.WorkflowRun, error) {
	if o.TypedSearchAttributes.ContainsKey(nameAttribute) {
		l.underWay.Done()
		l.underWay.Wait()
		return nil, serviceerror.NewInvalidArgument(
			"Namespace default has no mapping defined for search attribute JobName")
	}
	l.started.Add(1)
	return nil, nil
}

// Starts that are refused at the same time all succeed without the attributes.
func TestRefusedStartsAreAllRepeated(t *testing.T) {
	t.Parallel()
	const calls = 4
	l := &lacking{}
	l.underWay.Add(calls)
	s := &starter{temporal: l, log: slog.New(slog.DiscardHandler)}
	var all sync.WaitGroup
	for range calls {
		all.Go(func() {
			if err := s.start(t.Context(), db.Dispatch{Job: "j", Kind: "job", Name: "train"},
				enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY); err != nil {
				t.Errorf("a start failed: %v", err)
			}
		})
	}
	all.Wait()
	if n := l.started.Load(); n != calls {
		t.Errorf("%d of %d workflows started", n, calls)
	}
}
