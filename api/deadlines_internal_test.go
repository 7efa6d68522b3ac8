package api

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v4"

	"berth"
	"berth/db"
)

// pipes is a listener whose connections are pipes: their deadlines follow the
// clock of a synctest bubble.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// timed serves a handler to a client, by HTTP/1 or HTTP/2, on the clock of the
// test's bubble.
func timed(t *testing.T, protocol int, handler func(*streams, echo.Context) error) *http.Client {
	t.Helper()
	good := func(context.Context, string) error { return nil }
	s := &streams{
		router: &router{}, closing: make(chan struct{}),
		transfers: newTransfers(TransferLimits{}.orDefaults(), good),
	}
	e := echo.New()
	e.Use(deadlines, func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			p := db.Principal{TokenID: "t", Tenant: "a"}
			c.SetRequest(c.Request().WithContext(context.WithValue(c.Request().Context(), principalKey{}, p)))
			return next(c)
		}
	})
	e.Any("/", func(c echo.Context) error { return handler(s, c) })
	e.HTTPErrorHandler = s.router.renderError
	var protocols http.Protocols
	protocols.SetHTTP1(protocol == 1)
	protocols.SetUnencryptedHTTP2(protocol == 2)
	web := &http.Server{Handler: e, Protocols: &protocols}
	l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- web.Serve(l) }()
	transport := &http.Transport{DialContext: l.dial, Protocols: &protocols}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = web.Close()
		<-ended
	})
	return &http.Client{Transport: transport}
}

// eachProtocol runs a test in a bubble for HTTP/1 and for HTTP/2.
func eachProtocol(t *testing.T, test func(t *testing.T, protocol int)) {
	t.Helper()
	for name, protocol := range map[string]int{"HTTP/1": 1, "HTTP/2": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { test(t, protocol) })
		})
	}
}

func TestAStreamThatIsQuietStaysOpen(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, protocol int) {
		client := timed(t, protocol, func(s *streams, c echo.Context) error {
			x, err := s.begin(c, followTransfer)
			if err != nil {
				return err
			}
			defer x.end()
			stream := s.startStream(c, x)
			time.Sleep(time.Hour) // nothing happens
			return stream.end(berth.Succeeded)
		})
		res, err := client.Get("http://berth/")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil || !strings.Contains(string(text), "event: end") {
			t.Errorf("after an hour in which nothing happened: %v; the stream is %q", err, text)
		}
	})
}

func TestABodyThatArrivedInTimeMayBeStoredSlowly(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, protocol int) {
		client := timed(t, protocol, func(s *streams, c echo.Context) error {
			x, err := s.begin(c, uploadTransfer)
			if err != nil {
				return err
			}
			defer x.end()
			time.Sleep(time.Hour) // the database is slow
			body := x.body(c.Request().Body)
			if _, err := io.ReadFull(body, make([]byte, 1000)); err != nil {
				return err
			}
			time.Sleep(time.Hour) // the store is slow
			rest, err := io.ReadAll(body)
			if err != nil {
				return err
			}
			time.Sleep(time.Hour) // at the end as well
			if x.ctx.Err() != nil || c.Request().Context().Err() != nil || len(rest) != 199_000 {
				return errors.New("the call has ended")
			}
			return c.String(http.StatusCreated, "stored")
		})
		res, err := client.Post("http://berth/", "application/zstd", strings.NewReader(strings.Repeat("x", 200_000)))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if text, err := io.ReadAll(res.Body); res.StatusCode != http.StatusCreated || err != nil {
			t.Errorf("%d %s, %v", res.StatusCode, text, err)
		}
	})
}

func TestABodyThatStandsStillIsCutOff(t *testing.T) {
	t.Parallel()
	eachProtocol(t, func(t *testing.T, protocol int) {
		client := timed(t, protocol, func(s *streams, c echo.Context) error {
			x, err := s.begin(c, uploadTransfer)
			if err != nil {
				return err
			}
			defer x.end()
			body := x.body(c.Request().Body)
			_, err = io.ReadAll(body)
			return err
		})
		in, out := io.Pipe()
		defer out.Close()
		go func() { _, _ = out.Write(make([]byte, 100)) }()
		began := time.Now()
		res, err := client.Post("http://berth/", "application/zstd", in)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		if res.StatusCode != http.StatusRequestTimeout || !strings.Contains(string(text), slugTooSlow) || time.Since(began) > time.Minute {
			t.Errorf("%d %s after %s", res.StatusCode, text, time.Since(began))
		}
	})
}
