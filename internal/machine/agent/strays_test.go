package agent_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/failure"
)

// slowCreate lets the engine hold every Create, or EnsureNetwork, until release is called. asked
// receives one value per held call. Callers that hang up do not stop the call.
func slowCreate(t *testing.T, e *fakeruntime.Fake, method string) (asked chan struct{}, release func()) {
	t.Helper()
	asked, free := make(chan struct{}, 100), make(chan struct{})
	var done atomic.Bool
	e.Lag(func(c fakeruntime.Call) {
		if c.Method == method && !done.Load() {
			asked <- struct{}{}
			<-free
		}
	})
	release = sync.OnceFunc(func() { done.Store(true); close(free) })
	t.Cleanup(release)
	return asked, release
}

// sweeps restarts the agent, to look for strays all the time; before each look it
// waits for the gate, if there is one.
func (m *machine) sweeps(gate <-chan struct{}) {
	m.s.t.Helper()
	m.cfg.Timing.StraySweep = 10 * time.Millisecond
	if gate != nil {
		m.runtime.Intercept(func(c fakeruntime.Call) error {
			if c.Method == "Unstarted" {
				<-gate
			}
			return nil
		})
	}
	m.restart()
}

// inTheSet is an allocation that the server has in the machine's set, and that no
// rank is for.
func (s *site) inTheSet(like berth.AllocationID) int64 {
	s.t.Helper()
	const id = 900_000
	conn, err := s.db.Pool().Acquire(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Release()
	for _, sql := range []string{
		"SET session_replication_role = replica",
		fmt.Sprintf(`INSERT INTO allocations OVERRIDING SYSTEM VALUE SELECT (jsonb_populate_record(a, '{"id": %d, "rank": 7, "state": "orphaned", "orders": {}}')).* FROM allocations a WHERE id = %d`, id, like),
		"RESET session_replication_role",
	} {
		if _, err := conn.Exec(s.t.Context(), sql); err != nil {
			s.t.Fatal(err)
		}
	}
	return id
}

// strayIn is a container on machine m1 of a job without a row.
func strayIn(cluster string) (name string, labels map[string]string) {
	job := berth.NewJobID(time.Now())
	return berth.ContainerName(job, 0, 1), map[string]string{
		berth.LabelCluster: cluster, berth.LabelMachine: "m1", berth.LabelJob: string(job),
		berth.LabelAttempt: "1", berth.LabelRank: "0", berth.LabelAlloc: strconv.FormatInt(1_000_000+rand.Int64N(1_000_000), 10),
	}
}

func (m *machine) make(name string, labels map[string]string) {
	m.s.t.Helper()
	spec := node.ContainerSpec{Name: name, Image: "x", Command: []string{"sleep", "1h"}, CPUMilli: 1, MemoryMiB: 1, Labels: labels}
	if _, err := m.runtime.Create(m.s.t.Context(), spec); err != nil {
		m.s.t.Fatal(err)
	}
}

func (m *machine) containers() (names []string) {
	m.s.t.Helper()
	all, err := m.cfg.Runtime.List(m.s.t.Context(), nil)
	if err != nil {
		m.s.t.Fatal(err)
	}
	for _, c := range all {
		names = append(names, c.Name)
	}
	return names
}

// An engine that was asked to create a container creates it, even if the caller has hung up
// meanwhile.
func TestACancelInTheMiddleOfACreateLeavesNoContainer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	asked, release := slowCreate(t, m.runtime, "Create")
	id := s.submit(nil, "echo", "x")
	req, w := m.run(id)
	<-asked
	s.cancel(id)
	if x := w.exit(); x.Cause != failure.CauseNotStarted {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Canceled {
		t.Errorf("job is %s", j.Status)
	}
	time.AfterFunc(50*time.Millisecond, release) // the order to forget the rank is out: its container is not there yet
	m.cleared(req)
	m.runtime.CatchUp()
	if left := m.containers(); len(left) > 0 {
		t.Errorf("containers are left: %q", left)
	}
}

func TestACancelInTheMiddleOfANetworkLeavesNone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	engine := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})
	t.Cleanup(engine.Shutdown)
	m := s.pair(engine)
	asked, release := slowCreate(t, engine, "EnsureNetwork")
	id := s.submit(gangOf(2), "echo", "x")
	attempt := s.placeGang(id, m[0], m[1])
	<-asked
	<-asked
	s.cancel(id)
	s.gangEnds(id, attempt)
	if j := s.settle(id); j.Status != berth.Canceled {
		t.Errorf("the gang is %s", j.Status)
	}
	time.AfterFunc(50*time.Millisecond, release)
	s.until("both ranks are forgotten", func() bool {
		var open int
		if err := s.db.Pool().QueryRow(t.Context(), `SELECT count(*) FROM allocations WHERE job = $1 AND forgotten_at IS NULL`, id).Scan(&open); err != nil {
			t.Fatal(err)
		}
		return open == 0
	})
	engine.CatchUp()
	if left := s.networks(engine, id); len(left) > 0 {
		t.Errorf("networks are left: %q", left)
	}
	if left := m[0].containers(); len(left) > 0 {
		t.Errorf("containers are left: %q", left)
	}
}

// The container comes after the next process has registered, and nothing is said of
// it then.
func TestAContainerThatWasMadeForADeadAgentIsSwept(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.sweeps(nil)
	asked, release := slowCreate(t, m.runtime, "Create")
	id := s.submit(nil, "echo", "x")
	req := m.place(id)
	<-asked
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	s.cancel(id)
	m.runtime.Intercept(func(c fakeruntime.Call) error { // the new process comes to no create of its own
		if c.Method == "EnsureImage" {
			return node.ErrImageUnavailable
		}
		return nil
	})
	m.start()
	m.until("the new process has told the rank's end", func() bool {
		var sealed bool
		if err := s.db.Pool().QueryRow(t.Context(), `SELECT sealed_at IS NOT NULL FROM allocations WHERE id = $1`, int64(req.Alloc)).Scan(&sealed); err != nil {
			t.Fatal(err)
		}
		return sealed
	})
	if j := s.settle(id); j.Status != berth.Canceled {
		t.Errorf("job is %s", j.Status)
	}
	m.cleared(req)
	release()
	m.runtime.CatchUp()
	m.until("the container is removed", func() bool { return len(m.containers()) == 0 })
	if !strings.Contains(m.logs.text(), "stray container removed") {
		t.Error("it was not the sweep")
	}
}

// Tests each row of the table in docs/adr/0034-what-a-create-leaves-behind.md that says "stays".
func TestTheSweepTouchesNothingButStrays(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	cluster, err := s.db.Cluster.ID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	m.sweeps(gate)
	t.Cleanup(open)
	known := s.submit(nil, "sleep", "1h")
	req, _ := m.run(known)
	m.running(req)
	made := func(edit func(labels map[string]string)) (name string) {
		t.Helper()
		name, labels := strayIn(cluster)
		edit(labels)
		m.make(name, labels)
		return name
	}
	made(func(l map[string]string) { l[berth.LabelCluster] = "another" })
	made(func(l map[string]string) { l[berth.LabelMachine] = "m2" })
	made(func(l map[string]string) { delete(l, berth.LabelAlloc) })
	made(func(l map[string]string) { l[berth.LabelAlloc] = strconv.FormatInt(int64(req.Alloc), 10) })
	_, labels := strayIn(cluster)
	m.make("of-another-name", labels)
	for _, ends := range []bool{false, true} {
		name := made(func(map[string]string) {})
		if err := m.runtime.Start(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		if ends {
			m.runtime.Exit(name, 0)
		}
	}
	made(func(l map[string]string) { l[berth.LabelAlloc] = strconv.FormatInt(s.inTheSet(req.Alloc), 10) })
	stays := m.containers()
	stray := made(func(map[string]string) {})

	open()
	m.until("the stray is removed", func() bool { return !slices.Contains(m.containers(), stray) })
	next := made(func(map[string]string) {}) // two more looks
	m.until("the next stray is removed", func() bool { return !slices.Contains(m.containers(), next) })
	if left := m.containers(); !slices.Equal(left, stays) {
		t.Errorf("left are %q, want %q", left, stays)
	}
}

// A server that cannot be asked, or that no longer knows this session, has given
// no order.
func TestTheSweepRemovesNothingWithoutASession(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.sweeps(nil)
	cluster, err := s.db.Cluster.ID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.gate.closed.Store(true)
	m.make(strayIn(cluster))
	m.until("the sweep has asked twice", func() bool {
		return strings.Count(m.logs.text(), "cannot remove stray containers") >= 2
	})
	if left := m.containers(); len(left) != 1 {
		t.Errorf("left are %q", left)
	}
	s.gate.closed.Store(false)
	m.until("the stray is removed", func() bool { return len(m.containers()) == 0 })
}

// What calls for the accounts of images leave behind is removed with other strays.
func TestLeftoversOfAccountsAreSwept(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	var sweeps atomic.Int32
	m.runtime.Intercept(func(c fakeruntime.Call) error {
		if c.Method == "SweepAccounts" {
			sweeps.Add(1)
		}
		return nil
	})
	m.sweeps(nil)
	m.until("two sweeps", func() bool { return sweeps.Load() > 1 })
}
