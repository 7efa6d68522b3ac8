package tracing

import (
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"strings"

	"go.opentelemetry.io/otel/trace"

	"berth"
)

// JobTrace returns the id of a job's trace: the job's own, without its dashes. Its
// last 56 bits are random, as W3C Trace Context (level 2, section 4.4) requires. The
// UUID of zeros, and texts that are not UUIDs, get the invalid id, and nothing is
// exported about them.
func JobTrace(id berth.JobID) trace.TraceID {
	t, _ := trace.TraceIDFromHex(strings.ReplaceAll(string(id), "-", ""))
	return t
}

// Key names a span that every process can refer to, made or not: its id is a
// function of its key.
type Key struct {
	Job     berth.JobID
	Attempt int                // 0: of the job as a whole
	Alloc   berth.AllocationID // 0: of no member
	Name    string
}

// JobKey names the span that is a job's whole way, the root of its trace.
func JobKey(id berth.JobID) Key { return Key{Job: id, Name: "job"} }

// AttemptKey names the span of an attempt, from its grant to its verdict.
func AttemptKey(id berth.JobID, attempt int) Key {
	return Key{Job: id, Attempt: attempt, Name: "attempt"}
}

// span is the id of the span.
func (k Key) span() trace.SpanID {
	return wantedFor(fmt.Sprintf("%s/%d/%d/%s", k.Job, k.Attempt, k.Alloc, k.Name)).span
}

// context returns the span in the form for references from other spans.
func (t *Tracing) context(k Key) trace.SpanContext { return t.remote(JobTrace(k.Job), k.span()) }

// remote is a span of another process. Spans below it follow the flags, which this
// process decides itself.
func (t *Tracing) remote(id trace.TraceID, span trace.SpanID) trace.SpanContext {
	flags := trace.TraceFlags(0)
	if t.sampler.takes(id) {
		flags = trace.FlagsSampled
	}
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span, TraceFlags: flags, Remote: true})
}

// ids gives spans the ids that their context asks for, and random ones else.
type ids struct{}

// wanted is a fixed identity for the next span of a context.
type wanted struct {
	trace trace.TraceID
	span  trace.SpanID
}

// wantedFor are ids that are a function of a text.
func wantedFor(s string) wanted {
	sum := sha256.Sum256([]byte(s))
	return wanted{trace: trace.TraceID(sum[8:24]), span: trace.SpanID(sum[:8])}
}

// wantedKey is the context key of a wanted identity.
type wantedKey struct{}

// want sets the ids of the one span that is started with the context. Work below
// that span must not receive this context.
func want(ctx context.Context, w wanted) context.Context {
	return context.WithValue(ctx, wantedKey{}, w)
}

// NewIDs returns the wanted identity of the context, or random ids for a new trace.
func (ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if w, ok := ctx.Value(wantedKey{}).(wanted); ok {
		return w.trace, w.span
	}
	var t trace.TraceID
	for !t.IsValid() {
		fill(t[:])
	}
	return t, randomSpan()
}

// NewSpanID returns the wanted id of the context, or a random one.
func (ids) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	if w, ok := ctx.Value(wantedKey{}).(wanted); ok {
		return w.span
	}
	return randomSpan()
}

// randomSpan returns a random id, which is never zero.
func randomSpan() (s trace.SpanID) {
	for !s.IsValid() {
		fill(s[:])
	}
	return s
}

// fill fills b with random bytes. Ids need not be secret.
func fill(b []byte) {
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
}
