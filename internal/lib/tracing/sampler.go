package tracing

import (
	"crypto/sha256"
	"fmt"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// samplers decide which traces are exported: whole for spans that have no parent,
// all for any span.
type samplers struct {
	root sdktrace.Sampler
	all  sdktrace.Sampler
}

// sampler returns the samplers of the configured name. OpenTelemetry defines the names for
// OTEL_TRACES_SAMPLER.
func (o Options) sampler() (samplers, error) {
	always, never, ratio := sdktrace.AlwaysSample(), sdktrace.NeverSample(),
		sdktrace.Sampler(spread{sdktrace.TraceIDRatioBased(o.Ratio)})
	alike := func(s sdktrace.Sampler) samplers { return samplers{s, s} }
	byParent := func(s sdktrace.Sampler) samplers { return samplers{s, sdktrace.ParentBased(s)} }
	switch o.Sampler {
	case "", "parentbased_always_on":
		return byParent(always), nil
	case "parentbased_always_off":
		return byParent(never), nil
	case "parentbased_traceidratio":
		return byParent(ratio), nil
	case "always_on":
		return alike(always), nil
	case "always_off":
		return alike(never), nil
	case "traceidratio":
		return alike(ratio), nil
	}
	return samplers{}, fmt.Errorf("OTEL_TRACES_SAMPLER %q: allowed are always_on, always_off, traceidratio, "+
		"parentbased_always_on, parentbased_always_off, parentbased_traceidratio", o.Sampler)
}

// takes reports whether a trace is exported. Every process with the same settings
// gives the same answer.
func (s samplers) takes(id trace.TraceID) bool {
	return id.IsValid() &&
		s.root.ShouldSample(sdktrace.SamplingParameters{TraceID: id}).Decision == sdktrace.RecordAndSample
}

// spread is a sampler by ratio, for ids with bits that are not all random. The SDK
// compares the upper bits of an id's second half. In a UUID these contain the
// variant, so that a ratio of a half would take no job, and one of three quarters
// all.
type spread struct{ sdktrace.Sampler }

// ShouldSample asks the sampler about a hash of the trace id. All bits of the hash are
// random.
func (s spread) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	sum := sha256.Sum256(p.TraceID[:])
	p.TraceID = trace.TraceID(sum[:16])
	return s.Sampler.ShouldSample(p)
}
