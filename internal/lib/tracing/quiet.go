package tracing

import (
	"context"
	"log/slog"
	"sync/atomic"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// quiet logs once that a collector does not accept spans, and once that it does
// again: the SDK would report each batch, to a global handler.
type quiet struct {
	sdktrace.SpanExporter
	log  *slog.Logger
	away atomic.Bool
	lost atomic.Int64
}

// ExportSpans never fails: there is nothing that the SDK could do about it.
func (q *quiet) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := q.SpanExporter.ExportSpans(ctx, spans)
	if err != nil {
		q.lost.Add(int64(len(spans)))
		if !q.away.Swap(true) {
			q.log.Warn("spans not delivered and dropped; jobs do not depend on it", "err", err)
		}
	} else if q.away.Swap(false) {
		q.log.Info("spans are delivered again", "lost", q.lost.Swap(0))
	}
	return nil
}
