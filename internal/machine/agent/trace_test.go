package agent_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"berth"
	"berth/failure"
	"berth/internal/lib/tracing"
	"berth/spec"
)

// traced returns an agent's tracing and a function that returns the spans of a job so far, by
// name.
func traced(t *testing.T) (*tracing.Tracing, func(id berth.JobID) map[string]tracetest.SpanStub) {
	t.Helper()
	kept := tracetest.NewInMemoryExporter()
	x, err := tracing.Open(t.Context(), tracing.Options{Exporter: kept})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	return x, func(id berth.JobID) map[string]tracetest.SpanStub {
		t.Helper()
		if err := x.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		found := map[string]tracetest.SpanStub{}
		for _, s := range kept.GetSpans() {
			if s.SpanContext.TraceID() == tracing.JobTrace(id) {
				found[s.Name] = s
			}
		}
		return found
	}
}

func TestARankIsToldFromItsClaimToItsSeal(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	x, told := traced(t)
	m.cfg.Traces = x
	m.start()
	id := s.submit(func(j *spec.Job) {
		j.Env = map[string]string{"PASSWORD": "hidden-in-env"}
		j.Outputs = []spec.Output{{Name: "model", Path: "/workspace/model"}}
		j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint"}
	}, "do", "echo hidden-in-log", "write-file /workspace/model x", "train /checkpoint 4 10ms 2")
	req, w := m.run(id)
	w.exit()
	s.settle(id)
	m.cleared(req)
	var spans map[string]tracetest.SpanStub
	m.until("the rank is told", func() bool {
		spans = told(id)
		_, ok := spans["rank"]
		return ok
	})
	rank := spans["rank"]
	var under []string
	for name, span := range spans {
		text, err := json.Marshal(span)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "hidden") {
			t.Errorf("%s shows what it must not: %s", name, text)
		}
		if span.Parent.SpanID() == rank.SpanContext.SpanID() {
			under = append(under, name)
		}
		if span.EndTime.Before(span.StartTime) {
			t.Errorf("%s ends before it begins", name)
		}
	}
	slices.Sort(under)
	if diff := cmp.Diff([]string{"checkpoint", "claim", "create", "pull", "run", "seal", "start"}, under); diff != "" {
		t.Errorf("under the rank (-want +got):\n%s", diff)
	}
	for _, name := range []string{"logs", "use", "checkpoints", "outputs"} {
		if spans[name].Parent.SpanID() != spans["seal"].SpanContext.SpanID() {
			t.Errorf("%s is not under the seal: %+v", name, spans[name])
		}
	}
	about := map[string]string{}
	for _, a := range spans["run"].Attributes {
		about[string(a.Key)] = a.Value.String()
	}
	want := map[string]string{
		"berth.job_id": string(id), "berth.attempt": "1", "berth.rank": "0", "berth.machine": "m1", "berth.alloc": about["berth.alloc"],
		"berth.exit.cause": "exited", "berth.exit.code": "0", "berth.exit.oom_killed": "false",
	}
	if diff := cmp.Diff(want, about); diff != "" {
		t.Errorf("of the run (-want +got):\n%s", diff)
	}
}

// A rank that one process of the agent began and the next one ends is one span.
func TestAnAdoptedRankIsTold(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	x, told := traced(t)
	m.cfg.Traces = x
	m.start()
	id := s.submit(nil, "trap-term", "3")
	req := m.place(id)
	m.running(req)
	m.restart()
	s.cancel(id)
	m.until("the rank is told", func() bool {
		_, ok := told(id)["rank"]
		return ok
	})
	spans := told(id)
	if spans["run"].Parent.SpanID() != spans["rank"].SpanContext.SpanID() || spans["pull"].Parent.SpanID() != spans["rank"].SpanContext.SpanID() {
		t.Errorf("spans are %+v", spans)
	}
	if r := spans["rank"]; r.Status.Code != codes.Error || r.Status.Description != string(failure.CauseOrdered) {
		t.Errorf("the rank is told as %+v", r.Status)
	}
}
