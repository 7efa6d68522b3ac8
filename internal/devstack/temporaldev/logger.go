package temporaldev

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/log/tag"
)

// logger passes the server's lines to slog, at levels that suit a development stack: faults that
// the server repairs unnoticed are debug, and its errors are warnings as long as the server
// lives.
//
// Fatal must end the process: the server calls Fatal where it cannot go on, and goes on into nil
// pointers if Fatal returns.
type logger struct {
	to   *slog.Logger
	gate *gate
}

// gate is shared by all loggers of one server.
type gate struct {
	// stopping lowers every line to debug: services that end one after the other complain about
	// the services that ended before.
	stopping atomic.Bool

	mu   sync.Mutex
	last map[string]time.Time // when each warning was let through
}

// repeatAfter keeps an outage of PostgreSQL, during which 64 shards retry
// twenty times a second, readable.
const repeatAfter = 10 * time.Second

// open reports whether this warning may pass now. Messages are constants in the
// server's source, so the map stays small.
func (g *gate) open(msg string) bool {
	if g.stopping.Load() {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.last[msg]) < repeatAfter {
		return false
	}
	g.last[msg] = time.Now()
	return true
}

var (
	_ log.Logger     = logger{}
	_ log.WithLogger = logger{}
)

func newLogger(to *slog.Logger) logger {
	return logger{to: to, gate: &gate{last: map[string]time.Time{}}}
}

func (l logger) Debug(string, ...tag.Tag)           {}
func (l logger) Info(msg string, tags ...tag.Tag)   { l.write(slog.LevelDebug, msg, tags) }
func (l logger) Warn(msg string, tags ...tag.Tag)   { l.write(slog.LevelDebug, msg, tags) }
func (l logger) Error(msg string, tags ...tag.Tag)  { l.write(slog.LevelWarn, msg, tags) }
func (l logger) DPanic(msg string, tags ...tag.Tag) { l.write(slog.LevelError, msg, tags) }

func (l logger) Panic(msg string, tags ...tag.Tag) {
	panic(fmt.Sprint("temporal server: ", msg, " ", attrs(tags)))
}

func (l logger) Fatal(msg string, tags ...tag.Tag) {
	l.to.Error(msg, attrs(tags)...)
	fmt.Fprintln(os.Stderr, "temporal server cannot go on:", msg, attrs(tags))
	os.Exit(1)
}

func (l logger) With(tags ...tag.Tag) log.Logger {
	return logger{to: l.to.With(attrs(tags)...), gate: l.gate}
}

func (l logger) write(level slog.Level, msg string, tags []tag.Tag) {
	if level == slog.LevelWarn && !l.gate.open(msg) {
		level = slog.LevelDebug
	}
	ctx := context.Background() // the server's interface carries none
	if l.to.Enabled(ctx, level) {
		l.to.Log(ctx, level, msg, attrs(tags)...)
	}
}

func attrs(tags []tag.Tag) []any {
	out := make([]any, 0, len(tags))
	for _, t := range tags {
		out = append(out, slog.Any(t.Key(), t.Value()))
	}
	return out
}
