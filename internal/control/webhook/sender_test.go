package webhook_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/webhook"
	"berth/internal/lib/publicnet"
	"berth/internal/lib/sealer"
	"berth/spec"
	"berth/wire"
)

// site is a database with the key of each tenant's webhooks.
type site struct {
	t    *testing.T
	db   *db.DB
	keys *sealer.Keys
}

// The key of the example in the standard, and another one.
const (
	firstKey  = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	secondKey = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)

func newSite(t *testing.T, tenants ...berth.TenantID) *site {
	t.Helper()
	s := &site{t: t}
	var err error
	if s.db, err = db.Open(t.Context(), dbtest.URL(t), db.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.db.Close)
	file := filepath.Join(t.TempDir(), "keys")
	if err := sealer.Make(file); err != nil {
		t.Fatal(err)
	}
	if s.keys, err = sealer.Load(file); err != nil {
		t.Fatal(err)
	}
	for _, tenant := range tenants {
		if err := s.db.Tenants.Create(t.Context(), spec.NewTenant{ID: tenant}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tenant := range append(tenants, "default") {
		s.setKey(tenant, firstKey)
	}
	return s
}

func (s *site) setKey(tenant berth.TenantID, value string) {
	s.t.Helper()
	key, sealed := s.keys.Seal(tenant, spec.WebhookSecret, []byte(value))
	if _, _, err := s.db.Secrets.Set(s.t.Context(), db.SealedSecret{Tenant: tenant, Name: spec.WebhookSecret, Key: key, Sealed: sealed}); err != nil {
		s.t.Fatal(err)
	}
}

// cancel submits a job that notifies url of its end, and cancels it at once.
func (s *site) cancel(tenant berth.TenantID, url string) berth.JobID {
	s.t.Helper()
	jobSpec := spec.Job{Name: "told", Image: "x", Labels: map[string]string{"a": "<b>"}, Notify: []spec.Notify{{URL: url}}}.WithDefaults()
	job, _, err := s.db.Jobs.Submit(s.t.Context(), db.Submission{Tenant: tenant, Spec: jobSpec, Actor: "user:test"})
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.db.Jobs.RequestCancel(s.t.Context(), "", job.ID, "user:test", nil); err != nil {
		s.t.Fatal(err)
	}
	return job.ID
}

func (s *site) waiting() (n int) {
	s.t.Helper()
	if err := s.db.Pool().QueryRow(s.t.Context(), `SELECT count(*) FROM notices`).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// warning returns the text of the job's history for a call that was given up.
func (s *site) warning(id berth.JobID) string {
	s.t.Helper()
	list, err := s.db.Jobs.Events(s.t.Context(), "", id, 0, 100)
	if err != nil {
		s.t.Fatal(err)
	}
	var all []string
	for _, e := range list {
		if e.Kind == wire.EventWarning {
			all = append(all, e.Detail)
		}
	}
	return strings.Join(all, "; ")
}

// send runs a sender until the test ends or stop is called.
func (s *site) send(edit func(*webhook.Options)) (stop func()) {
	s.t.Helper()
	local, err := publicnet.Parse("127.0.0.1")
	if err != nil {
		s.t.Fatal(err)
	}
	o := webhook.Options{
		DB: s.db, Keys: s.keys, Logger: slog.New(slog.DiscardHandler), Network: local,
		Look: 10 * time.Millisecond, First: 10 * time.Millisecond, Longest: 50 * time.Millisecond,
		Timeout: waitLimit, Lease: 3 * waitLimit, // a slow machine makes no call twice
	}
	if edit != nil {
		edit(&o)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	sender := webhook.New(o)
	go func() {
		defer close(ended)
		_ = sender.Run(ctx)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	s.t.Cleanup(stop)
	return stop
}

// waitLimit bounds each wait for a condition. It is far above the needs of a slow machine:
// only a test that fails waits so long.
const waitLimit = 5 * time.Minute

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(waitLimit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("never: %s", what)
		}
	}
}

// call is a request as a receiver got it.
type call struct {
	path   string
	header http.Header
	body   string
}

// receiver keeps the received calls, and answers as the test requires.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	calls []call
}

func newReceiver(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, n int)) *receiver {
	t.Helper()
	got := &receiver{}
	got.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got.mu.Lock()
		got.calls = append(got.calls, call{r.URL.Path, r.Header, string(body)})
		n := len(got.calls)
		got.mu.Unlock()
		if answer != nil {
			answer(w, r, n)
		}
	}))
	t.Cleanup(got.Close)
	return got
}

func (r *receiver) all() []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// verify checks a call as the standard's receivers do.
func verify(t *testing.T, key string, c call) {
	t.Helper()
	want := http.Header{}
	keys, err := spec.ParseWebhookKeys(key)
	if err != nil {
		t.Fatal(err)
	}
	webhook.Sign(want, keys, c.header.Get("webhook-id"), c.header.Get("webhook-timestamp"), c.body)
	if !slices.Contains(strings.Fields(c.header.Get("webhook-signature")), want.Get("webhook-signature")) {
		t.Errorf("signature is %q, want %q among them", c.header.Get("webhook-signature"), want.Get("webhook-signature"))
	}
}

// The example of the standard's own libraries.
func TestSignatureIsTheStandards(t *testing.T) {
	t.Parallel()
	keys, err := spec.ParseWebhookKeys(firstKey)
	if err != nil {
		t.Fatal(err)
	}
	h := http.Header{}
	webhook.Sign(h, keys, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", `{"test": 2432232314}`)
	if got := h.Get("webhook-signature"); got != "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Errorf("signature is %s", got)
	}
}

func TestACallTellsWhatHappenedAndIsSigned(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.setKey("default", secondKey+"\n"+firstKey)
	r := newReceiver(t, nil)
	id := s.cancel("default", r.URL+"/hook?a=b")
	s.send(nil)
	until(t, "it is called", func() bool { return len(r.all()) > 0 })
	until(t, "nothing waits", func() bool { return s.waiting() == 0 })
	c := r.all()[0]
	verify(t, firstKey, c)
	verify(t, secondKey, c)
	var e wire.WebhookEvent
	if err := json.Unmarshal([]byte(c.body), &e); err != nil {
		t.Fatal(err)
	}
	job, err := s.db.Jobs.Get(t.Context(), "", id)
	if err != nil {
		t.Fatal(err)
	}
	if e.Type != "job.canceled" || e.Data.ID != id || e.Data.Status != berth.Canceled || e.Data.Labels["a"] != "<b>" || e.Data.Tenant != "default" ||
		e.Data.Reason == nil || !e.Data.FinishedAt.Equal(*job.FinishedAt) || !e.Timestamp.Equal(*job.FinishedAt) {
		t.Errorf("it is told %s", c.body)
	}
	if c.header.Get("Content-Type") != "application/json" || c.header.Get("webhook-id") != fmt.Sprintf("msg_%s_2_0", id) || c.path != "/hook" {
		t.Errorf("%s with %v", c.path, c.header)
	}
	if n := len(r.all()); n != 1 {
		t.Errorf("it is called %d times", n)
	}
}

// A call is repeated until it is answered, with one id, after any interruption.
func TestACallIsMadeAgainUnderTheSameID(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	cut := make(chan struct{})
	r := newReceiver(t, func(w http.ResponseWriter, req *http.Request, n int) {
		switch n {
		case 1:
			w.WriteHeader(http.StatusInternalServerError)
		case 2:
			http.Redirect(w, req, "/elsewhere", http.StatusTemporaryRedirect)
		case 3: // the sender dies between the call and its record
			close(cut)
			<-req.Context().Done()
		}
	})
	s.cancel("default", r.URL+"/hook")
	stop := s.send(nil)
	<-cut
	stop()
	if n := s.waiting(); n != 1 {
		t.Fatalf("%d calls wait for the next sender", n)
	}
	if _, err := s.db.Pool().Exec(t.Context(), `UPDATE notices SET due_at = now()`); err != nil { // its lease ends
		t.Fatal(err)
	}
	// The lease is short: on a slow machine a result may not be recorded in time, and the call is made once more.
	s.send(func(o *webhook.Options) { o.Lease = time.Second })
	until(t, "nothing waits", func() bool { return s.waiting() == 0 })
	calls := r.all()
	if len(calls) < 4 {
		t.Errorf("it is called %d times, want one for each way to fail, and one more", len(calls))
	}
	for _, c := range calls {
		verify(t, firstKey, c)
		if c.path != "/hook" || c.body != calls[0].body || c.header.Get("webhook-id") != calls[0].header.Get("webhook-id") {
			t.Errorf("%s of %s: %s", c.path, c.header.Get("webhook-id"), c.body)
		}
	}
}

func TestACallThatCannotBeMadeIsGivenUpAndTheJobSaysSo(t *testing.T) {
	t.Parallel()
	gone := func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(http.StatusGone) }
	never := func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(http.StatusBadGateway) }
	hang := func(_ http.ResponseWriter, r *http.Request, _ int) { <-r.Context().Done() }
	for name, c := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request, int)
		edit   func(*webhook.Options)
		says   string
		calls  int
	}{
		"gone":              {gone, nil, "of status canceled after one try: it answered 410", 1},
		"never answered":    {never, func(o *webhook.Options) { o.For = time.Millisecond }, "it answered 502", -1},
		"hangs":             {hang, func(o *webhook.Options) { o.For, o.Timeout = time.Millisecond, 50*time.Millisecond }, "it did not answer within 50ms", -1},
		"a private address": {nil, func(o *webhook.Options) { o.Network = publicnet.Policy{} }, "its address is none that may be called", 0},
		"another network":   {nil, func(o *webhook.Options) { o.Network, _ = publicnet.Parse("10.0.0.0/8") }, "its address is none that may be called", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			r := newReceiver(t, c.answer)
			id := s.cancel("default", r.URL+"/hook?token=hunter2")
			s.send(c.edit)
			until(t, "it is given up", func() bool { return s.waiting() == 0 })
			says := s.warning(id)
			if !strings.HasPrefix(says, "gave up calling notify[0] (127.0.0.1:") || !strings.Contains(says, c.says) || strings.Contains(says, "hunter2") {
				t.Errorf("the history says %q", says)
			}
			if n := len(r.all()); c.calls >= 0 && n != c.calls {
				t.Errorf("it is called %d times, want %d", n, c.calls)
			}
		})
	}
}

// A call waits for a missing or invalid secret as long as for a receiver that does not answer.
func TestACallWaitsForItsKey(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r := newReceiver(t, nil)
	s.cancel("default", r.URL)
	if err := s.db.Secrets.Delete(t.Context(), "default", spec.WebhookSecret); err != nil {
		t.Fatal(err)
	}
	s.send(nil)
	tries := func() (n int) {
		if err := s.db.Pool().QueryRow(t.Context(), `SELECT coalesce(max(tries), 0) FROM notices`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	until(t, "it is tried twice", func() bool { return tries() >= 2 })
	s.setKey("default", "no key")
	until(t, "it is tried again", func() bool { return tries() >= 4 })
	if n := len(r.all()); n > 0 {
		t.Fatalf("it was called %d times without a signature", n)
	}
	s.setKey("default", secondKey)
	until(t, "nothing waits", func() bool { return s.waiting() == 0 })
	verify(t, secondKey, r.all()[0])
}

// Receivers of one tenant that hang do not hold up another's, and an answer
// without end is cut.
func TestTenantsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	s := newSite(t, "a", "z")
	release := make(chan struct{})
	var mu sync.Mutex
	now, most := 0, 0
	slow := newReceiver(t, func(_ http.ResponseWriter, r *http.Request, _ int) {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		select {
		case <-release:
		case <-r.Context().Done():
		}
		mu.Lock()
		now--
		mu.Unlock()
	})
	endless := newReceiver(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		for {
			if _, err := w.Write(make([]byte, 1<<10)); err != nil {
				return
			}
		}
	})
	for range 40 {
		s.cancel("a", slow.URL)
	}
	s.cancel("z", endless.URL)
	s.send(nil)
	until(t, "the other tenant's call is made", func() bool { return len(endless.all()) == 1 })
	until(t, "it is recorded", func() bool { return s.waiting() == 40 })
	close(release)
	until(t, "nothing waits", func() bool { return s.waiting() == 0 })
	if n := len(slow.all()); n != 40 {
		t.Errorf("%d calls, want each once", n)
	}
	mu.Lock()
	defer mu.Unlock()
	if most >= 8 {
		t.Errorf("one tenant had %d calls under way", most)
	}
}

// While a process may still record the result of a call, no other process makes it.
func TestALeaseOutlastsACallAndItsRecord(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{0, time.Second, time.Minute} {
		s := webhook.New(webhook.Options{Timeout: timeout})
		if s.Lease <= s.Timeout+webhook.RecordTime {
			t.Errorf("a call takes up to %s, its record %s, and the lease ends after %s", s.Timeout, webhook.RecordTime, s.Lease)
		}
	}
}
