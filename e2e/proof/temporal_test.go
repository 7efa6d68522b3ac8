package proof_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"berth"
	"berth/wire"
)

func TestTerminatedWorkflowsStopNothingAndCanceledOnesCancelTheirJob(t *testing.T) {
	t.Parallel()
	s := onHost(t)
	temporal := s.dialTemporal()
	ids := s.startShifts(shifts)
	victim := s.submit(s.job("victim", "trap-term", "143"))
	s.becomes(victim, berth.Running)
	lived := s.engine.running()

	for _, id := range ids {
		if err := temporal.TerminateWorkflow(t.Context(), berth.JobWorkflowID(id), "", "proof"); err != nil {
			t.Fatalf("terminate the workflow of job %s: %v", id, err)
		}
	}
	if err := temporal.CancelWorkflow(t.Context(), berth.JobWorkflowID(victim), ""); err != nil {
		t.Fatal(err)
	}
	s.becomes(victim, berth.Canceled)
	if !slices.ContainsFunc(s.history(victim), func(e wire.Event) bool { return e.To == berth.Canceling && e.Actor == "temporal" }) {
		t.Errorf("nothing in the history says that Temporal asked: %+v", s.history(victim))
	}
	s.engine.wantAlive(lived, ids)

	s.endShifts(ids)
	s.wantShiftsDone(ids)
	for _, id := range ids {
		wantOver(t, temporal, id)
	}
}

func (s *stack) dialTemporal() client.Client {
	s.t.Helper()
	c, err := client.DialContext(s.t.Context(), client.Options{HostPort: s.at.Temporal, Logger: quiet{}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

// wantOver waits until no workflow of a job runs whose first one was terminated. A
// job that ended before its workflow was built again was settled from its rows.
func wantOver(t *testing.T, temporal client.Client, id berth.JobID) {
	t.Helper()
	until(t, "no workflow of job "+string(id)+" runs", func(ctx context.Context) error {
		x, err := temporal.DescribeWorkflowExecution(ctx, berth.JobWorkflowID(id), "")
		if err != nil {
			return err
		}
		switch status := x.GetWorkflowExecutionInfo().GetStatus(); status {
		case enums.WORKFLOW_EXECUTION_STATUS_COMPLETED, enums.WORKFLOW_EXECUTION_STATUS_TERMINATED:
			return nil
		default:
			return fmt.Errorf("it is %s", status)
		}
	})
}

// quiet keeps Temporal's client from writing into the test's output.
type quiet struct{}

func (quiet) Debug(string, ...any) {}
func (quiet) Info(string, ...any)  {}
func (quiet) Warn(string, ...any)  {}
func (quiet) Error(string, ...any) {}
