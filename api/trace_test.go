package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"berth"
	"berth/api"
	"berth/internal/tracing"
)

func TestCallsAreTold(t *testing.T) {
	t.Parallel()
	kept := tracetest.NewInMemoryExporter()
	traces, err := tracing.Open(t.Context(), tracing.Options{Exporter: kept})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(traces.Close)
	s := newSite(t, func(d *api.Deps) { d.Traces = traces })
	const from = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	a := s.call("alice", "POST", "/v1/jobs", `{"name":"digits","image":"busybox","env":{"PASSWORD":"hidden-in-env"},"command":["echo","hidden-in-command"]}`,
		"Traceparent", from, "Idempotency-Key", "k")
	if a.status != http.StatusCreated {
		t.Fatalf("submit: %d %s", a.status, a.body)
	}
	var job berth.Job
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
	for _, span := range kept.GetSpans() {
		names[span.Name]++
		if span.Name == "submit" && (span.SpanContext.TraceID() != tracing.JobTrace(job.ID) || len(span.Links) != 1 || span.Links[0].SpanContext.TraceID().String() != from[3:35]) {
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
