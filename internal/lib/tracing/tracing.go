package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// scope is the instrumentation scope of the spans, in OpenTelemetry's terms.
const scope = "berth"

// closeLimit is how long a process that ends waits for a collector.
const closeLimit = 3 * time.Second

// Tracing creates and exports spans. A nil Tracing exports nothing. All methods may be called
// concurrently.
type Tracing struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	sampler  samplers
	log      *slog.Logger
}

// Open returns tracing with the options, nil if they name no collector. It does not
// connect: an absent collector is noticed at the first export. Close it.
func Open(ctx context.Context, o Options) (*Tracing, error) {
	if !o.on() {
		return nil, nil
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	sampler, err := o.sampler()
	if err != nil {
		return nil, err
	}
	exporter, err := o.exporter(ctx)
	if err != nil {
		return nil, fmt.Errorf("open exporter of traces: %w", err)
	}
	// Attributes of the resource in the environment take precedence.
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(), resource.WithAttributes(
		attribute.String("service.name", o.Service),
		attribute.String("service.version", o.Version),
		attribute.String("service.instance.id", o.Instance),
	), resource.WithFromEnv())
	if err != nil {
		o.Logger.Warn("cannot detect all trace resource attributes", "err", err)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(&quiet{SpanExporter: exporter, log: o.Logger}),
		// its queue is bounded and drops further spans
		sdktrace.WithIDGenerator(ids{}),
		sdktrace.WithSampler(sampler.all),
		sdktrace.WithResource(about),
	)
	return &Tracing{provider, provider.Tracer(scope, trace.WithInstrumentationVersion(o.Version)), sampler, o.Logger},
		nil
}

// exporter returns the exporter of the configured protocol. It does not connect yet.
func (o Options) exporter(ctx context.Context) (sdktrace.SpanExporter, error) {
	if o.Exporter != nil {
		return o.Exporter, nil
	}
	if o.Protocol == protocolGRPC {
		return otlptrace.New(ctx, otlptracegrpc.NewClient(otlptracegrpc.WithEndpointURL(o.Endpoint)))
	}
	return otlptrace.New(ctx, otlptracehttp.NewClient(otlptracehttp.WithEndpointURL(o.Endpoint)))
}

// Close sends the remaining spans and stops, within a few seconds.
func (t *Tracing) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.log.Warn("last spans lost", "err", err)
	}
}

// Tracer returns the tracer of the spans, for interceptors of other packages.
func (t *Tracing) Tracer() trace.Tracer { return t.tracer }

// Flush sends all waiting spans, for tests.
func (t *Tracing) Flush(ctx context.Context) error { return t.provider.ForceFlush(ctx) }
