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
	"time"

	"berth"
	"berth/internal/control/convert"
	"berth/placement"
	"berth/spec"
)

// caches returns the cached data of each machine as the database holds it.
func (s *site) caches() map[berth.MachineID][]spec.CachedData {
	s.t.Helper()
	c, err := s.db.Queue.Load(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	all := map[berth.MachineID][]spec.CachedData{}
	for _, m := range c.Caches {
		all[m.Machine] = m.Holds
	}
	return all
}

// plan is the plan that a leader would make now.
func (s *site) plan() placement.Plan {
	s.t.Helper()
	c, err := s.db.Queue.Load(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	snapshot := placement.NewSnapshot()
	requests, err := s.db.Queue.Requests(s.t.Context(), convert.Missing(snapshot, c.Jobs))
	if err != nil {
		s.t.Fatal(err)
	}
	for class, r := range requests {
		snapshot.DefineClass(class, r)
	}
	convert.Apply(snapshot, c, func(berth.MachineID) string { return "" }, func(berth.JobID) bool { return false })
	return placement.Planner{}.Plan(snapshot, c.Now)
}

// twenty is an upload of 20 MiB, large enough to be reported.
func (s *site) twenty() berth.Address {
	s.t.Helper()
	return s.upload(map[string]string{"data.bin": strings.Repeat("0123456789abcdef", 20<<16)})
}

func TestASecondRunGoesWhereTheDataIs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.twenty()
	s.machine("m1")
	m := s.machine("m2")
	first := s.submit(coded(a), "exit", "0")
	req, w := m.run(first)
	if x := w.exit(); x.Code != 0 {
		t.Fatalf("exit is %+v", x)
	}
	s.settle(first)
	m.cleared(req)
	want := []spec.CachedData{{Key: spec.ArchiveKey("default", a), MiB: 20}}
	m.until("it is told what the cache holds", func() bool { return slices.Equal(s.caches()["m2"], want) })

	var ids []berth.JobID
	for range 3 { // each wants one of the two GPUs of a machine
		id := s.submit(func(j *spec.Job) { j.Workdir, j.Resources.GPUs = string(a), 1000 }, "exit", "0")
		if _, err := s.db.Jobs.Load(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	p := s.plan()
	var on []berth.MachineID
	for _, start := range p.Start {
		on = append(on, start.Ranks[0].Machine)
	}
	if !slices.Equal(on, []berth.MachineID{"m2", "m2", "m1"}) {
		t.Errorf("they start on %v, want m2 as long as there is room", on)
	}
	if len(p.Near) == 0 || p.Near[0] != (placement.Near{Job: ids[0], Machine: "m2", MiB: 20, Instead: "m1"}) {
		t.Errorf("of the reasons is told %+v", p.Near)
	}
}

func TestACacheIsToldWhenItChanges(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var told atomic.Int64
	next := s.gate.next
	s.gate.next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/sync") && bytes.Contains(body(r), []byte(`"cache":`)) {
			told.Add(1)
		}
		next.ServeHTTP(w, r)
	})
	m := s.machine("m1")
	m.until("it is told at first", func() bool { return told.Load() == 1 })
	a, small := s.twenty(), s.upload(map[string]string{"x": "y"})
	for _, code := range []berth.Address{small, a, small, a} {
		id := s.submit(coded(code), "exit", "0")
		req, w := m.run(id)
		w.exit()
		s.settle(id)
		m.cleared(req)
	}
	m.until("it is told when something large has come", func() bool { return len(s.caches()["m1"]) == 1 })
	if n := told.Load(); n != 2 {
		t.Errorf("it was told %d times", n)
	}
	xid := func() (x string) {
		if err := s.db.Pool().QueryRow(t.Context(), `SELECT xid::text FROM machine_caches`).Scan(&x); err != nil {
			t.Fatal(err)
		}
		return x
	}
	was := xid()
	m.restart()
	m.until("a new process tells it", func() bool { return told.Load() == 3 })
	if xid() != was {
		t.Error("what was known is written again")
	}
	m.cfg.CacheBytes = -1
	m.restart()
	id := s.submit(coded(small), "exit", "0")
	_, w := m.run(id)
	w.exit()
	m.until("it is told that nothing is left", func() bool { return len(s.caches()["m1"]) == 0 })
}

// An older server refuses fields that it does not know. The other reports arrive all the same.
func TestAServerThatKnowsNothingOfCachesIsNotTold(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var refused atomic.Int64
	next := s.gate.next
	s.gate.next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/sync") && bytes.Contains(body(r), []byte(`"cache":`)) {
			refused.Add(1)
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]string{"code": "invalid", "detail": `json: unknown field "cache"`})
			return
		}
		next.ServeHTTP(w, r)
	})
	m := s.machine("m1")
	id := s.submit(coded(s.twenty()), "exit", "0")
	_, w := m.run(id)
	if x := w.exit(); x.Code != 0 {
		t.Fatalf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Succeeded {
		t.Errorf("job is %s", j.Status)
	}
	m.until("it was refused", func() bool { return refused.Load() > 0 })
	if n := refused.Load(); n != 1 {
		t.Errorf("it was refused %d times", n)
	}
}

// One that refuses may be upgraded while the session goes on.
func TestAServerThatRefusesTheCacheIsAskedAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var refusals atomic.Int64
	next := s.gate.next
	s.gate.next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/sync") && bytes.Contains(body(r), []byte(`"cache":`)) && refusals.Add(1) <= 2 {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]string{"code": "invalid", "detail": `json: unknown field "cache"`})
			return
		}
		next.ServeHTTP(w, r)
	})
	a := s.twenty()
	m := s.machine("m1")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.cfg.Timing.CacheRefused = 10 * time.Millisecond
	refusals.Store(0)
	m.start()
	epoch := s.machineEpoch("m1")
	id := s.submit(coded(a), "exit", "0")
	_, w := m.run(id)
	w.exit()
	m.until("it is told in the end", func() bool { return len(s.caches()["m1"]) == 1 })
	if n := refusals.Load(); n < 3 || s.machineEpoch("m1") != epoch {
		t.Errorf("it was told %d times, in session %d and then %d", n, epoch, s.machineEpoch("m1"))
	}
}

// body returns a request's body, and leaves it to be read again.
func body(r *http.Request) []byte {
	b, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(b))
	return b
}
