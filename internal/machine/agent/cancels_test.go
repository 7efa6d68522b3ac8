package agent_test

import (
	"bytes"
	"context"
	"flag"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/activities/node/runtimetest"
	"berth/internal/machine/docker"
	"berth/spec"
)

var cancels = flag.Int("cancels", 10, "how many jobs are canceled against a slow container engine")

// slowDocker is a socket that leads to the host's Docker Engine. The engine behind it
// takes up to two seconds longer for each create, and carries it out also when its
// caller has hung up. idle waits until it has answered all creates.
func slowDocker(t *testing.T) (host string, idle func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "slow") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", "/var/run/docker.sock")
		},
		MaxIdleConnsPerHost: 64,
	}
	t.Cleanup(transport.CloseIdleConnections)
	var creates sync.WaitGroup
	forward := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "docker" },
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	l, err := net.Listen("unix", filepath.Join(dir, "docker.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/containers/create") {
				creates.Add(1)
				defer creates.Done()
				body, err := io.ReadAll(r.Body)
				if err != nil {
					return
				}
				r.Body = io.NopCloser(bytes.NewReader(body))
				time.Sleep(rand.N(2 * time.Second)) // as a busy engine does
				r = r.WithContext(context.WithoutCancel(r.Context()))
			}
			forward.ServeHTTP(w, r)
		}),
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return "unix://" + l.Addr().String(), creates.Wait
}

// Whenever it comes, a cancel leaves nothing: 500 of them by -cancels 500.
func TestCancelsAgainstASlowEngineLeaveNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.image = runtimetest.Image(t, "")
	host, idle := slowDocker(t)
	engine, err := docker.Open(host, docker.Options{})
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := s.db.Cluster.ID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ours := map[string]string{berth.LabelCluster: cluster}
	t.Cleanup(func() {
		defer engine.Close()
		all, _ := engine.List(context.Background(), ours)
		for _, c := range all {
			_ = engine.Remove(context.Background(), c.Name)
		}
	})
	m := s.machineOn("m1", engine)
	m.cfg.Capacity.CPUMilli = 64_000 // they sleep
	m.restart()
	turns := make(chan struct{}, 10)
	var all sync.WaitGroup
	for range *cancels {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			s.cancelSoon(m)
		})
	}
	all.Wait()
	idle()
	left, err := engine.List(t.Context(), ours)
	if err != nil || len(left) > 0 {
		t.Errorf("%d of %d containers are left, %v: %+v", len(left), *cancels, err, left)
	}
}

// cancelSoon runs a job on the machine, cancels it up to three seconds later, and
// waits until the machine has confirmed that nothing of it is left.
func (s *site) cancelSoon(m *machine) {
	id := s.submit(func(j *spec.Job) { j.StopGrace = ptr(spec.Duration(0)) }, "sleep", "1h")
	attempt := s.placeGang(id, m)
	time.Sleep(rand.N(3 * time.Second)) // the moment is the test's subject
	s.cancel(id)
	s.gangEnds(id, attempt)
	if j := s.settle(id); j.Status != berth.Canceled {
		s.t.Errorf("job is %s", j.Status)
	}
	s.until("the rank is forgotten", func() bool {
		var open int
		if err := s.db.Pool().QueryRow(s.t.Context(), `SELECT count(*) FROM allocations WHERE job = $1 AND forgotten_at IS NULL`, id).Scan(&open); err != nil {
			s.t.Error(err)
			return true
		}
		return open == 0
	})
}
