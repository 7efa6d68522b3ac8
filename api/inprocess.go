package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"berth"
	"berth/db"
	"berth/internal/lib/overload"
)

// Pages are the pages of the dashboard, which this server serves at the address of the API.
type Pages interface {
	http.Handler

	// Routes lists the routes of all pages as patterns of http.ServeMux with a method, such as
	// GET /jobs/{id}.
	Routes() []string
}

// wildcard is a parameter in a pattern of http.ServeMux.
var wildcard = regexp.MustCompile(`\{([a-z]+)\}`)

// ServePages adds the routes of pages. It is called before the server serves calls. The pages
// authenticate their readers themselves, and reach data by RoundTripper only.
func (s *Server) ServePages(p Pages) {
	serve := func(c echo.Context) error {
		p.ServeHTTP(c.Response(), c.Request())
		return nil
	}
	for _, route := range p.Routes() {
		method, path, _ := strings.Cut(route, " ")
		path = wildcard.ReplaceAllString(strings.TrimSuffix(path, "{$}"), ":$1")
		s.router.echo.Add(method, path, serve)
		if method == http.MethodGet {
			s.router.echo.Add(http.MethodHead, path, serve)
		}
	}
}

// Closing returns a channel that is closed when streams shall end, see Close.
func (s *Server) Closing() <-chan struct{} { return s.closing }

// visitor is the caller of a call from this process. The pages have authenticated it.
type visitor struct {
	principal db.Principal
	since     time.Time                       // when the pages looked its token up
	holds     func(ctx context.Context) error // fails once the principal's token is revoked
}

type visitorKey struct{}

// visitorOf returns the visitor of a call. Only RoundTripper sets one: nothing in a request from
// the network can.
func visitorOf(ctx context.Context) (visitor, bool) {
	v, ok := ctx.Value(visitorKey{}).(*visitor)
	if !ok || v == nil {
		return visitor{}, false
	}
	return *v, true
}

// RoundTripper answers calls inside this process, by the handler of calls from the network, with
// all its permissions, limits and refusals. The calls count as calls of the principal; with nil
// they authenticate themselves by their headers. Calls without a valid token are counted by the
// address of the request on whose behalf they are made.
func (s *Server) RoundTripper(behalf *http.Request, p *db.Principal) http.RoundTripper {
	t := &inProcess{handler: s.router.echo, behalf: behalf}
	if p != nil {
		t.visitor = &visitor{principal: *p, since: time.Now(), holds: func(ctx context.Context) error {
			live, err := s.tokens.Live(overload.As(ctx, overload.Vital), []string{p.TokenID})
			if err == nil && !live[p.TokenID] {
				err = berth.Errorf(berth.CodeUnauthorized, "token %s is revoked or has expired", p.TokenID)
			}
			return err
		}}
	}
	return t
}

// inProcess is a transport without a connection.
type inProcess struct {
	handler http.Handler
	behalf  *http.Request
	visitor *visitor // nil: calls authenticate themselves
}

// RoundTrip starts the handler and returns once it has written the header. The handler ends with
// the call's context, or when the caller closes the body of the answer.
func (t *inProcess) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(context.WithValue(req.Context(), visitorKey{}, t.visitor))
	call := req.Clone(ctx)
	call.RequestURI, call.RemoteAddr, call.Host = req.URL.RequestURI(), t.behalf.RemoteAddr, t.behalf.Host
	// Streams of HTTP/2 share a connection, as calls of this process share that of the page: the
	// kernel's buffer of unread bytes belongs to the page and not to a call.
	call.Proto, call.ProtoMajor, call.ProtoMinor = "HTTP/2.0", 2, 0
	if call.Body == nil {
		call.Body = http.NoBody
	}
	for _, name := range []string{echo.HeaderXForwardedFor, echo.HeaderXRequestID} {
		if v := t.behalf.Header.Values(name); len(v) > 0 {
			call.Header[name] = v
		}
	}
	read, write := io.Pipe()
	w := &inProcessAnswer{header: http.Header{}, body: write, ready: make(chan struct{})}
	done := make(chan struct{})
	end := func() { // ends the handler, and waits for its end
		cancel()
		_ = read.CloseWithError(context.Canceled)
		<-done
	}
	go func() { // its owner is the caller of RoundTrip, who closes the body
		defer close(done)
		defer func() {
			if recover() != nil { // http.ErrAbortHandler; the server recovers from other panics
				_ = write.CloseWithError(errAborted)
				w.WriteHeader(http.StatusInternalServerError)
			}
		}()
		t.handler.ServeHTTP(w, call)
		w.WriteHeader(http.StatusOK)
		_ = write.Close()
	}()
	select {
	case <-w.ready:
	case <-ctx.Done():
		end()
		return nil, context.Cause(ctx)
	}
	return &http.Response{
		Status: http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: w.sent, Body: &inProcessBody{read, end}, ContentLength: -1, Request: req,
	}, nil
}

// errAborted is the end of an answer that its handler has given up.
var errAborted = errors.New("the call was aborted")

// inProcessBody ends the call when its reader closes it.
type inProcessBody struct {
	*io.PipeReader
	end func()
}

// Close implements io.Closer.
func (b *inProcessBody) Close() error {
	b.end()
	return nil
}

// inProcessAnswer is the http.ResponseWriter of a call of this process.
type inProcessAnswer struct {
	header http.Header
	body   *io.PipeWriter
	once   sync.Once
	ready  chan struct{} // closed once status and sent are set
	status int
	sent   http.Header
}

// Header implements http.ResponseWriter.
func (w *inProcessAnswer) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter; only its first call counts.
func (w *inProcessAnswer) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.ready)
	})
}

// Write implements http.ResponseWriter. It returns once the caller has read the bytes.
func (w *inProcessAnswer) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}

// Flush implements http.Flusher: a written byte is read already.
func (w *inProcessAnswer) Flush() { w.WriteHeader(http.StatusOK) }
