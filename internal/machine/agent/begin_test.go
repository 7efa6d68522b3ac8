package agent_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// mute lets a site store no report of a start until the returned
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

// awaitsOrders restarts the agent, so that no claim is fresh to it.
func (m *machine) awaitsOrders() {
	m.s.t.Helper()
	m.cfg.Timing.ClaimFresh = time.Nanosecond
	m.restart()
}

// begunUnheard is a machine that runs a job while the server stores no word of it.
func begunUnheard(t *testing.T) (s *site, m *machine, req wire.RunRequest, w *waiter, lift func()) {
	t.Helper()
	s = newSite(t)
	m = s.machine("m1")
	lift = s.mute()
	req, w = m.run(s.submit(nil, "sleep", "1h"))
	m.running(req)
	return s, m, req, w, lift
}

func states(list []wire.Event) (told []berth.State) {
	for _, e := range list {
		if e.Kind == wire.EventState {
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

// An engine may take seconds to start a container.
func TestAJobIsShownRunningWhenItsContainerHasStarted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	slow, quick := s.submit(nil, "sleep", "1h"), s.submit(nil, "sleep", "1h")
	asked, free := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(free) })
	t.Cleanup(release)
	m.runtime.Lag(func(c fakeruntime.Call) {
		if c.Method == "Start" && c.Subject == berth.ContainerName(slow, 0, 1) {
			close(asked)
			<-free
		}
	})
	m.run(slow)
	<-asked
	m.runOn(1, quick)
	s.until("a job whose container has started is running", func() bool { return s.job(quick).Status == berth.Running })
	if j := s.job(slow); j.Status != berth.Scheduled || j.StartedAt != nil {
		t.Errorf("its container has not started, and the job is %s, started at %v", j.Status, j.StartedAt)
	}
	var now time.Time
	if err := s.db.Pool().QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&now); err != nil {
		t.Fatal(err)
	}
	release()
	s.until("the job is running", func() bool { return s.job(slow).Status == berth.Running })
	if at := s.job(slow).StartedAt; at == nil || at.Before(now.Truncate(time.Millisecond)) {
		t.Errorf("the container was started after %v, and the job at %v", now, at)
	}
}

// A job that waits for the order to start is not shown as running before the start either; a gang
// not before the last of its containers has started.
func TestAJobThatWaitsForItsOrderIsShownRunningWhenAllHaveStarted(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*spec.Job){
		"gang":        func(j *spec.Job) { j.Members = 2 },
		"stale claim": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			m := s.machine("m1")
			if name == "stale claim" {
				m.awaitsOrders()
			}
			id := s.submit(edit, "sleep", "1h")
			members := max(1, s.job(id).Spec.Members)
			asked, free := make(chan struct{}), make(chan struct{})
			release := sync.OnceFunc(func() { close(free) })
			t.Cleanup(release)
			m.runtime.Lag(func(c fakeruntime.Call) {
				if c.Method == "Start" && c.Subject == berth.ContainerName(id, members-1, 1) {
					close(asked)
					<-free
				}
			})
			s.placeGang(id, slices.Repeat([]*machine{m}, members)...)
			<-asked
			s.until("the other members have started", func() bool { return s.started(id) == members-1 })
			if j := s.job(id); j.Status != berth.Scheduled || j.StartedAt != nil {
				t.Errorf("a container has not started, and the job is %s, started at %v", j.Status, j.StartedAt)
			}
			release()
			s.until("the job is running", func() bool { return s.job(id).Status == berth.Running })
			if n := s.started(id); n != members {
				t.Errorf("the job is running, and %d of %d members have started", n, members)
			}
		})
	}
}

// started counts the members whose start is on record.
func (s *site) started(id berth.JobID) (n int) {
	s.t.Helper()
	if err := s.db.Pool().QueryRow(s.t.Context(), `SELECT count(*) FROM allocations WHERE job = $1 AND started_at IS NOT NULL`, id).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// An agent that dies between a start and its report does not take the record of the restore with
// it: the next agent reports the restored step.
func TestWhatWasRestoredIsToldByTheNextAgent(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(checkpointed(2), "train", "/checkpoint", "100000", "5ms", "10")
	req, w := m.run(id)
	s.until("a checkpoint is stored", func() bool { return len(s.verified(id)) > 0 })
	m.runtime.Exit(berth.ContainerName(id, 0, 1), 1)
	w.exit()
	s.settle(id)
	m.cleared(req)
	lift := s.mute()
	req, _ = m.run(id)
	m.running(req)
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	lift()
	m.start()
	s.until("the second attempt runs", func() bool { return s.job(id).Status == berth.Running })
	var from *int64
	if err := s.db.Pool().QueryRow(t.Context(), `SELECT resume_from FROM attempts WHERE job = $1 AND attempt = 2`, id).Scan(&from); err != nil || from == nil {
		t.Errorf("it is on record as begun from step %v, %v", from, err)
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
	if x := w.exit(); x.Cause != failure.CauseNotStarted || x.Started() {
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
	if x := w.exit(); x.Cause != failure.CauseOrdered {
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
	if x := m.wait(req).exit(); x.Cause != failure.CauseVanished {
		t.Errorf("exit is %+v", x)
	}
}
