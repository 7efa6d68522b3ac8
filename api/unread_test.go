package api_test

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth/api"
	"berth/internal/lib/connlimit"
)

// listened serves the site as berthd does, over a listener that knows its
// connections, and returns a client's connection.
func (s *site) listened(encrypted bool) net.Conn {
	s.t.Helper()
	web := httptest.NewUnstartedServer(nil)
	web.Config = s.server.HTTP()
	web.Listener = connlimit.New(web.Listener, connlimit.Of(100, nil))
	if encrypted {
		web.StartTLS()
	} else {
		web.Start()
	}
	s.t.Cleanup(web.Close)
	c, err := net.Dial("tcp", web.Listener.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	if encrypted {
		config := web.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
		config.ServerName = "example.com"
		return tls.Client(c, config)
	}
	return c
}

// callsOf returns how many calls of a route have ended.
func callsOf(t *testing.T, from prometheus.Gatherer, route string) (n uint64) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "berth_http_request_seconds" && l.GetName() == "route" && l.GetValue() == route {
					n += m.GetHistogram().GetSampleCount()
				}
			}
		}
	}
	return n
}

// A client may send its next requests before it has read an answer. They wait until
// it has.
func TestAConnectionGetsOneAnswerUntilItsClientReads(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Log("what the kernel holds is known on Linux alone")
		return
	}
	for name, encrypted := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry := prometheus.NewRegistry()
			s := unreadSite(t, time.Hour, func(d *api.Deps) { d.Metrics = registry })
			before := callsOf(t, registry, "/v1/jobs")
			conn := s.listened(encrypted)
			const requests = 20
			request := "GET /v1/jobs?limit=1000 HTTP/1.1\r\nHost: example.com\r\nAuthorization: Bearer " + s.tokens["viewer"] + "\r\n\r\n"
			if _, err := io.WriteString(conn, strings.Repeat(request, requests)); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the first answer", func() bool { return callsOf(t, registry, "/v1/jobs")-before == 1 && s.server.UnreadAnswers() > 200_000 })
			for until := time.Now().Add(300 * time.Millisecond); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
				if n := callsOf(t, registry, "/v1/jobs") - before; n > 1 {
					t.Fatalf("a client that has read nothing was answered %d calls", n)
				}
			}
			in := bufio.NewReader(conn)
			for i := range requests {
				res, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatalf("answer %d of %d: %v", i+1, requests, err)
				}
				if n, err := io.Copy(io.Discard, res.Body); res.StatusCode != http.StatusOK || n < 200_000 || err != nil {
					t.Fatalf("answer %d of %d: %d with %d bytes, %v", i+1, requests, res.StatusCode, n, err)
				}
			}
			eventually(t, "the end of the last answer", func() bool { return s.server.UnreadAnswers() == 0 })
		})
	}
}

// A server that has stopped watches no unread answer, however slowly its client reads.
func TestAStoppedServerAwaitsTheWatchesOfUnreadAnswers(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Log("what the kernel holds is known on Linux alone")
		return
	}
	s := unreadSite(t, time.Hour)
	request := "GET /v1/jobs?limit=1000 HTTP/1.1\r\nHost: example.com\r\nAuthorization: Bearer " + s.tokens["viewer"] + "\r\n\r\n"
	if _, err := io.WriteString(s.listened(false), request); err != nil {
		t.Fatal(err)
	}
	eventually(t, "an answer that is not read", func() bool { return s.server.UnreadAnswers() > 200_000 })
	s.server.Close()
	// Wait awaits watches alone: the handler may still be about to hand its answer to one.
	eventually(t, "the end of the watch", func() bool {
		s.server.Wait()
		return s.server.UnreadAnswers() == 0
	})
}

// A client that never reads loses its connection, also where the kernel has taken the
// whole answer, and whether it sends another request or none.
func TestAClientThatNeverReadsLosesItsConnection(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Log("what the kernel holds is known on Linux alone")
		return
	}
	s := unreadSite(t, 3*time.Second)
	request := "GET /v1/jobs?limit=1000 HTTP/1.1\r\nHost: example.com\r\nAuthorization: Bearer " + s.tokens["viewer"] + "\r\n"
	for _, requests := range []string{
		request + "\r\n",
		strings.Repeat(request+"\r\n", 3),
		request + "Connection: close\r\n\r\n", // the server must not close it, or the kernel's bytes no longer count
	} {
		conn := s.listened(false)
		if _, err := io.WriteString(conn, requests); err != nil {
			t.Fatal(err)
		}
		eventually(t, "an answer that is not read", func() bool { return s.server.UnreadAnswers() > 200_000 })
		eventually(t, "the end of the answer", func() bool { return s.server.UnreadAnswers() == 0 })
		if n, err := io.Copy(io.Discard, conn); n >= 200_000 {
			t.Errorf("after %q the whole answer could still be read (%d bytes, %v)", requests, n, err)
		}
	}
}
