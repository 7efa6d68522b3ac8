package notice_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/internal/machine/notice"
	"berth/wire"
)

// metadata plays the metadata server of a GCE instance, by its documents: a request needs the header
// Metadata-Flavor, wait_for_change holds it until the value differs from last_etag or timeout_sec is over,
// and each answer has an ETag. maintenance-event names an event only to an instance that has asked before.
type metadata struct {
	mu       sync.Mutex
	changed  chan struct{}
	values   map[string]string
	versions map[string]int
	asked    map[string]int
	held     int // requests that wait
	override func(w http.ResponseWriter, r *http.Request) bool
}

func newMetadata(t *testing.T) (*metadata, *notice.GCE) {
	f := &metadata{changed: make(chan struct{}), versions: map[string]int{}, asked: map[string]int{}, values: map[string]string{
		"preempted": "FALSE", "maintenance-event": "NONE",
	}}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return f, notice.NewPatientGCE(server.URL)
}

// set changes a value.
func (f *metadata) set(key, value string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.values[key] = value
	f.versions[key]++
	close(f.changed)
	f.changed = make(chan struct{})
}

// edit changes the fake.
func (f *metadata) edit(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *metadata) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	override := f.override
	f.mu.Unlock()
	if override != nil && override(w, r) {
		return
	}
	if r.Header.Get("Metadata-Flavor") != "Google" || r.Header.Get("X-Forwarded-For") != "" {
		http.Error(w, "Forbidden", http.StatusForbidden)
		return
	}
	key, ours := strings.CutPrefix(r.URL.Path, "/computeMetadata/v1/instance/")
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.values[key]; !ok || !ours || r.Method != http.MethodGet {
		http.NotFound(w, r)
		return
	}
	f.asked[key]++
	if r.URL.Query().Get("wait_for_change") == "true" {
		seconds, _ := strconv.Atoi(r.URL.Query().Get("timeout_sec"))
		f.hold(r, key, time.Duration(seconds)*time.Second)
	}
	w.Header().Set("Metadata-Flavor", "Google")
	w.Header().Set("ETag", f.etag(key))
	fmt.Fprint(w, f.values[key])
}

func (f *metadata) etag(key string) string { return fmt.Sprintf("etag%d", f.versions[key]) }

// hold waits for a change. f.mu is held, and free while it waits.
func (f *metadata) hold(r *http.Request, key string, limit time.Duration) {
	over := time.After(limit)
	for r.URL.Query().Get("last_etag") == f.etag(key) {
		changed := f.changed
		f.held++
		f.mu.Unlock()
		ended := false
		select {
		case <-changed:
		case <-over:
			ended = true
		case <-r.Context().Done():
			ended = true
		}
		f.mu.Lock()
		f.held--
		if ended {
			return
		}
	}
}

// look reads the notice, whose machine ends in about lead.
func lookGCE(t *testing.T, source *notice.GCE, kind wire.NoticeKind, lead time.Duration) wire.CloudNotice {
	t.Helper()
	s, err := source.Look(t.Context())
	if err != nil || s.End == nil || s.End.Kind != kind || !s.Rebalance.IsZero() {
		t.Fatalf("%+v, %v; want a notice of kind %s", s.End, err, kind)
	}
	if left := time.Until(s.End.Deadline); left > lead || left < lead-time.Minute {
		t.Errorf("the machine ends in %s, want about %s", left, lead)
	}
	return *s.End
}

func TestAPreemptionEndsTheWaitingRequest(t *testing.T) {
	t.Parallel()
	f, source := newMetadata(t)
	if s, err := source.Look(t.Context()); err != nil || s.End != nil {
		t.Fatalf("%+v, %v", s, err)
	}
	type answer struct {
		notice.State
		err error
	}
	found := make(chan answer, 1)
	go func() {
		s, err := source.Look(t.Context())
		found <- answer{s, err}
	}()
	for waits := false; !waits && len(found) == 0; time.Sleep(time.Millisecond) {
		f.edit(func() { waits = f.held > 0 })
	}
	f.set("preempted", "TRUE")
	first := <-found
	if first.err != nil || first.End == nil || first.End.Kind != wire.NoticeSpot {
		t.Fatalf("the request that waited: %+v, %v", first.End, first.err)
	}
	if n := f.asked["preempted"]; n != 2 {
		t.Errorf("%d requests, want the first and the one that waited", n)
	}
	f.set("preempted", "TRUE") // another tag
	if again := lookGCE(t, source, wire.NoticeSpot, notice.PreemptionLead); again != *first.End {
		t.Errorf("the notice %s became %s", first.End, again)
	}
}

// A change between two requests is answered at once, by its tag.
func TestAPreemptionBetweenTwoLooksIsSeenByTheNext(t *testing.T) {
	t.Parallel()
	f, source := newMetadata(t)
	if _, err := source.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.set("preempted", "TRUE")
	lookGCE(t, source, wire.NoticeSpot, notice.PreemptionLead)
}

// GCE warns only instances that have asked for maintenance-event, so each look asks, from the first on.
func TestMaintenanceThatEndsTheMachineIsANotice(t *testing.T) {
	t.Parallel()
	f, source := newMetadata(t)
	if s, err := source.Look(t.Context()); err != nil || s.End != nil {
		t.Fatalf("%+v, %v", s, err)
	}
	if f.asked["maintenance-event"] != 1 {
		t.Fatal("the first look does not ask for maintenance")
	}
	f.set("preempted", "FALSE") // another tag, so that the next look does not wait
	f.set("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
	if s, err := source.Look(t.Context()); err != nil || s.End != nil {
		t.Errorf("a live migration: %+v, %v", s, err)
	}
	f.set("preempted", "FALSE")
	f.set("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
	lookGCE(t, source, wire.NoticeMaintenance, notice.MaintenanceLead)
	f.set("preempted", "TRUE") // earlier
	lookGCE(t, source, wire.NoticeSpot, notice.PreemptionLead)
	f.set("preempted", "FALSE")
	f.set("maintenance-event", "NONE")
	if s, err := source.Look(t.Context()); err != nil || s.End != nil {
		t.Errorf("withdrawn: %+v, %v", s, err)
	}
}

func TestMalformedMetadataIsNoNotice(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"", "true", "TRUE ", "1", "<html>", "TRUE" + strings.Repeat("x", 5000)} {
		f, source := newMetadata(t)
		f.set("preempted", value)
		if s, err := source.Look(t.Context()); s.End != nil || !errors.Is(err, notice.ErrMalformed) {
			t.Errorf("preempted %.20q shows %+v, %v", value, s.End, err)
		}
		f.set("preempted", "FALSE")
		f.set("maintenance-event", value)
		if s, err := source.Look(t.Context()); s.End != nil || !errors.Is(err, notice.ErrMalformed) {
			t.Errorf("maintenance-event %.20q shows %+v, %v", value, s.End, err)
		}
		f.set("preempted", "TRUE")
		if s, err := source.Look(t.Context()); s.End == nil || s.End.Kind != wire.NoticeSpot || err == nil {
			t.Errorf("a bad maintenance-event hides the preemption: %+v, %v", s.End, err)
		}
	}
	// Another server at the address, for example a portal of a network.
	f, source := newMetadata(t)
	f.override = func(w http.ResponseWriter, _ *http.Request) bool { fmt.Fprint(w, "TRUE"); return true }
	if s, err := source.Look(t.Context()); s.End != nil || !errors.Is(err, notice.ErrMalformed) {
		t.Errorf("an answer of another server: %+v, %v", s.End, err)
	}
}

// A server that fails, hangs or redirects is an error within seconds, and neither is nor withdraws a notice.
func TestABadMetadataServerIsAnError(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"503": func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, "", http.StatusServiceUnavailable)
			return true
		},
		"404": func(w http.ResponseWriter, r *http.Request) bool { http.NotFound(w, r); return true },
		"redirect": func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusTemporaryRedirect)
			return true
		},
		"silence": func(_ http.ResponseWriter, r *http.Request) bool {
			select {
			case <-r.Context().Done():
			case <-over:
			}
			return true
		},
	} {
		f, source := newMetadata(t)
		impatient := func() {
			if name == "silence" {
				source.UsualLimit()
			}
		}
		f.edit(func() { f.override = answer })
		impatient()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		s, err := source.Look(ctx)
		if err == nil || s.End != nil || ctx.Err() != nil {
			t.Errorf("%s: %+v, %v, %v", name, s, err, ctx.Err())
		}
		f.edit(func() { f.override = nil })
		f.set("preempted", "TRUE")
		source.PatientLimit()
		before := lookGCE(t, source, wire.NoticeSpot, notice.PreemptionLead)
		f.edit(func() { f.override = answer })
		impatient()
		if s, err := source.Look(ctx); err == nil || s.End == nil || *s.End != before {
			t.Errorf("%s after a notice: %+v, %v", name, s.End, err)
		}
		cancel()
	}
}
