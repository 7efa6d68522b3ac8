package agent_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"berth"
	"berth/db"
	"berth/wire"
)

// An agent does not know whether a workflow waits for a rank's end. A server of the version
// before believes that the agent does, and notifies the workflow of an end only if the agent
// reports no waiter.
func TestEveryEndIsUnwaitedForServersOfTheVersionBefore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var sealed, early atomic.Int64
	listen := func(r *http.Request) int {
		if !strings.HasSuffix(r.URL.Path, "/sync") {
			return 0
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return http.StatusBadRequest
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		var req wire.SyncRequest
		if err := json.Unmarshal(body, &req); err != nil {
			t.Errorf("sync %s: %v", body, err)
		}
		for _, p := range req.Reports {
			switch {
			case p.Phase == berth.PhaseSealed && p.Unwaited:
				sealed.Add(1)
			case p.Phase == berth.PhaseSealed || p.Unwaited:
				early.Add(1)
			}
		}
		return 0
	}
	s.gate.refuse.Store(&listen)
	m := s.machine("m1")
	id := s.submit(nil, "trap-term", "0")
	req, w := m.run(id)
	m.running(req)
	m.terminate(req)
	w.exit()
	if sealed.Load() == 0 || early.Load() != 0 {
		t.Errorf("%d seals are told as unwaited, %d other reports are, or seals are not", sealed.Load(), early.Load())
	}
}

// Only the machine's set brings a rank, however often the agent is notified: there is one claim
// and one container.
func TestARankIsTakenUpOnceHoweverOftenItIsOffered(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	var claims atomic.Int64
	count := func(r *http.Request) int {
		if strings.HasSuffix(r.URL.Path, "/claim") {
			claims.Add(1)
		}
		return 0
	}
	s.gate.refuse.Store(&count)
	id := s.submit(nil, "do", "echo once", "sleep 100ms")
	req, w := m.run(id)
	for range 50 {
		s.db.Hub().Publish(db.TopicMachine, "m1")
	}
	if x := w.exit(); x.Code != 0 {
		t.Errorf("it ended with %+v", x)
	}
	s.db.Hub().Publish(db.TopicMachine, "m1") // when all is over
	if n := claims.Load(); n != 1 {
		t.Errorf("%d claims", n)
	}
	if got := s.log(id, 1); !slices.Equal(got, []string{"once"}) {
		t.Errorf("log is %q", got)
	}
	s.settle(id)
	m.cleared(req)
}

// terminate ends a rank's container from within, as the end of its work would.
func (m *machine) terminate(req wire.RunRequest) {
	m.s.t.Helper()
	c, err := m.container(req)
	if err == nil {
		err = m.cfg.Runtime.Signal(m.s.t.Context(), c.Name, "SIGTERM")
	}
	if err != nil {
		m.s.t.Fatal(err)
	}
}
