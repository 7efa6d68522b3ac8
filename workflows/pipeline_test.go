package workflows_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/wire"
	"berth/workflows"
)

// A step that is a pipeline is run by the workflow of one, under its own id, which
// outlives the outer one's.
func TestANestedPipelineIsAChildOfItsOwn(t *testing.T) {
	t.Parallel()
	const inner = berth.JobID("01900000-0000-7000-8000-000000000002")
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.RegisterWorkflowWithOptions(workflows.Pipeline, workflow.RegisterOptions{Name: "outer"})
	var mu sync.Mutex
	var began []string
	env.RegisterWorkflowWithOptions(func(ctx workflow.Context, in wire.JobInput) error {
		mu.Lock()
		defer mu.Unlock()
		began = append(began, workflow.GetInfo(ctx).WorkflowExecution.ID+" for "+string(in.Job))
		return nil
	}, workflow.RegisterOptions{Name: berth.WorkflowPipeline})
	looked := 0
	register(env, wire.ActivityReconcile, func(_ context.Context, _ wire.StepInput) (wire.ReconcileResult, error) {
		mu.Lock()
		defer mu.Unlock()
		if looked++; looked > 1 { // it finds that all have ended
			return wire.ReconcileResult{State: berth.Succeeded}, nil
		}
		return wire.ReconcileResult{State: berth.Queued, Tenant: "default", Ready: []wire.Ready{{Job: inner, Kind: berth.KindPipeline}}}, nil
	})
	env.SetTestTimeout(5 * time.Minute) // of the real clock
	env.ExecuteWorkflow("outer", wire.JobInput{Job: id})
	if err := env.GetWorkflowError(); err != nil || looked != 2 {
		t.Fatalf("after %d looks %v", looked, err)
	}
	if diff := cmp.Diff([]string{berth.JobWorkflowID(inner) + " for " + string(inner)}, began); diff != "" {
		t.Error(diff)
	}
}
