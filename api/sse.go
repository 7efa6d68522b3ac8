package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"berth"
	"berth/internal/control/blob"
)

// streamHeartbeat is the time between comments of an idle stream, so that proxies and
// clients do not take the silence for a dead connection.
const streamHeartbeat = 15 * time.Second

// Names of the events in a stream.
const (
	streamEvent = "event" // an entry of a job's history
	streamLog   = "log"   // a line of a log
	streamEnd   = "end"   // the stream is complete; the data has the job's status

	streamUnfinished = "unfinished" // the unfinished line of a log, in place of the one before
)

// stream is a response of server-sent events.
type stream struct {
	t       *transfer
	closing <-chan struct{}
}

// streams open the transfers of one process, and answer calls with long answers.
type streams struct {
	router    *router
	transfers *transfers
	closing   <-chan struct{}
}

// startStream answers with the headers of a stream. From here on errors can only end the
// stream; the client reconnects with Last-Event-ID.
func (s *streams) startStream(c echo.Context, t *transfer) *stream {
	h := c.Response().Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // proxies must not hold lines back
	c.Response().WriteHeader(http.StatusOK)
	x := &stream{t: t, closing: s.closing}
	_ = x.comment("stream")
	return x
}

// endStream closes the connection of a stream that was cut or broke off, since its caller
// must not take the break for the end.
func (s *streams) endStream(c echo.Context, t *transfer, err error) {
	s.logStream(c, err)
	if err != nil || t.broken() != nil {
		panic(http.ErrAbortHandler)
	}
}

// logStream logs the error of a stream that broke off, unless the client hung up.
func (s *streams) logStream(c echo.Context, err error) {
	if err != nil && c.Request().Context().Err() == nil {
		s.router.log.Warn("stream interrupted", "path", c.Path(), "err", err)
	}
}

// sendObject answers with an object's content. A reader that stalls, or whose token is
// revoked, is cut off.
func (s *streams) sendObject(c echo.Context, kind transferKind, store *blob.Store, key string) error {
	return s.send(c, kind, key, func(ctx context.Context) (io.ReadCloser, int64, error) { return store.Open(ctx, key) })
}

// send answers with the content that open returns, and its length. Its errors name key.
func (s *streams) send(
	c echo.Context, kind transferKind, key string, open func(context.Context) (io.ReadCloser, int64, error),
) error {
	t, err := s.begin(c, kind)
	if err != nil {
		return err
	}
	defer t.end()
	r, size, err := open(t.ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	h := c.Response().Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.FormatInt(size, 10))
	c.Response().WriteHeader(http.StatusOK)
	if err := t.copyFrom(r); err != nil {
		// Too late for an error answer: the reader sees that the length is wrong.
		s.router.log.Warn("object sent incompletely", "key", key, "err", err)
	}
	return nil
}

// appendEvent appends one event. An event with an empty id leaves the client's
// Last-Event-ID unchanged.
func appendEvent(b []byte, id, event string, data any) ([]byte, error) {
	text, err := json.Marshal(data)
	if err != nil {
		return b, fmt.Errorf("marshal %s: %w", event, err)
	}
	if id != "" {
		b = append(append(append(b, "id: "...), id...), '\n')
	}
	b = append(append(append(b, "event: "...), event...), "\ndata: "...)
	return append(append(b, text...), "\n\n"...), nil
}

// send writes one event.
func (x *stream) send(id, event string, data any) error {
	text, err := appendEvent(nil, id, event, data)
	if err != nil {
		return err
	}
	_, err = x.t.Write(text)
	return err
}

// comment writes a comment, which clients ignore, and flushes.
func (x *stream) comment(text string) error {
	if _, err := x.t.Write([]byte(": " + text + "\n\n")); err != nil {
		return err
	}
	return x.t.Flush()
}

// end reports the end of the stream to the client.
func (x *stream) end(status berth.State) error {
	if err := x.send("", streamEnd, map[string]berth.State{"status": status}); err != nil {
		return err
	}
	return x.t.Flush()
}

// aside is a source of events of a stream that are no part of its position. The zero aside sends none.
type aside struct {
	C    <-chan struct{} // receives when send may have an event
	send func() error
}

// follow calls step now and whenever hint fires, until step reports done, the client
// hangs up, the token is revoked, or the server closes. A database that does not answer
// is tried again after streamPoll; every other error of step ends the stream. Meanwhile follow sends
// the events of also.
func (x *stream) follow(
	hint <-chan struct{}, also aside, step func(ctx context.Context) (done bool, err error),
) error {
	ctx := x.t.ctx
	beat := time.NewTicker(streamHeartbeat)
	defer beat.Stop()
	for {
		done, err := step(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if done || err != nil && berth.CodeOf(err) != berth.CodeUnavailable {
			return err
		}
		if err := x.t.Flush(); err != nil {
			return err
		}
		var again <-chan time.Time
		if err != nil { // the return of the database sends no hint
			again = time.After(streamPoll)
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return nil
			case <-x.closing:
				return nil
			case <-hint:
				waiting = false
			case <-again:
				waiting = false
			case <-also.C:
				if err := also.send(); err != nil {
					return err
				}
				if err := x.t.Flush(); err != nil {
					return err
				}
			case <-beat.C:
				if err := x.comment("still here"); err != nil {
					return err
				}
			}
		}
	}
}

// wantsStream reports whether the client asked for server-sent events.
func wantsStream(accept string) bool { return strings.Contains(accept, "text/event-stream") }
