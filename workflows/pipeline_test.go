package workflows_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/workflows"
)

// A step that is a pipeline is run by the workflow of one, a child of the outer's,
// and each sees only its own steps.
func TestANestedPipelineIsAChildOfItsOwn(t *testing.T) {
	t.Parallel()
	const outermost, inner, leaf = id, berth.JobID("01900000-0000-7000-8000-000000000002"), berth.JobID("01900000-0000-7000-8000-000000000003")
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.RegisterWorkflowWithOptions(workflows.Pipeline, workflow.RegisterOptions{Name: berth.WorkflowPipeline})
	var mu sync.Mutex
	var began []string
	looked := map[berth.JobID]int{}
	env.RegisterWorkflowWithOptions(func(ctx workflow.Context, in berth.JobInput) error {
		mu.Lock()
		defer mu.Unlock()
		began = append(began, fmt.Sprintf("%s by %s", in.Job, workflow.GetInfo(ctx).ParentWorkflowExecution.ID))
		return nil
	}, workflow.RegisterOptions{Name: berth.WorkflowJob})
	env.RegisterActivityWithOptions(func(_ context.Context, id berth.JobID) (berth.TendResult, error) {
		mu.Lock()
		defer mu.Unlock()
		looked[id]++
		ready := map[berth.JobID]berth.Ready{outermost: {Job: inner, Kind: berth.KindPipeline}, inner: {Job: leaf, Kind: berth.KindJob}}
		if looked[id] == 1 { // the second look finds that it has ended
			return berth.TendResult{State: berth.Queued, Tenant: "default", Ready: []berth.Ready{ready[id]}}, nil
		}
		return berth.TendResult{State: berth.Succeeded}, nil
	}, activity.RegisterOptions{Name: berth.ActivityTend})
	env.ExecuteWorkflow(berth.WorkflowPipeline, berth.JobInput{Job: outermost})
	if err := env.GetWorkflowError(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(began)
	if diff := cmp.Diff([]string{fmt.Sprintf("%s by %s", leaf, berth.JobWorkflowID(inner))}, began); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[berth.JobID]int{outermost: 2, inner: 2}, looked); diff != "" {
		t.Error(diff)
	}
}
