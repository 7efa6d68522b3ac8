package workflows_test

import (
	"path/filepath"
	"testing"

	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/wire"
	"berth/workflows"
)

// Histories of real runs must replay under today's code: jobs outlive releases.
// They are recorded by the end-to-end tests with -update; a change of the order
// of commands needs workflow.GetVersion and another recording beside these.
// lead-ended-unseen.json is built from gang-repaired.json: member 0 leads and ends, a
// worker that does not know leading groups stops no member, and two pokes read the row.
func TestRecordedHistoriesReplay(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("testdata", "histories", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no histories: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			r := worker.NewWorkflowReplayer()
			r.RegisterWorkflowWithOptions(workflows.Job, workflow.RegisterOptions{Name: berth.WorkflowJob})
			r.RegisterWorkflowWithOptions(workflows.Array, workflow.RegisterOptions{Name: berth.WorkflowArray})
			r.RegisterWorkflowWithOptions(workflows.Pipeline, workflow.RegisterOptions{Name: berth.WorkflowPipeline})
			r.RegisterWorkflowWithOptions(workflows.Fire, workflow.RegisterOptions{Name: berth.WorkflowFire})
			r.RegisterWorkflowWithOptions(workflows.Machine, workflow.RegisterOptions{Name: wire.WorkflowMachine})
			if err := r.ReplayWorkflowHistoryFromJSONFile(nil, file); err != nil {
				t.Error(err)
			}
		})
	}
}
