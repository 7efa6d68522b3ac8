package proof_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/history/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/wire"
	"berth/workflows"
)

// wantReplayed replays the history of each workflow of the stack under the code of this repository. Workflows of jobs
// and pipelines began under the old code, and ended under the new one.
func (u *upgrade) wantReplayed() {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), patience)
	defer cancel()
	temporal := u.dialTemporal()
	r := worker.NewWorkflowReplayer()
	r.RegisterWorkflowWithOptions(workflows.Job, workflow.RegisterOptions{Name: berth.WorkflowJob})
	r.RegisterWorkflowWithOptions(workflows.Array, workflow.RegisterOptions{Name: berth.WorkflowArray})
	r.RegisterWorkflowWithOptions(workflows.Pipeline, workflow.RegisterOptions{Name: berth.WorkflowPipeline})
	r.RegisterWorkflowWithOptions(workflows.Fire, workflow.RegisterOptions{Name: berth.WorkflowFire})
	r.RegisterWorkflowWithOptions(workflows.Machine, workflow.RegisterOptions{Name: wire.WorkflowMachine})
	replayed := map[string]int{}
	var next []byte
	for again := true; again; again = len(next) > 0 {
		page, err := temporal.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{NextPageToken: next})
		if err != nil {
			u.t.Fatal(err)
		}
		next = page.GetNextPageToken()
		for _, x := range page.GetExecutions() {
			kind := x.GetType().GetName()
			if strings.HasPrefix(kind, "temporal-sys-") {
				continue // Temporal's own, of the schedule
			}
			h, err := historyOf(ctx, temporal, x.GetExecution().GetWorkflowId(), x.GetExecution().GetRunId())
			if err != nil {
				u.t.Fatal(err)
			}
			if err := r.ReplayWorkflowHistory(quiet{}, h); err != nil {
				u.t.Errorf("the history of %s %s does not replay: %v", kind, x.GetExecution().GetWorkflowId(), err)
			}
			replayed[kind]++
		}
	}
	for kind, least := range map[string]int{
		berth.WorkflowJob: len(u.lasting), berth.WorkflowPipeline: 1, berth.WorkflowFire: 1,
	} {
		if replayed[kind] < least {
			u.t.Errorf("%d histories of %s were replayed, want at least %d", replayed[kind], kind, least)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(replayed)) {
		fmt.Printf("%d histories of %s replay\n", replayed[kind], kind)
	}
}

func historyOf(ctx context.Context, temporal client.Client, id, run string) (*history.History, error) {
	h := &history.History{}
	events := temporal.GetWorkflowHistory(ctx, id, run, false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		e, err := events.Next()
		if err != nil {
			return nil, fmt.Errorf("read the history of workflow %s: %w", id, err)
		}
		h.Events = append(h.Events, e)
	}
	return h, nil
}
