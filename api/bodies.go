package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"berth"
)

// maxBody is the longest body of a user's call, in bytes; job files are far smaller
// (spec.MaxSpecBytes). A longer body is read for lingerTime and up to drainBody, so that
// the client sees the answer instead of a broken connection. Then the connection is
// closed.
const (
	maxBody    = 1 << 20
	drainBody  = 16 << 20
	lingerTime = 2 * time.Second
)

// bodyTimeout bounds the arrival of a body, except for calls that stream and set
// deadlines of their own. agentBodyTimeout is the bound for agents' calls, which may send
// 16 MiB over a slow line.
const (
	bodyTimeout      = 10 * time.Second
	agentBodyTimeout = 30 * time.Second
)

// bodyWait bounds the wait of a body for a place among bodiesAbreast. No byte of the body
// is read meanwhile, so bodyTimeout begins afterwards.
const bodyWait = 5 * time.Second

// bodiesAbreast is the number of bodies that may arrive at a time, and bodiesOfTenant the
// part of one tenant: each body takes up to maxBody of memory.
const (
	bodiesAbreast  = 256
	bodiesOfTenant = 64
)

var tooLarge = fmt.Sprintf("the body is longer than %d bytes", maxBody)

// readDeadline bounds the arrival of the rest of a request; the zero time lifts the
// bound. The server sets its own again before it reads the next request of the
// connection.
func readDeadline(c echo.Context, at time.Time) {
	// Response writers of tests support no deadlines, and need none.
	_ = http.NewResponseController(c.Response().Writer).SetReadDeadline(at)
}

// deadlines bounds the arrival of every body by bodyTimeout, even if the call fails: the
// server itself would wait for the rest of a body that no handler has read. The client of
// every call gets answerTimeout to read the answer, from the start of the answer;
// transfers and held answers then set separate deadlines.
func deadlines(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		control := http.NewResponseController(c.Response())
		if c.Request().ProtoMajor == 1 {
			_ = control.SetWriteDeadline(time.Time{}) // clears the deadline of the connection's last call
		}
		c.Response().Before(func() { _ = control.SetWriteDeadline(time.Now().Add(answerTimeout)) })
		if c.Request().ContentLength != 0 {
			readDeadline(c, time.Now().Add(bodyTimeout))
		}
		return next(c)
	}
}

// bodies reads the body of a user's call before the call takes a slot, so that a body
// that never arrives occupies no slot. It refuses bodies above maxBody. Agents' routes
// and uploads carry objects and have separate limits.
func (o *openCalls) bodies(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if r.ContentLength == 0 || !strings.HasPrefix(r.URL.Path, "/v1/") || carriesData(c) {
			return next(c)
		}
		body, err := o.receiveBody(c)
		if err != nil {
			return err
		}
		readDeadline(c, time.Time{})
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		return next(c)
	}
}

// receiveBody reads a whole body while holding one of the places among bodiesAbreast.
// After a refusal or a timeout the connection is closed: the unread rest of the body
// stands before the next request.
func (o *openCalls) receiveBody(c echo.Context) ([]byte, error) {
	r := c.Request()
	tenant := caller(r.Context()).Tenant
	readDeadline(c, time.Time{})
	ctx, cancel := context.WithTimeout(r.Context(), bodyWait)
	err := o.arriving.take(ctx, tenant)
	cancel()
	if err != nil {
		readDeadline(c, time.Now().Add(lingerTime))
		c.Response().Header().Set("Connection", "close")
		return nil, err
	}
	defer o.arriving.give(tenant)
	readDeadline(c, time.Now().Add(bodyTimeout))
	if r.ContentLength > maxBody {
		return nil, refuseBody(c)
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.Response().Header().Set("Connection", "close")
		return nil, problemOfStatus(http.StatusRequestTimeout, "")
	case err != nil:
		return nil, berth.Errorf(berth.CodeInvalid, "the body cannot be read: %v", err)
	case len(body) > maxBody:
		return nil, refuseBody(c)
	}
	return body, nil
}

// refuseBody answers that a body is too long, and closes the connection.
func refuseBody(c echo.Context) error {
	c.Response().Header().Set("Connection", "close")
	readDeadline(c, time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, c.Request().Body, drainBody)
	return &berth.Error{Code: berth.CodeInvalid, Slug: slugTooLarge, Message: tooLarge}
}
