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

// maxBody is the longest body of a user's call; job files are far smaller
// (spec.MaxSpecBytes). A longer one is read for lingerTime and at most
// drainBody, so that the client gets to see the answer instead of a broken
// connection, and then the connection is closed.
const (
	maxBody    = 1 << 20
	drainBody  = 16 << 20
	lingerTime = 2 * time.Second
)

// bodyTimeout is how long a body may take to arrive, of every call that does not
// set a deadline of its own because it streams. agentBodyTimeout is that of
// agents' calls, which may be 16 MiB on a slow line.
const (
	bodyTimeout      = 10 * time.Second
	agentBodyTimeout = 30 * time.Second
)

// bodyWait is how long a body waits for its place among bodiesAbreast. None of its
// bytes are read meanwhile, so bodyTimeout begins afterwards.
const bodyWait = 5 * time.Second

// bodiesAbreast is how many bodies may arrive at a time, and bodiesOfTenant how
// many of them for one tenant: each takes up to maxBody of memory.
const (
	bodiesAbreast  = 256
	bodiesOfTenant = 64
)

var tooLarge = fmt.Sprintf("the body is longer than %d bytes", maxBody)

// readDeadline bounds how long the rest of a request may take to arrive; the
// zero time lifts the bound. The server sets its own again before it reads the
// next request of the connection.
func readDeadline(c echo.Context, at time.Time) {
	// Writers of tests know no deadlines, and need none.
	_ = http.NewResponseController(c.Response().Writer).SetReadDeadline(at)
}

// deadlines gives every call with a body bodyTimeout to send it, even if the call
// fails: the server itself would wait for the rest of a body that no handler has
// read. The client of every call gets answerTimeout to read the answer, from the
// start of the answer; transfers and held answers then set separate deadlines.
func deadlines(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		control := http.NewResponseController(c.Response())
		if c.Request().ProtoMajor == 1 {
			_ = control.SetWriteDeadline(time.Time{}) // that of the connection's last call
		}
		c.Response().Before(func() { _ = control.SetWriteDeadline(time.Now().Add(answerTimeout)) })
		if c.Request().ContentLength != 0 {
			readDeadline(c, time.Now().Add(bodyTimeout))
		}
		return next(c)
	}
}

// bodies reads the body of a user's call before the call takes a slot of those
// that may be under way, so that a body that never arrives holds none. It refuses
// bodies above maxBody. Agents' routes and uploads carry objects and have limits
// of their own.
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
