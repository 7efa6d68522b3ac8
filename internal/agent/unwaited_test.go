package agent_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"berth"
)

// The workflow of a rank whose waiter died with its agent, or never came, would
// hear of the end only when Temporal misses the waiter's heartbeat.
func TestEndThatNobodyWaitsForIsReportedAsSuch(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var mu sync.Mutex
	unwaited := map[berth.JobID]bool{} // of sealed ranks
	listen := func(r *http.Request) int {
		if !strings.HasSuffix(r.URL.Path, "/sync") {
			return 0
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return http.StatusBadRequest
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		var req berth.SyncRequest
		if err := json.Unmarshal(body, &req); err != nil {
			t.Errorf("sync %s: %v", body, err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, p := range req.Reports {
			if p.Phase == berth.PhaseSealed {
				unwaited[p.Job] = unwaited[p.Job] || p.Unwaited
			} else if p.Unwaited {
				t.Errorf("report %+v is unwaited before its end", p)
			}
		}
		return 0
	}
	s.gate.refuse.Store(&listen)
	died, lost, attended := s.submit(nil, "trap-term", "0"), s.submit(nil, "trap-term", "0"), s.submit(nil, "trap-term", "0")
	var waiter *waiter
	for _, id := range []berth.JobID{died, lost, attended} {
		m := s.machine(berth.MachineID("m-" + string(id)))
		req := m.place(id)
		if id != lost {
			waiter = m.wait(req)
			<-waiter.waits
		}
		m.running(req)
		if id == died {
			m.restart()
		}
		m.terminate(req)
	}
	waiter.exit()
	s.until("the ends of the others are told as unwaited", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return unwaited[died] && unwaited[lost]
	})
	mu.Lock()
	defer mu.Unlock()
	if unwaited[attended] {
		t.Error("an end whose waiter took it along was told as unwaited")
	}
}

// A rank is begun by its machine's set and by its waiter, in any order and at
// once. One claim is made and one container started.
func TestARankIsTakenUpOnceWhoeverBringsIt(t *testing.T) {
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
	id := s.submit(nil, "do", "echo once")
	req := m.place(id)
	first, second := m.wait(req), m.wait(req)
	if a, b := first.exit(), second.exit(); a.Code != 0 || b.Code != 0 {
		t.Errorf("the waiters came back with %+v and %+v", a, b)
	}
	if late := m.wait(req).exit(); late.Code != 0 { // comes when all is over
		t.Errorf("the late waiter came back with %+v", late)
	}
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
func (m *machine) terminate(req berth.RunRequest) {
	m.s.t.Helper()
	c, err := m.container(req)
	if err == nil {
		err = m.cfg.Runtime.Signal(m.s.t.Context(), c.Name, "SIGTERM")
	}
	if err != nil {
		m.s.t.Fatal(err)
	}
}
