package agent

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"berth"
	"berth/internal/lib/tracing"
)

// traced begins a span of something that the rank does, under that of the rank
// as a whole.
func (r *member) traced(ctx context.Context, name string, about ...attribute.KeyValue) (context.Context, *tracing.Span) {
	t := r.sup.cfg.Traces
	if t == nil {
		return ctx, nil
	}
	ctx, span := t.Start(t.Under(ctx, r.key("rank")), name, about...)
	span.Set(r.attributes()...)
	return ctx, span
}

// part is the span of a part of the preparation.
func (r *member) part(ctx context.Context, name string, f func(context.Context) (*berth.Exit, error)) (*berth.Exit, error) {
	ctx, span := r.traced(ctx, name)
	exit, err := f(ctx)
	span.End(faultOf(ctx, exit, err))
	return exit, err
}

// faultOf is the class of what ended a part of a rank early.
func faultOf(ctx context.Context, exit *berth.Exit, err error) string {
	switch {
	case exit != nil:
		return string(exit.Cause)
	case err == nil:
		return ""
	}
	for why, name := range map[error]string{
		errStopped: "stopped", errTooSlow: "too_slow", errAbandoned: "abandoned", errAgentStops: "agent_stops", errGivenUp: "given_up",
	} {
		if errors.Is(err, why) || errors.Is(context.Cause(ctx), why) {
			return name
		}
	}
	return tracing.Fault(err)
}

// tellRun tells how long the container ran.
func (r *member) tellRun(x berth.Exit) {
	if t := r.sup.cfg.Traces; t.Tells(r.job) {
		t.Tell(r.key("run"), r.key("rank"), tracing.Past{Start: x.StartedAt, End: x.FinishedAt, About: append(r.attributes(), aboutExit(x)...), Fault: exitFault(x)})
	}
}

// tellRank tells of the rank as a whole, now that its end is on record. One that
// was adopted began before this process did.
func (r *member) tellRank(x berth.Exit) {
	t := r.sup.cfg.Traces
	if !t.Tells(r.job) {
		return
	}
	began := r.began
	if x.Started() && x.StartedAt.Before(began) {
		began = x.StartedAt
	}
	t.Tell(r.key("rank"), tracing.AttemptKey(r.job, r.attempt),
		tracing.Past{Start: began, End: time.Now(), About: append(r.attributes(), aboutExit(x)...), Fault: exitFault(x)})
}

func aboutExit(x berth.Exit) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("berth.exit.cause", string(x.Cause)), attribute.Int("berth.exit.code", x.Code), attribute.Bool("berth.exit.oom_killed", x.OOMKilled),
	}
}

func exitFault(x berth.Exit) string {
	if x.Done() {
		return ""
	}
	if x.OOMKilled {
		return "oom"
	}
	return string(x.Cause)
}
