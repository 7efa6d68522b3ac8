package agent_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"berth"
)

// The workflow of a rank whose waiter died with its agent would hear of the end
// only when Temporal misses the waiter's heartbeat.
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
	alone, attended := s.submit(nil, "trap-term", "0"), s.submit(nil, "trap-term", "0")
	for _, id := range []berth.JobID{alone, attended} {
		m := s.machine(berth.MachineID("m-" + string(id)))
		req, _ := m.run(id)
		m.running(req)
		if id == alone {
			m.restart()
		}
		m.terminate(req)
	}
	s.until("both are sealed", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(unwaited) == 2
	})
	mu.Lock()
	defer mu.Unlock()
	if !unwaited[alone] || unwaited[attended] {
		t.Errorf("unwaited are %v; want %s and not %s", unwaited, alone, attended)
	}
}

// terminate ends a rank's container from within, as the end of its work would.
func (m *machine) terminate(req berth.RunRequest) {
	m.s.t.Helper()
	c, err := m.container(req)
	if err == nil {
		err = m.runtime.Signal(m.s.t.Context(), c.Name, "SIGTERM")
	}
	if err != nil {
		m.s.t.Fatal(err)
	}
}
