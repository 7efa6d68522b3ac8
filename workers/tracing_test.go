package workers

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/internal/lib/tracing"
	"berth/wire"
	"berth/workflows"
)

const (
	tracedJob  = berth.JobID("01900000-0000-7000-8000-000000000001")
	anotherJob = berth.JobID("01900000-0000-7000-8000-000000000002")
)

// recorder returns an interceptor and a function that returns the spans exported through it.
func recorder(t *testing.T) (interceptor.Interceptor, func() tracetest.SpanStubs) {
	t.Helper()
	kept := tracetest.NewInMemoryExporter()
	x, err := tracing.Open(t.Context(), tracing.Options{Exporter: kept})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	i, err := traced(x)
	if err != nil {
		t.Fatal(err)
	}
	return i, func() tracetest.SpanStubs {
		t.Helper()
		if err := x.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		return kept.GetSpans()
	}
}

func named(t *testing.T, spans tracetest.SpanStubs, name string) tracetest.SpanStub {
	t.Helper()
	found := tracetest.SpanStubs{}
	for _, s := range spans {
		if s.Name == name {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d spans %s among %v", len(found), name, names(spans))
	}
	return found[0]
}

func names(spans tracetest.SpanStubs) (list []string) {
	for _, s := range spans {
		list = append(list, s.Name)
	}
	return list
}

func TestAWorkflowIsToldInItsJobsTrace(t *testing.T) {
	t.Parallel()
	i, spans := recorder(t)
	var suite testsuite.WorkflowTestSuite
	env := suite.NewTestWorkflowEnvironment()
	env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{i}})
	env.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: berth.JobWorkflowID(tracedJob), WorkflowExecutionTimeout: time.Hour})
	env.RegisterWorkflowWithOptions(workflows.Job, workflow.RegisterOptions{Name: berth.WorkflowJob})
	reserve := wire.ActivityReserve.Func(func(context.Context, wire.StepInput) (wire.JobView, error) {
		return wire.JobView{State: berth.Canceled}, nil
	})
	env.RegisterActivityWithOptions(reserve, activity.RegisterOptions{Name: wire.ActivityReserve.Name()})
	env.ExecuteWorkflow(berth.WorkflowJob, wire.JobInput{Job: tracedJob})
	if err := env.GetWorkflowError(); err != nil {
		t.Fatal(err)
	}
	all := spans()
	run := named(t, all, "RunWorkflow:"+berth.WorkflowJob)
	start := named(t, all, "StartActivity:"+wire.ActivityReserve.Name())
	step := named(t, all, "RunActivity:"+wire.ActivityReserve.Name())
	for _, s := range all {
		if s.SpanContext.TraceID() != tracing.JobTrace(tracedJob) {
			t.Errorf("%s is of trace %s", s.Name, s.SpanContext.TraceID())
		}
	}
	if start.Parent.SpanID() != run.SpanContext.SpanID() || step.Parent.SpanID() != start.SpanContext.SpanID() {
		t.Errorf("spans do not hang together: %+v", all)
	}
}

// TestAReplayTellsNothing checks that a replay, which repeats a workflow's decisions, exports no span.
func TestAReplayTellsNothing(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("..", "workflows", "testdata", "histories", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no histories: %v", err)
	}
	i, spans := recorder(t)
	for _, file := range files {
		r, err := worker.NewWorkflowReplayerWithOptions(worker.WorkflowReplayerOptions{Interceptors: []interceptor.WorkerInterceptor{i}})
		if err != nil {
			t.Fatal(err)
		}
		r.RegisterWorkflowWithOptions(workflows.Job, workflow.RegisterOptions{Name: berth.WorkflowJob})
		r.RegisterWorkflowWithOptions(workflows.Array, workflow.RegisterOptions{Name: berth.WorkflowArray})
		r.RegisterWorkflowWithOptions(workflows.Pipeline, workflow.RegisterOptions{Name: berth.WorkflowPipeline})
		r.RegisterWorkflowWithOptions(workflows.Fire, workflow.RegisterOptions{Name: berth.WorkflowFire})
		r.RegisterWorkflowWithOptions(workflows.Machine, workflow.RegisterOptions{Name: wire.WorkflowMachine})
		if err := r.ReplayWorkflowHistoryFromJSONFile(nil, file); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	if list := spans(); len(list) != 0 {
		t.Errorf("exported: %v", names(list))
	}
}

// begin starts a span as the SDK does at the start and at each replay of a workflow.
func begin(t *testing.T, i interceptor.Interceptor, o interceptor.TracerStartSpanOptions) interceptor.TracerSpan {
	t.Helper()
	s, err := tracerOf(t, i).StartSpan(&o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tracerOf(t *testing.T, i interceptor.Interceptor) *tracer {
	t.Helper()
	return i.(*tracedWorkflows).tracer
}

// TestAWorkflowThatWasInTheCacheTwiceIsToldOnce checks that a workflow dropped from one worker's cache
// and continued on another exports its span once, at its end, and that this span is the parent of the
// spans exported earlier.
func TestAWorkflowThatWasInTheCacheTwiceIsToldOnce(t *testing.T) {
	t.Parallel()
	i, spans := recorder(t)
	o := interceptor.TracerStartSpanOptions{
		Operation: runWorkflow, Name: berth.WorkflowJob, IdempotencyKey: "default/job/run/1", Time: time.Now(),
		Tags: map[string]string{tagWorkflow: berth.JobWorkflowID(tracedJob)},
	}
	first := begin(t, i, o)
	child := begin(t, i, interceptor.TracerStartSpanOptions{Operation: "StartActivity", Name: "x", Parent: first, Time: time.Now()})
	child.Finish(&interceptor.TracerFinishSpanOptions{})
	first.Finish(&interceptor.TracerFinishSpanOptions{}) // dropped from the cache
	again := begin(t, i, o)
	again.(trace.Span).SetAttributes(endedKey.Bool(true))
	again.Finish(&interceptor.TracerFinishSpanOptions{})
	all := spans()
	run := named(t, all, "RunWorkflow:"+berth.WorkflowJob)
	if c := named(t, all, "StartActivity:x"); c.Parent.SpanID() != run.SpanContext.SpanID() {
		t.Errorf("the child hangs under %s, its workflow is %s", c.Parent.SpanID(), run.SpanContext.SpanID())
	}
}

func TestAContinuedWorkflowHasNotFailed(t *testing.T) {
	t.Parallel()
	i, spans := recorder(t)
	s := begin(t, i, interceptor.TracerStartSpanOptions{Operation: runWorkflow, Name: "x", IdempotencyKey: "1", Tags: map[string]string{tagWorkflow: berth.JobWorkflowID(tracedJob)}})
	s.(trace.Span).SetAttributes(endedKey.Bool(true), continuedKey.Bool(true))
	s.Finish(&interceptor.TracerFinishSpanOptions{Error: context.Canceled})
	if run := named(t, spans(), "RunWorkflow:x"); run.Status.Code == codes.Error {
		t.Errorf("status is %+v", run.Status)
	}
}

// TestAnActivityThatIsCompletedLaterHasNotFailed checks that the span of a waiter's activity, which is
// completed later, has no error status.
func TestAnActivityThatIsCompletedLaterHasNotFailed(t *testing.T) {
	t.Parallel()
	i, spans := recorder(t)
	for name, err := range map[string]error{"later": activity.ErrResultPending, "failed": context.Canceled} {
		s := begin(t, i, interceptor.TracerStartSpanOptions{Operation: runActivity, Name: name, Tags: map[string]string{tagWorkflow: berth.JobWorkflowID(tracedJob)}})
		s.Finish(&interceptor.TracerFinishSpanOptions{Error: err})
	}
	all := spans()
	if s := named(t, all, "RunActivity:later"); s.Status.Code == codes.Error {
		t.Errorf("status is %+v", s.Status)
	}
	if s := named(t, all, "RunActivity:failed"); s.Status.Code != codes.Error {
		t.Errorf("status of one that failed is %+v", s.Status)
	}
}

// TestAStepHasATraceOfItsOwn checks that a step of a pipeline has its own trace, which links to the
// pipeline's trace.
func TestAStepHasATraceOfItsOwn(t *testing.T) {
	t.Parallel()
	i, spans := recorder(t)
	parent := begin(t, i, interceptor.TracerStartSpanOptions{Operation: "StartChildWorkflow", Name: "x", Tags: map[string]string{tagWorkflow: berth.JobWorkflowID(anotherJob)}})
	header, err := tracerOf(t, i).MarshalSpan(parent)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := tracerOf(t, i).UnmarshalSpan(header)
	if err != nil {
		t.Fatal(err)
	}
	step := begin(t, i, interceptor.TracerStartSpanOptions{Operation: "RunActivity", Name: "y", Parent: ref, Tags: map[string]string{tagWorkflow: berth.JobWorkflowID(tracedJob)}})
	for _, s := range []interceptor.TracerSpan{step, parent} {
		s.Finish(&interceptor.TracerFinishSpanOptions{})
	}
	all := spans()
	began, ran := named(t, all, "StartChildWorkflow:x"), named(t, all, "RunActivity:y")
	if began.SpanContext.TraceID() != tracing.JobTrace(anotherJob) || ran.SpanContext.TraceID() != tracing.JobTrace(tracedJob) {
		t.Errorf("traces are %s and %s", began.SpanContext.TraceID(), ran.SpanContext.TraceID())
	}
	if len(ran.Links) != 1 || ran.Links[0].SpanContext.SpanID() != began.SpanContext.SpanID() {
		t.Errorf("links are %+v", ran.Links)
	}
}

// TestFiresDoNotPileUpInOneTrace checks that each workflow started by a schedule has its own trace.
func TestFiresDoNotPileUpInOneTrace(t *testing.T) {
	t.Parallel()
	i, spans := recorder(t)
	clock := begin(t, i, interceptor.TracerStartSpanOptions{Operation: "CreateSchedule", Name: "x"})
	for _, run := range []string{"a", "b"} {
		s := begin(t, i, interceptor.TracerStartSpanOptions{Operation: runWorkflow, Name: run, Parent: clock, IdempotencyKey: run, Tags: map[string]string{tagWorkflow: "schedule/x-" + run}})
		s.(trace.Span).SetAttributes(endedKey.Bool(true))
		s.Finish(&interceptor.TracerFinishSpanOptions{})
	}
	clock.Finish(&interceptor.TracerFinishSpanOptions{})
	all := spans()
	a, b, made := named(t, all, "RunWorkflow:a"), named(t, all, "RunWorkflow:b"), named(t, all, "CreateSchedule:x")
	if a.SpanContext.TraceID() == b.SpanContext.TraceID() || a.Parent.IsValid() || len(a.Links) != 1 || a.Links[0].SpanContext.SpanID() != made.SpanContext.SpanID() {
		t.Errorf("fires are exported as %+v and %+v", a, b)
	}
}
