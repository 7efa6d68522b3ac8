package api

import (
	"encoding/json"
	"fmt"
	"mime"
	"strings"

	"berth/wire"
)

// logBreaks describes how clients learn of a log that breaks off, for the description of the call.
const logBreaks = "An answer that cannot be completed breaks off, and never ends like a whole log. With " +
	"`Accept: text/event-stream;errors=true` an event `error` names the cause before that, and with " +
	"`Accept: application/x-ndjson;errors=true` a document `{\"error\": …}`; both have the fields of a Problem. " +
	"With `Accept: application/x-ndjson;positions=true` each document has a `position`, and the media type of the " +
	"answer has the parameter too. A call with this position as `Last-Event-ID`, and otherwise the same parameters, " +
	"begins after that line."

// streamError is the event that names the cause before a stream breaks off.
const streamError = "error"

// accepts reports whether a header Accept has a media type with a parameter of the value true. Clients of previous
// versions would show an error, or a position, as a line of the log.
func accepts(accept, parameter string) bool {
	for part := range strings.SplitSeq(accept, ",") {
		if _, parameters, err := mime.ParseMediaType(part); err == nil && parameters[parameter] == "true" {
			return true
		}
	}
	return false
}

// documents returns the media type and the format of an answer with one document for each line. The end of a line that
// the member has not ended yet is no position: the line may continue.
func (r *logRead) documents() (kind string, format func([]byte, wire.LogLine) ([]byte, error)) {
	kind = ndjson
	if r.positions {
		kind += "; positions=true"
	}
	return kind, func(b []byte, l wire.LogLine) ([]byte, error) {
		if r.positions && r.whole {
			l.Position = r.id()
		}
		text, err := json.Marshal(l)
		return append(append(b, text...), '\n'), err
	}
}

// breakOff completes an answer before its connection is cut: it sends the lines in the server's buffer, and the error
// as the last record, if the client takes such a record. format is nil for an answer without records.
func (r *logRead) breakOff(t *transfer, format func([]byte, *Problem) ([]byte, error), err error) {
	if err == nil || t.failed || t.ctx.Err() != nil {
		return
	}
	if format != nil && r.errors {
		p := *problemOf(err)
		p.Detail = fmt.Sprintf("the log of attempt %d, member %d cannot be read from byte %d on: %s", r.ref.Attempt,
			r.ref.Rank, r.offset, p.Detail)
		text, err := format(nil, &p)
		if err == nil {
			_, err = t.Write(text)
		}
		if err != nil {
			return // the connection is cut all the same
		}
	}
	_ = t.Flush()
}

// errorDocument formats an error in an answer with one document for each line.
func errorDocument(b []byte, p *Problem) ([]byte, error) {
	text, err := json.Marshal(map[string]*Problem{"error": p})
	return append(append(b, text...), '\n'), err
}

// errorEvent formats an error in a stream of events. The position of the stream stays.
func errorEvent(b []byte, p *Problem) ([]byte, error) { return appendEvent(b, "", streamError, p) }
