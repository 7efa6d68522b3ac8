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

// traced returns the interceptor through which Temporal's client and workers
// tell what they do. Workflows of jobs are told in their job's trace, whoever
// started them: the dispatcher, a pipeline, an operator. Signals and queries are
// left out: pokes are many and say nothing.
func traced(t *tracing.Tracing) (interceptor.Interceptor, error) {
	inner, err := opentelemetry.NewTracer(opentelemetry.TracerOptions{
		Tracer:                  t.Tracer(),
		TextMapPropagator:       propagation.TraceContext{},
		SpanContextKey:          spanKey{},
		DisableSignalTracing:    true,
		DisableQueryTracing:     true,
		DisableUpdateTracing:    true,
		AllowInvalidParentSpans: true, // whatever is in the header of an old history
	})
	if err != nil {
		return nil, err
	}
	x := &tracer{inner, t}
	return &tracedWorkflows{interceptor.NewTracingInterceptor(x), x}, nil
}

type spanKey struct{}

// tracer begins Berth's spans; how they travel is the SDK's affair.
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

// activitySpan does not fail when its activity will be completed later.
type activitySpan struct{ trace.Span }

func (s *activitySpan) SetStatus(code codes.Code, says string) {
	if says != activity.ErrResultPending.Error() {
		s.Span.SetStatus(code, says)
	}
}

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

// GetLogger leaves logs as they are: the job that they name is the trace.
func (t *tracer) GetLogger(l log.Logger, _ interceptor.TracerSpanRef) log.Logger { return l }

// contextOf is the span that a reference of the SDK means.
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

// tracedWorkflows is the SDK's interceptor, with word of which workflows have
// really ended. The SDK ends a workflow's span also when it drops the workflow
// from its cache, and begins it again when it replays it.
type tracedWorkflows struct {
	interceptor.Interceptor
	tracer *tracer
}

func (i *tracedWorkflows) InterceptWorkflow(ctx workflow.Context,
	next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	return i.Interceptor.InterceptWorkflow(ctx, &ending{interceptor.WorkflowInboundInterceptorBase{Next: next}})
}

type ending struct {
	interceptor.WorkflowInboundInterceptorBase
}

func (e *ending) ExecuteWorkflow(ctx workflow.Context, in *interceptor.ExecuteWorkflowInput) (any, error) {
	result, err := e.Next.ExecuteWorkflow(ctx, in)
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

// workflowSpan is told only of a workflow that has ended, and not by a replay.
// It belongs to one goroutine at a time, as workflows do.
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

// SetStatus takes a workflow that goes on in another run for no failure.
func (s *workflowSpan) SetStatus(code codes.Code, says string) {
	if !s.continued {
		s.Span.SetStatus(code, says)
	}
}

func (s *workflowSpan) End(o ...trace.SpanEndOption) {
	if s.ended {
		s.Span.End(o...)
	}
}
