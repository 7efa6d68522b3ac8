package agent_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
)

// mute lets a site store no report that tells of a start until the returned
// function is called.
func (s *site) mute() (lift func()) {
	var lifted atomic.Bool
	refuse := func(r *http.Request) int {
		if lifted.Load() || !strings.HasSuffix(r.URL.Path, "/sync") {
			return 0
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return http.StatusBadRequest
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		for _, phase := range []string{`"prepared"`, `"running"`, `"exited"`, `"sealed"`} {
			if bytes.Contains(body, []byte(phase)) {
				return http.StatusServiceUnavailable
			}
		}
		return 0
	}
	s.gate.refuse.Store(&refuse)
	return func() { lifted.Store(true) }
}

// awaitsOrders starts the agent anew, such that no claim is fresh to it.
func (m *machine) awaitsOrders() {
	m.s.t.Helper()
	m.cfg.Timing.ClaimFresh = time.Nanosecond
	m.restart()
}

// begunUnheard is a machine that runs a job while the server stores no word of it.
func begunUnheard(t *testing.T) (s *site, m *machine, req berth.RunRequest, w *waiter, lift func()) {
	t.Helper()
	s = newSite(t)
	m = s.machine("m1")
	lift = s.mute()
	req, w = m.run(s.submit(nil, "sleep", "1h"))
	m.running(req)
	return s, m, req, w, lift
}

func states(list []berth.Event) (told []berth.State) {
	for _, e := range list {
		if e.Kind == berth.EventState {
			told = append(told, e.To)
		}
	}
	return told
}

func TestAJobOfOneRankBeginsOnItsClaimAndIsSeenRunningBeforeItEnds(t *testing.T) {
	t.Parallel()
	s, m, req, w, lift := begunUnheard(t)
	id := req.Job
	if j := s.job(id); j.Status != berth.Scheduled {
		t.Errorf("nothing was stored, and the job is %s", j.Status)
	}
	m.runtime.Exit(berth.ContainerName(id, 0, 1), 3)
	m.until("container has ended", func() bool {
		c, err := m.container(req)
		return err == nil && c.State == node.ContainerExited
	})
	lift()
	if x := w.exit(); x.Code != 3 {
		t.Errorf("exit is %+v", x)
	}
	if j := s.job(id); j.Status != berth.Running || j.StartedAt == nil {
		t.Errorf("after its end, and before the verdict, the job is %s, started at %v", j.Status, j.StartedAt)
	}
	if j := s.settle(id); j.Status != berth.Failed && j.Status != berth.Retrying {
		t.Errorf("job is %s", j.Status)
	}
	if told := states(s.events(id)); !slices.Contains(told, berth.Running) {
		t.Errorf("its history tells of no run: %v", told)
	}
}

func TestAStaleClaimWaitsForTheOrder(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.awaitsOrders()
	lift := s.mute()
	id := s.submit(nil, "sleep", "1h")
	req, w := m.run(id)
	m.until("container is made", func() bool { _, err := m.container(req); return err == nil })
	s.cancel(id) // the report that it is prepared comes too late to start it
	lift()
	if x := w.exit(); x.Cause != berth.CauseNotStarted || x.Started() {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Canceled {
		t.Errorf("job is %s", j.Status)
	}
}

func TestACancelThatMeetsTheStartStopsIt(t *testing.T) {
	t.Parallel()
	s, m, req, w, lift := begunUnheard(t)
	id := req.Job
	s.cancel(id) // the row is scheduled, and its process runs
	if j := s.job(id); j.Status != berth.Canceling {
		t.Errorf("job is %s", j.Status)
	}
	lift()
	if x := w.exit(); x.Cause != berth.CauseOrdered {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Canceled {
		t.Errorf("job is %s", j.Status)
	}
	m.cleared(req)
	if _, err := m.container(req); !errors.Is(err, node.ErrNoContainer) {
		t.Errorf("container: %v", err)
	}
}

func TestWhatBeganOnItsClaimAndVanishedWithItsAgentIsNotMadeAnew(t *testing.T) {
	t.Parallel()
	_, m, req, _, lift := begunUnheard(t)
	id := req.Job
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.runtime.Vanish(berth.ContainerName(id, 0, 1))
	lift()
	m.start()
	if x := m.wait(req).exit(); x.Cause != berth.CauseVanished {
		t.Errorf("exit is %+v", x)
	}
}
