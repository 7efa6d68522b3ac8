package workers

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/contrib/opentelemetry"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/workflow"

	"berth"
	"berth/internal/lib/tracing"
)

// traced returns the interceptor that records spans of Temporal's client and workers.
// Workflows of jobs appear in their job's trace, regardless of the starter: the dispatcher,
// a pipeline, an operator. Signals and queries have no spans: pokes are many and carry no
// information.
func traced(t *tracing.Tracing) (interceptor.Interceptor, error) {
	inner, err := opentelemetry.NewTracer(opentelemetry.TracerOptions{
		Tracer:                  t.Tracer(),
		TextMapPropagator:       propagation.TraceContext{},
		SpanContextKey:          spanKey{},
		DisableSignalTracing:    true,
		DisableQueryTracing:     true,
		DisableUpdateTracing:    true,
		AllowInvalidParentSpans: true, // the header of an old history may hold anything
	})
	if err != nil {
		return nil, err
	}
	x := &tracer{inner, t}
	return &tracedWorkflows{interceptor.NewTracingInterceptor(x), x}, nil
}

// spanKey is the key of the current span in a workflow's context.
type spanKey struct{}

// tracer starts Berth's spans; the SDK propagates the context.
type tracer struct {
	interceptor.Tracer
	traces *tracing.Tracing
}

// The tags that the SDK gives its spans.
const tagWorkflow = "temporalWorkflowID"

// The SDK's names of the spans of a workflow and of an activity.
const (
	runWorkflow = "RunWorkflow"
	runActivity = "RunActivity"
)

// activitySpan is the span of an activity. ErrResultPending is no failure: the activity is
// completed later.
type activitySpan struct{ trace.Span }

func (s *activitySpan) SetStatus(code codes.Code, says string) {
	if says != activity.ErrResultPending.Error() {
		s.Span.SetStatus(code, says)
	}
}

// StartSpan starts a span in the job's trace, if the workflow is a job's. The idempotency
// key gives the span of a replayed workflow the same id, so that exported spans below it
// keep their parent.
func (t *tracer) StartSpan(o *interceptor.TracerStartSpanOptions) (interceptor.TracerSpan, error) {
	about := make([]attribute.KeyValue, 0, len(o.Tags)+1)
	for k, v := range o.Tags {
		about = append(about, attribute.String(k, v))
	}
	job, _ := berth.JobOfWorkflow(o.Tags[tagWorkflow])
	if job != "" {
		about = append(about, attribute.String("berth.job_id", string(job)))
	}
	span := t.traces.Temporal(tracing.Step{
		Name: o.Operation + ":" + o.Name, Job: job, At: o.Time, Repeats: o.IdempotencyKey,
		Parent: contextOf(o.Parent), About: about,
	})
	switch o.Operation {
	case runWorkflow:
		span = &workflowSpan{Span: span}
	case runActivity:
		span = &activitySpan{span}
	}
	return t.SpanFromContext(trace.ContextWithSpan(context.Background(), span)), nil
}

// GetLogger returns the logger unchanged: the job id in a log line is the trace's id.
func (t *tracer) GetLogger(l log.Logger, _ interceptor.TracerSpanRef) log.Logger { return l }

// contextOf returns the span context of a reference of the SDK, in either of its two forms.
func contextOf(ref interceptor.TracerSpanRef) trace.SpanContext {
	switch r := ref.(type) {
	case interface{ SpanContext() trace.SpanContext }:
		return r.SpanContext()
	case interface {
		TraceID() trace.TraceID
		SpanID() trace.SpanID
		TraceFlags() trace.TraceFlags
	}:
		return trace.NewSpanContext(trace.SpanContextConfig{TraceID: r.TraceID(), SpanID: r.SpanID(),
			TraceFlags: r.TraceFlags(), Remote: true})
	}
	return trace.SpanContext{}
}

// tracedWorkflows is the SDK's interceptor, which also marks the workflows that have really
// ended. The SDK ends a workflow's span also when it drops the workflow from its cache, and
// starts the span again at a replay.
type tracedWorkflows struct {
	interceptor.Interceptor
	tracer *tracer
}

func (i *tracedWorkflows) InterceptWorkflow(ctx workflow.Context,
	next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	return i.Interceptor.InterceptWorkflow(ctx, &ending{interceptor.WorkflowInboundInterceptorBase{Next: next}})
}

// ending marks the span of a workflow at its end. See workflowSpan.
type ending struct {
	interceptor.WorkflowInboundInterceptorBase
}

func (e *ending) ExecuteWorkflow(ctx workflow.Context, in *interceptor.ExecuteWorkflowInput) (any, error) {
	result, err := e.Next.ExecuteWorkflow(ctx, in)
	// A replay of an ended workflow must not export its span again.
	if span, ok := ctx.Value(spanKey{}).(trace.Span); ok && !workflow.IsReplaying(ctx) {
		var again *workflow.ContinueAsNewError
		span.SetAttributes(endedKey.Bool(true), continuedKey.Bool(errors.As(err, &again)))
	}
	return result, err
}

const (
	endedKey     = attribute.Key("temporalWorkflowEnded")
	continuedKey = attribute.Key("temporalContinuedAsNew")
)

// workflowSpan is exported only at the end of its workflow, and not by a replay. It belongs
// to one goroutine at a time, as workflows do.
type workflowSpan struct {
	trace.Span
	ended, continued bool
}

func (s *workflowSpan) SetAttributes(about ...attribute.KeyValue) {
	for _, a := range about {
		switch a.Key {
		case endedKey:
			s.ended = a.Value.AsBool()
		case continuedKey:
			s.continued = a.Value.AsBool()
		}
	}
	s.Span.SetAttributes(about...)
}

// SetStatus ignores the error of a workflow that continues in another run: that is no
// failure.
func (s *workflowSpan) SetStatus(code codes.Code, says string) {
	if !s.continued {
		s.Span.SetStatus(code, says)
	}
}

// End exports the span of an ended workflow and ignores all other ends.
func (s *workflowSpan) End(o ...trace.SpanEndOption) {
	if s.ended {
		s.Span.End(o...)
	}
}
