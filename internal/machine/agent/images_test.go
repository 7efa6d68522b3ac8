package agent_test

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
	"berth/placement"
	"berth/spec"
)

// large makes the jobs' image one that is worth telling of, on this engine.
func (m *machine) large() { m.runtime.SizeImage(m.s.image, 4<<30) }

// ran runs a job to its end and removes its container, so that only the machine's caches remain.
func (m *machine) ran(id berth.JobID) {
	m.s.t.Helper()
	req, w := m.run(id)
	if x := w.exit(); x.Code != 0 {
		m.s.t.Fatalf("exit is %+v", x)
	}
	m.s.settle(id)
	m.cleared(req)
}

func (s *site) imageOf(tenant berth.TenantID) spec.CachedData {
	return spec.CachedData{Key: spec.ImageKey(tenant, s.image), MiB: 4096}
}

func (s *site) told(m berth.MachineID, want ...spec.CachedData) func() bool {
	slices.SortFunc(want, func(a, b spec.CachedData) int { return map[bool]int{true: -1, false: 1}[a.Key < b.Key] })
	return func() bool { return slices.Equal(s.caches()[m], want) }
}

func TestASecondJobGoesWhereItsImageIsAndOtherTenantsAreToldNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if err := s.db.Tenants.Create(t.Context(), spec.NewTenant{ID: "blue"}); err != nil {
		t.Fatal(err)
	}
	s.machine("m1").large() // its engine has the image too; no job has used it there
	m := s.machine("m2")
	m.large()
	m.ran(s.submit(nil, "exit", "0"))
	m.until("it is told which image it has, and for whom", s.told("m2", s.imageOf("default")))
	if got := s.caches()["m1"]; len(got) != 0 {
		t.Errorf("a machine on which no job ran tells %v", got)
	}

	next := func(tenant berth.TenantID) (on berth.MachineID, near []placement.Near) {
		t.Helper()
		id := s.submitAs(tenant, func(j *spec.Job) { j.Resources.GPUs = 1000 }, "exit", "0")
		if _, err := s.db.Jobs.Load(t.Context(), id); err != nil { // it waits now
			t.Fatal(err)
		}
		p := s.plan()
		if len(p.Start) != 1 || p.Start[0].Job != id {
			t.Fatalf("%s's job does not start alone: %+v", tenant, p.Start)
		}
		s.cancel(id)
		return p.Start[0].Ranks[0].Machine, p.Near
	}
	if on, near := next("blue"); on != "m1" || len(near) != 0 {
		t.Fatalf("another tenant's job of this image starts on %s, for %+v", on, near)
	}
	if on, near := next("default"); on != "m2" || len(near) != 1 || near[0].MiB != 4096 || near[0].Instead != "m1" {
		t.Errorf("the next job of this image starts on %s, for %+v; want m2, which has it", on, near)
	}

	// Once the machine has run a job of the second tenant, it reports the image for both tenants.
	m.ran(s.submitAs("blue", nil, "exit", "0"))
	m.until("it is told whom it has served", s.told("m2", s.imageOf("default"), s.imageOf("blue")))
	if on, _ := next("blue"); on != "m2" {
		t.Errorf("its next job starts on %s, want m2", on)
	}
}

func TestAnImageIsToldOfUntilTheEngineHasItNoMore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var mu sync.Mutex
	var reports []string
	next := s.gate.next
	s.gate.next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b := body(r); strings.HasSuffix(r.URL.Path, "/sync") && bytes.Contains(b, []byte(`"cache":`)) {
			mu.Lock()
			reports = append(reports, string(b))
			mu.Unlock()
		}
		next.ServeHTTP(w, r)
	})
	so := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(reports)
	}
	m := s.machine("m1")
	m.large()
	m.ran(s.submit(nil, "exit", "0"))
	m.until("it is told", s.told("m1", s.imageOf("default")))

	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	before := len(so())
	m.start()
	m.until("a new process tells what it has", func() bool { return len(so()) > before })
	if first := so()[before]; !strings.Contains(first, `"mib":4096`) {
		t.Errorf("a new process does not know what the one before it knew: %s", first)
	}

	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.runtime.FailImage(s.image, node.ErrImageNotFound) // somebody has pruned it
	m.start()
	m.until("a new process finds that it is gone", s.told("m1"))

	m.runtime.FailImage(s.image, nil)
	m.cfg.Timing.ImagePoll = 10 * time.Millisecond
	m.restart()
	m.ran(s.submit(nil, "exit", "0"))
	m.until("it is told anew", s.told("m1", s.imageOf("default")))
	m.runtime.FailImage(s.image, node.ErrImageNotFound)
	m.until("a process that goes on finds that it is gone", s.told("m1"))
}

// The containers that an earlier process left name the images that its lost record held.
func TestAContainerThatIsAdoptedTellsItsImage(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.large()
	id := s.submit(nil, "trap-term", "0")
	req, _ := m.run(id)
	m.running(req)
	m.until("it is told", s.told("m1", s.imageOf("default")))
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(m.cfg.StateDir, "images.json")
	if err := os.Remove(record); err != nil {
		t.Fatal(err)
	}
	m.start()
	m.until("it is on record again", func() bool {
		text, err := os.ReadFile(record)
		return err == nil && strings.Contains(string(text), s.image)
	})
	m.until("it is told again", s.told("m1", s.imageOf("default")))
}
