package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"berth"
)

// Times of a stream. A revoked token ends it within streamCheck + authMemory.
const (
	streamCheck     = 2 * time.Second  // between looks at the token
	streamPoll      = 4 * time.Second  // between looks at the rows when no hint comes
	streamHeartbeat = 15 * time.Second // between comments when nothing happens
	streamWrite     = 10 * time.Second // for a client to take what is written
)

// Names of the events in a stream.
const (
	streamEvent = "event" // an entry of a job's history
	streamLog   = "log"   // a line of a log
	streamEnd   = "end"   // nothing will follow; its data has the job's status
)

// stream is a response of server-sent events.
type stream struct {
	c     echo.Context
	s     *Server
	token string
}

// startStream answers with the headers of a stream. From here on errors can
// only end it; the client comes back with Last-Event-ID.
func (s *Server) startStream(c echo.Context) *stream {
	h := c.Response().Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // proxies must not hold lines back
	c.Response().WriteHeader(http.StatusOK)
	token, _ := strings.CutPrefix(c.Request().Header.Get("Authorization"), "Bearer ")
	t := &stream{c: c, s: s, token: token}
	_ = t.comment("stream")
	return t
}

// send writes one event; an empty id leaves the client's where it is.
func (t *stream) send(id, event string, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("marshal %s: %w", event, err)
	}
	var b strings.Builder
	if id != "" {
		b.WriteString("id: " + id + "\n")
	}
	b.WriteString("event: " + event + "\ndata: ")
	b.Write(text)
	b.WriteString("\n\n")
	return t.write(b.String())
}

func (t *stream) comment(text string) error {
	if err := t.write(": " + text + "\n\n"); err != nil {
		return err
	}
	return t.flush()
}

func (t *stream) write(text string) error {
	control := http.NewResponseController(t.c.Response())
	_ = control.SetWriteDeadline(time.Now().Add(streamWrite))
	_, err := t.c.Response().Write([]byte(text))
	return err
}

func (t *stream) flush() error { return http.NewResponseController(t.c.Response()).Flush() }

// end tells the client that it has everything.
func (t *stream) end(status berth.State) error {
	if err := t.send("", streamEnd, map[string]berth.State{"status": status}); err != nil {
		return err
	}
	return t.flush()
}

// follow calls step now, whenever hint fires and every streamPoll, until step
// says that it is done, the client is gone, the token does not open the route
// any more, or the server closes.
func (t *stream) follow(hint <-chan struct{}, step func(ctx context.Context) (done bool, err error)) error {
	ctx := t.c.Request().Context()
	check := time.NewTicker(streamCheck)
	defer check.Stop()
	poll := time.NewTicker(streamPoll)
	defer poll.Stop()
	beat := time.NewTicker(streamHeartbeat)
	defer beat.Stop()
	for {
		done, err := step(ctx)
		if done || err != nil && berth.CodeOf(err) != berth.CodeUnavailable {
			return err
		}
		if err := t.flush(); err != nil {
			return err
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return nil
			case <-t.s.closing:
				return nil
			case <-hint:
				waiting = false
			case <-poll.C:
				waiting = false
			case <-check.C:
				if t.revoked(ctx) {
					return nil
				}
			case <-beat.C:
				if err := t.comment("still here"); err != nil {
					return err
				}
			}
		}
	}
}

func (t *stream) revoked(ctx context.Context) bool {
	_, err := t.s.auth.principal(ctx, t.token, t.s.DB.Authenticate)
	return berth.CodeOf(err) == berth.CodeUnauthorized
}

// wantsStream reports whether the client asked for server-sent events.
func wantsStream(accept string) bool { return strings.Contains(accept, "text/event-stream") }
