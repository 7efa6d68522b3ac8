package agent

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"berth/failure"
	"berth/internal/lib/tracing"
)

// spans makes the trace of one member: a span for the whole member, and below that span one for
// each part of its work. With nil traces its methods only run the work.
type spans struct {
	*identity
	traces *tracing.Tracing // nil: none
}

// start begins a span under the member's own.
func (s spans) start(
	ctx context.Context, name string, about ...attribute.KeyValue,
) (context.Context, *tracing.Span) {
	if s.traces == nil {
		return ctx, nil
	}
	ctx, span := s.traces.Start(s.traces.Under(ctx, s.key("rank")), name, about...)
	span.Set(s.attributes()...)
	return ctx, span
}

// step puts the work of a phase into a span. An exit that f leaves in the result is
// the span's fault.
func (s spans) step(
	ctx context.Context, name string, r *result, f func(context.Context) (phase, error),
) (phase, error) {
	ctx, span := s.start(ctx, name)
	next, err := f(ctx)
	var exit *failure.Exit
	if err == nil && next == phaseFence {
		exit = &r.exit
	}
	span.End(faultOf(ctx, exit, err))
	return next, err
}

// run adds the span of the container's run, which has ended.
func (s spans) run(x failure.Exit) {
	if !s.traces.Tells(s.job) {
		return
	}
	s.traces.Tell(s.key("run"), s.key("rank"), tracing.Past{
		Start: x.StartedAt, End: x.FinishedAt,
		About: append(s.attributes(), exitAttributes(x)...), Fault: exitFault(x),
	})
}

// whole adds the span of the member, now that its end is on record. An adopted
// member began before this process did.
func (s spans) whole(x failure.Exit, began time.Time) {
	if !s.traces.Tells(s.job) {
		return
	}
	if x.Started() && x.StartedAt.Before(began) {
		began = x.StartedAt
	}
	s.traces.Tell(s.key("rank"), tracing.AttemptKey(s.job, s.attempt), tracing.Past{
		Start: began, End: time.Now(),
		About: append(s.attributes(), exitAttributes(x)...), Fault: exitFault(x),
	})
}

// faultOf classifies the early end of a part of a member's work, "" for a good end.
func faultOf(ctx context.Context, exit *failure.Exit, err error) string {
	switch {
	case exit != nil:
		return string(exit.Cause)
	case err == nil:
		return ""
	}
	for why, name := range map[error]string{
		errStopped: "stopped", errTooSlow: "too_slow", errAbandoned: "abandoned",
		errAgentStops: "agent_stops", errGivenUp: "given_up",
	} {
		if errors.Is(err, why) || errors.Is(context.Cause(ctx), why) {
			return name
		}
	}
	return tracing.Fault(err)
}

// exitAttributes returns an exit as attributes of a span.
func exitAttributes(x failure.Exit) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("berth.exit.cause", string(x.Cause)), attribute.Int("berth.exit.code", x.Code),
		attribute.Bool("berth.exit.oom_killed", x.OOMKilled),
	}
}

// exitFault classifies a member's exit for its span, "" for success.
func exitFault(x failure.Exit) string {
	if x.Done() {
		return ""
	}
	if x.OOMKilled {
		return "oom"
	}
	return string(x.Cause)
}
