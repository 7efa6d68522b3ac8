package api_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"berth/api"
	"berth/internal/lib/tracing"
	"berth/wire"
)

// newTracedSite returns a site that records its calls, and the recorded spans.
func newTracedSite(t *testing.T) (*site, *tracing.Tracing, *tracetest.InMemoryExporter) {
	t.Helper()
	kept := tracetest.NewInMemoryExporter()
	traces, err := tracing.Open(t.Context(), tracing.Options{Exporter: kept})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(traces.Close)
	return newSite(t, func(d *api.Deps) { d.Traces = traces }), traces, kept
}

func TestCallsAreTold(t *testing.T) {
	t.Parallel()
	s, traces, kept := newTracedSite(t)
	const from = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	a := s.call("alice", "POST", "/v1/jobs", `{"name":"digits","image":"busybox","env":{"PASSWORD":"hidden-in-env"},"command":["echo","hidden-in-command"]}`,
		"Traceparent", from, "Idempotency-Key", "k")
	if a.status != http.StatusCreated {
		t.Fatalf("submit: %d %s", a.status, a.body)
	}
	var job wire.Job
	if err := json.Unmarshal([]byte(a.body), &job); err != nil {
		t.Fatal(err)
	}
	s.call("alice", "POST", "/v1/jobs", `{"name":"digits","image":"busybox","env":{"PASSWORD":"hidden-in-env"},"command":["echo","hidden-in-command"]}`, "Idempotency-Key", "k")
	s.call("alice", "GET", "/v1/jobs/"+string(job.ID)+"?token=hidden-in-query", "")
	s.call("", "GET", "/healthz", "")
	s.call("", "GET", "/metrics", "")
	if err := traces.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	names := map[string]int{}
	called := map[string]bool{} // traces of calls by alice's program
	for _, span := range kept.GetSpans() {
		if len(span.Links) > 0 && span.Links[0].SpanContext.TraceID().String() == from[3:35] {
			called[span.SpanContext.TraceID().String()] = true
		}
	}
	for _, span := range kept.GetSpans() {
		names[span.Name]++
		if span.Name == "submit" && (span.SpanContext.TraceID() != tracing.JobTrace(job.ID) || len(span.Links) != 1 || !called[span.Links[0].SpanContext.TraceID().String()]) {
			t.Errorf("submit is %v with %+v", span.SpanContext, span.Links)
		}
		text, err := json.Marshal(span)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "hidden") {
			t.Errorf("a span shows what it must not: %s", text)
		}
	}
	if names["submit"] != 1 || names["POST /v1/jobs"] != 2 || names["GET /v1/jobs/:id"] != 1 || len(names) != 3 {
		t.Errorf("told: %v", names)
	}
}

// Any caller could name any trace, and request the export of everything.
func TestOnlyMachinesContinueATrace(t *testing.T) {
	t.Parallel()
	s, traces, kept := newTracedSite(t)
	s.joinMachine("m1")
	if err := traces.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept.Reset()
	victim := tracing.JobTrace(s.submit("bob", nil).ID).String()
	from := "00-" + victim + "-b7ad6b7169203331-01"
	s.call("alice", "GET", "/v1/jobs", "", "Traceparent", from, "Tracestate", "hidden=1")
	s.call("", "GET", "/v1/machines", "", "Traceparent", from)
	s.call("", "POST", "/agent/v1/claim", "{}", "Traceparent", from)
	s.call("", "POST", "/agent/v1/join", "{}", "Traceparent", from)
	s.call("alice", "POST", "/agent/v1/settled", "{}", "Traceparent", from)
	s.call("m1", "POST", "/agent/v1/sync", "{}", "Traceparent", from)
	s.call("m1", "POST", "/agent/v1/sync", "{}")
	if err := traces.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	names := map[string]int{}
	for _, span := range kept.GetSpans() {
		inside := span.SpanContext.TraceID().String() == victim
		names[span.Name]++
		switch span.Name {
		case "GET /v1/jobs", "GET /v1/machines":
			if inside || span.Parent.IsValid() {
				t.Errorf("%s became part of the trace that a user named", span.Name)
			}
			if len(span.Links) != 1 || span.Links[0].SpanContext.TraceID().String() != victim || span.Links[0].SpanContext.TraceState().Len() != 0 {
				t.Errorf("%s is linked with %+v", span.Name, span.Links)
			}
		case "POST /agent/v1/sync":
			if !inside || span.Parent.SpanID().String() != from[36:52] {
				t.Errorf("a machine's call is %v under %v", span.SpanContext, span.Parent)
			}
		}
	}
	if want := map[string]int{"submit": 1, "POST /v1/jobs": 1, "GET /v1/jobs": 1, "GET /v1/machines": 1, "POST /agent/v1/sync": 1}; !maps.Equal(names, want) {
		t.Errorf("told: %v, want %v", names, want)
	}
}
