package proof_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"berth"
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
	if !slices.ContainsFunc(s.history(t, victim), func(e berth.Event) bool { return e.To == berth.Canceling && e.Actor == "temporal" }) {
		t.Errorf("nothing in the history says that Temporal asked: %+v", s.history(t, victim))
	}
	s.engine.wantAlive(lived, ids)

	s.endShifts(ids)
	s.wantShiftsDone(ids)
	for _, id := range ids {
		wantCompleted(t, temporal, id)
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

// wantCompleted waits until a job's workflow has come to its end by itself.
func wantCompleted(t *testing.T, temporal client.Client, id berth.JobID) {
	t.Helper()
	until(t, "the workflow of job "+string(id)+" completes", func(ctx context.Context) error {
		x, err := temporal.DescribeWorkflowExecution(ctx, berth.JobWorkflowID(id), "")
		if err == nil && x.GetWorkflowExecutionInfo().GetStatus() != enums.WORKFLOW_EXECUTION_STATUS_COMPLETED {
			err = fmt.Errorf("it is %s", x.GetWorkflowExecutionInfo().GetStatus())
		}
		return err
	})
}

// quiet keeps Temporal's client from writing into the test's output.
type quiet struct{}

func (quiet) Debug(string, ...any) {}
func (quiet) Info(string, ...any)  {}
func (quiet) Warn(string, ...any)  {}
func (quiet) Error(string, ...any) {}
