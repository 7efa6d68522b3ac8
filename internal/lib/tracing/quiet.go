package tracing

import (
	"context"
	"log/slog"
	"sync/atomic"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// quiet logs the first failed delivery to a collector, and the next successful one. The SDK would
// report each failed batch to a global handler.
type quiet struct {
	sdktrace.SpanExporter
	log  *slog.Logger
	away atomic.Bool
	lost atomic.Int64
}

// ExportSpans always returns nil: the SDK has no use for an error.
func (q *quiet) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := q.SpanExporter.ExportSpans(ctx, spans)
	if err != nil {
		q.lost.Add(int64(len(spans)))
		if !q.away.Swap(true) {
			q.log.Warn("span export failed, spans dropped", "err", err)
		}
	} else if q.away.Swap(false) {
		q.log.Info("span export recovered", "lost", q.lost.Swap(0))
	}
	return nil
}
