package e2e_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"berth"
	"berth/internal/control/scheduler"
	"berth/internal/lib/tracing"
	"berth/wire"
)

// startTraced is start with traces: the control plane, the agents and their Temporal clients
// export into one list.
func startTraced(t testing.TB, ages scheduler.Ages, machines ...berth.MachineID) *stack {
	t.Helper()
	kept := tracetest.NewInMemoryExporter()
	traces, err := tracing.Open(t.Context(), tracing.Options{Exporter: kept})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(traces.Close)
	s := startStack(t, ages, plain, traces, machines...)
	s.spans = kept
	return s
}

// trace returns the spans of a job exported so far.
func (s *stack) trace(t *testing.T, id berth.JobID) (found tracetest.SpanStubs) {
	t.Helper()
	if err := s.traces.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, span := range s.spans.GetSpans() {
		if span.SpanContext.TraceID() == tracing.JobTrace(id) {
			found = append(found, span)
		}
	}
	return found
}

// told waits for the whole trace of a job that has ended, since every process exports its spans
// in its own time. It returns when spans of these names exist, all spans are connected, and
// check, unless nil, returns no fault.
func (s *stack) told(t *testing.T, id berth.JobID, names []string, check func(tracetest.SpanStubs) string) (spans tracetest.SpanStubs) {
	t.Helper()
	fault := ""
	defer func() {
		if fault != "" {
			t.Logf("job %s is told with a fault: %s", id, fault)
		}
	}()
	until(t, "the job is told", func() bool {
		spans = s.trace(t, id)
		for _, want := range names {
			if !slices.ContainsFunc(spans, func(x tracetest.SpanStub) bool { return x.Name == want }) {
				fault = "no span " + want
				return false
			}
		}
		if fault = disconnected(spans); fault == "" && check != nil {
			fault = check(spans)
		}
		return fault == ""
	})
	return spans
}

// disconnected describes a span that is reported twice or has no path to the one root;
// "" if there is none.
func disconnected(spans tracetest.SpanStubs) string {
	by := map[trace.SpanID]tracetest.SpanStub{}
	for _, x := range spans {
		if other, twice := by[x.SpanContext.SpanID()]; twice {
			return fmt.Sprintf("%s is told twice, also as %s", x.Name, other.Name)
		}
		by[x.SpanContext.SpanID()] = x
	}
	for _, x := range spans {
		_, known := by[x.Parent.SpanID()]
		if x.Name == "job" && x.Parent.IsValid() || x.Name != "job" && !known {
			return fmt.Sprintf("%s hangs under %s, which nobody told of", x.Name, x.Parent.SpanID())
		}
	}
	return ""
}

// ofJob are the spans that each job has that ran.
var ofJob = []string{
	"job", "submit", "queue", "attempt", "launch", "rank", "claim", "POST /agent/v1/claim", "pull", "create", "start", "run", "seal", "logs",
	"StartWorkflow:" + berth.WorkflowJob, "RunWorkflow:" + berth.WorkflowJob,
	"RunActivity:" + wire.ActivityReserve.Name(), "RunActivity:" + wire.ActivityRun.Name(), "RunActivity:" + wire.ActivitySettle.Name(),
}

func tracesJobs(t *testing.T, s *stack) {
	bad := jobSpec("traced-badly", "exit", "3")
	bad.Retry.MaxAttempts = 2
	fails := s.submit(t, bad)
	for try := 1; ; try++ {
		spans := s.traceGood(t)
		wrong := slices.DeleteFunc(spans, func(x tracetest.SpanStub) bool { return x.Status.Code != codes.Error })
		if len(wrong) == 0 {
			break
		}
		if try == tries { // a call that a crowded machine held up is repeated, and leaves a span with an error
			t.Fatalf("%s of a job that succeeded says %s", wrong[0].Name, wrong[0].Status.Description)
		}
	}
	s.ends(t, fails, berth.Failed)

	want := []string{"attempt: exit_code", "attempt: exit_code", "job: exit_code", "rank: exited", "rank: exited", "run: exited", "run: exited"}
	s.told(t, fails, ofJob, func(spans tracetest.SpanStubs) string {
		var attempts []string
		for _, x := range spans {
			if x.Name == "attempt" || x.Name == "job" || x.Name == "rank" || x.Name == "run" {
				attempts = append(attempts, x.Name+": "+x.Status.Description)
			}
		}
		slices.Sort(attempts)
		return cmp.Diff(want, attempts)
	})
}

// traceGood runs a job that succeeds, and returns its spans.
func (s *stack) traceGood(t *testing.T) tracetest.SpanStubs {
	t.Helper()
	id := s.submit(t, jobSpec("traced", "do", "echo hello", "sleep 1s"))
	s.ends(t, id, berth.Succeeded)
	spans := s.told(t, id, ofJob, nil)
	for _, x := range spans {
		if x.Name == "submit" && (len(x.Links) != 1 || x.Links[0].SpanContext.TraceID() == x.SpanContext.TraceID()) {
			t.Errorf("submit is linked with %+v", x.Links)
		}
	}
	return spans
}
