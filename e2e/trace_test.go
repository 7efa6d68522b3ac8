package e2e_test

import (
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"berth"
	"berth/internal/control/scheduler"
	"berth/internal/lib/tracing"
)

// startTraced is start with traces, which the control plane, the agents and
// their clients of Temporal tell of into one list.
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

// trace is what was told of a job up to now.
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

// told waits until a job that has ended is told whole, and returns its spans.
func (s *stack) told(t *testing.T, id berth.JobID, names ...string) (spans tracetest.SpanStubs) {
	t.Helper()
	until(t, "the job is told", func() bool {
		spans = s.trace(t, id)
		for _, want := range names {
			if !slices.ContainsFunc(spans, func(x tracetest.SpanStub) bool { return x.Name == want }) {
				return false
			}
		}
		return true
	})
	return spans
}

// connected fails unless the spans hang together under one root, each told once.
func connected(t *testing.T, spans tracetest.SpanStubs) {
	t.Helper()
	by := map[trace.SpanID]tracetest.SpanStub{}
	for _, x := range spans {
		if other, twice := by[x.SpanContext.SpanID()]; twice {
			t.Errorf("%s is told twice, also as %s", x.Name, other.Name)
		}
		by[x.SpanContext.SpanID()] = x
	}
	for _, x := range spans {
		_, known := by[x.Parent.SpanID()]
		if x.Name == "job" && x.Parent.IsValid() || x.Name != "job" && !known {
			t.Errorf("%s hangs under %s, which nobody told of", x.Name, x.Parent.SpanID())
		}
	}
}

// ofJob are the spans that each job has that ran.
var ofJob = []string{
	"job", "submit", "queue", "attempt", "launch", "rank", "claim", "POST /agent/v1/claim", "pull", "create", "start", "run", "seal", "logs",
	"StartWorkflow:" + berth.WorkflowJob, "RunWorkflow:" + berth.WorkflowJob,
	"RunActivity:" + berth.ActivityReserve, "RunActivity:" + berth.ActivityRun, "RunActivity:" + berth.ActivitySettle,
}

func tracesJobs(t *testing.T, s *stack) {
	good := s.submit(t, spec("traced", "do", "echo hello", "sleep 1s"))
	bad := spec("traced-badly", "exit", "3")
	bad.Retry.MaxAttempts = 2
	fails := s.submit(t, bad)
	s.ends(t, good, berth.Succeeded)
	s.ends(t, fails, berth.Failed)

	spans := s.told(t, good, ofJob...)
	connected(t, spans)
	for _, x := range spans {
		if x.Status.Code == codes.Error {
			t.Errorf("%s of a job that succeeded says %s", x.Name, x.Status.Description)
		}
		if x.Name == "submit" && (len(x.Links) != 1 || x.Links[0].SpanContext.TraceID() == x.SpanContext.TraceID()) {
			t.Errorf("submit is linked with %+v", x.Links)
		}
	}
	var attempts []string
	for _, x := range s.told(t, fails, ofJob...) {
		switch {
		case x.Name == "attempt" || x.Name == "job" || x.Name == "rank" || x.Name == "run":
			attempts = append(attempts, x.Name+": "+x.Status.Description)
		case strings.HasPrefix(x.Name, "POST "): // has a span above it in the agent
		}
	}
	slices.Sort(attempts)
	want := []string{"attempt: exit_code", "attempt: exit_code", "job: exit_code", "rank: exited", "rank: exited", "run: exited", "run: exited"}
	if !slices.Equal(attempts, want) {
		t.Errorf("the job that failed twice is told as %q, want %q", attempts, want)
	}
	connected(t, s.trace(t, fails))
}
