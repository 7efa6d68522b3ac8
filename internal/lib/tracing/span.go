package tracing

import (
	"context"
	"errors"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"berth"
	"berth/wire"
)

// Span is a span that has not ended. All methods of a nil Span do nothing.
type Span struct{ span trace.Span }

// Start begins a span under the one of the context, which End ends. Both do
// nothing outside of a trace: Berth's spans belong to jobs or to calls.
func (t *Tracing) Start(ctx context.Context, name string, about ...attribute.KeyValue) (context.Context, *Span) {
	if t == nil || !trace.SpanContextFromContext(ctx).IsSampled() {
		return ctx, nil
	}
	ctx, span := t.tracer.Start(ctx, name, trace.WithAttributes(about...))
	return ctx, &Span{span}
}

// Under returns a context in which spans begin as children of the one that k
// names.
func (t *Tracing) Under(ctx context.Context, k Key) context.Context {
	if t == nil {
		return ctx
	}
	return trace.ContextWithSpanContext(ctx, t.context(k))
}

// Tells reports whether the job's trace is exported, so that callers can skip the
// computation of attributes otherwise.
func (t *Tracing) Tells(id berth.JobID) bool { return t != nil && t.sampler.takes(JobTrace(id)) }

// Set adds attributes to the span.
func (s *Span) Set(about ...attribute.KeyValue) {
	if s != nil {
		s.span.SetAttributes(about...)
	}
}

// End ends the span. fault is the class of the failure, "" for a success.
func (s *Span) End(fault string) {
	if s == nil {
		return
	}
	setFault(s.span, fault)
	s.span.End()
}

// Fault classifies an error by its code, or as canceled or past its deadline. The text of the
// error is left out, since it may hold a user's data.
func Fault(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline_exceeded"
	}
	return string(berth.CodeOf(err))
}

// setFault marks a span as failed; "" leaves the span unmarked.
func setFault(s trace.Span, fault string) {
	if fault != "" {
		s.SetStatus(codes.Error, fault)
		s.SetAttributes(attribute.String("error.type", fault))
	}
}

// Past holds the times and attributes of a span that is over.
type Past struct {
	Start, End time.Time
	About      []attribute.KeyValue
	Fault      string
	Links      []trace.Link
}

// Tell exports a span that has ended. A repeated export, from any process, is the same
// span, since its id is the key's. The root has no parent; every other span has one
// in the same trace.
func (t *Tracing) Tell(k, parent Key, p Past) {
	if !t.Tells(k.Job) || p.Start.IsZero() {
		return
	}
	ctx := context.Background()
	if k != JobKey(k.Job) {
		ctx = t.Under(ctx, parent)
	}
	ctx = want(ctx, wanted{JobTrace(k.Job), k.span()})
	_, span := t.tracer.Start(ctx, k.Name, trace.WithTimestamp(p.Start), trace.WithAttributes(p.About...),
		trace.WithLinks(p.Links...))
	setFault(span, p.Fault)
	if p.End.Before(p.Start) {
		p.End = p.Start
	}
	span.End(trace.WithTimestamp(p.End))
}

// LinkTo is a link to the root of another job's trace.
func (t *Tracing) LinkTo(id berth.JobID, how string) trace.Link {
	return trace.Link{SpanContext: t.context(JobKey(id)),
		Attributes: []attribute.KeyValue{attribute.String("berth.link", how)}}
}

// Submitted exports the call that submitted a job, from began until now, and links the call's own
// trace, if any, with the job's.
func (t *Tracing) Submitted(ctx context.Context, job wire.Job, began time.Time) {
	if t == nil {
		return
	}
	call := trace.SpanFromContext(ctx)
	call.SetAttributes(attribute.String("berth.job_id", string(job.ID)))
	call.AddLink(t.LinkTo(job.ID, "submitted"))
	p := Past{Start: began, End: time.Now(), About: AboutJob(job)}
	if sc := call.SpanContext(); sc.IsValid() {
		p.Links = []trace.Link{{SpanContext: sc,
			Attributes: []attribute.KeyValue{attribute.String("berth.link", "call")}}}
	}
	t.Tell(Key{Job: job.ID, Name: "submit"}, JobKey(job.ID), p)
}

// AboutJob returns the attributes of a job for its spans.
func AboutJob(job wire.Job) []attribute.KeyValue {
	about := []attribute.KeyValue{
		attribute.String("berth.job_id", string(job.ID)), attribute.String("berth.job_name", job.Name),
		attribute.String("berth.tenant", string(job.Tenant)),
	}
	if job.Kind != "" {
		about = append(about, attribute.String("berth.kind", string(job.Kind)))
	}
	return about
}

// w3c is the only format in which Berth reads and writes trace contexts. Baggage is
// not passed on, since its content is unknown.
var w3c propagation.TraceContext

// named returns the span in a call's header, if any. It ignores the caller's
// tracestate and its sampling decision.
func named(h http.Header) (trace.TraceID, trace.SpanID, bool) {
	from := trace.SpanContextFromContext(w3c.Extract(context.Background(), propagation.HeaderCarrier(h)))
	return from.TraceID(), from.SpanID(), from.IsValid()
}

// Serve starts the span of a call by any caller, in a separate trace that is linked
// with the trace in the header. As a part of that trace, a caller could add spans to
// any trace, and force more exports than the sampler permits (W3C Trace Context,
// sections 3.4 and 7.2: restart the trace).
func (t *Tracing) Serve(ctx context.Context, h http.Header, name string,
	about ...attribute.KeyValue) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	o := []trace.SpanStartOption{trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(about...)}
	if id, span, ok := named(h); ok {
		from := trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span, Remote: true})
		o = append(o, trace.WithLinks(trace.Link{SpanContext: from,
			Attributes: []attribute.KeyValue{attribute.String("berth.link", "caller")}}))
	}
	ctx, span := t.tracer.Start(ctx, name, o...)
	return ctx, &Span{span}
}

// ServeAgent begins the span of an authenticated machine's call, under the span that the header
// names. Without such a header it begins no span.
func (t *Tracing) ServeAgent(ctx context.Context, h http.Header, name string,
	about ...attribute.KeyValue) (context.Context, *Span) {
	id, span, ok := named(h)
	if t == nil || !ok {
		return ctx, nil
	}
	ctx, begun := t.tracer.Start(trace.ContextWithSpanContext(ctx, t.remote(id, span)), name,
		trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(about...))
	return ctx, &Span{begun}
}

// Inject puts where a call comes from into its header, if that is a span.
func Inject(ctx context.Context, h http.Header) { w3c.Inject(ctx, propagation.HeaderCarrier(h)) }

// Step is one act of a Temporal client or worker.
type Step struct {
	Name string
	Job  berth.JobID // whose workflow it is about; "" of a schedule's
	At   time.Time   // when it began; zero: now

	// Repeats names a workflow's own span, which starts again at each replay of the
	// workflow: exported spans below it must always have the same parent.
	Repeats string
	Parent  trace.SpanContext // as Temporal hands it on; may be zero
	About   []attribute.KeyValue
}

// Temporal starts the span of a step. A span about a job belongs to the job's trace,
// with any cause: a parent in another trace is linked. The parent of a schedule's
// workflow is linked too; otherwise all future fires would share one trace.
func (t *Tracing) Temporal(s Step) trace.Span {
	o := []trace.SpanStartOption{trace.WithAttributes(s.About...)}
	if !s.At.IsZero() {
		o = append(o, trace.WithTimestamp(s.At))
	}
	parent := s.Parent
	switch {
	case s.Job != "" && parent.TraceID() != JobTrace(s.Job):
		parent = t.context(JobKey(s.Job))
	case s.Job == "" && s.Repeats != "":
		parent = trace.SpanContext{}
	}
	if s.Parent.IsValid() && !parent.Equal(s.Parent) {
		o = append(o, trace.WithLinks(trace.Link{SpanContext: s.Parent}))
	}
	ctx := trace.ContextWithSpanContext(context.Background(), parent)
	if s.Repeats != "" {
		w := wantedFor(s.Repeats)
		if parent.IsValid() {
			w.trace = parent.TraceID()
		}
		ctx = want(ctx, w)
	}
	_, span := t.tracer.Start(ctx, s.Name, o...)
	return span
}
