package digest_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/admission"
	"berth/internal/control/digest"
	"berth/internal/lib/background"
	"berth/internal/lib/poll"
	"berth/internal/lib/publicnet"
	"berth/internal/lib/sealer"
	"berth/spec"
	"berth/wire"
)

// waitLimit bounds each wait for a condition. It is far above the needs of a slow machine.
const waitLimit = 5 * time.Minute

// hub is a registry that counts the questions for manifests, and the logins that it is sent.
type hub struct {
	t       *testing.T
	address string

	mu     sync.Mutex
	login  string // USER:PASSWORD that it asks for; "": none
	status int    // answered instead of manifests; 0: none
	asked  int
	logins []string
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{t: t}
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !h.lets(w, r) {
			return
		}
		store.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	h.address = strings.TrimPrefix(server.URL, "http://")
	return h
}

// lets notes a call, and answers it if it is refused.
func (h *hub) lets(w http.ResponseWriter, r *http.Request) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if sent := r.Header.Get("Authorization"); sent != "" {
		text, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(sent, "Basic "))
		if !slices.Contains(h.logins, string(text)) {
			h.logins = append(h.logins, string(text))
		}
	}
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte(h.login))
	if h.login != "" && r.Header.Get("Authorization") != want {
		w.Header().Set("WWW-Authenticate", `Basic realm="hub"`)
		w.WriteHeader(http.StatusUnauthorized)
		return false
	}
	if !strings.Contains(r.URL.Path, "/manifests/") || r.Method == http.MethodPut {
		return true
	}
	h.asked++
	if h.status != 0 {
		if h.status != http.StatusBadGateway {
			w.Header().Set("Retry-After", "1")
		}
		w.WriteHeader(h.status)
		return false
	}
	return true
}

// fails makes the registry answer with a status in place of manifests; 0 ends this.
func (h *hub) fails(status int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status = status
}

func (h *hub) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked
}

// push stores another image under a tag, and returns the reference and the digest.
func (h *hub) push(path string) (ref, digest string) {
	h.t.Helper()
	ref = h.address + "/" + path
	img, err := random.Image(64, 1)
	if err != nil {
		h.t.Fatal(err)
	}
	tag, err := name.NewTag(ref, name.Insecure)
	if err != nil {
		h.t.Fatal(err)
	}
	h.mu.Lock()
	user, password, _ := strings.Cut(h.login, ":")
	h.mu.Unlock()
	if err := remote.Write(tag, img, remote.WithAuth(&authn.Basic{Username: user, Password: password})); err != nil {
		h.t.Fatal(err)
	}
	sum, err := img.Digest()
	if err != nil {
		h.t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked, h.logins = 0, nil
	return ref, sum.String()
}

// site is a database with a key for secrets.
type site struct {
	t     *testing.T
	db    *db.DB
	keys  *sealer.Keys
	rules *admission.Controller
}

func newSite(t *testing.T, images []string, tenants ...berth.TenantID) *site {
	t.Helper()
	s := &site{t: t, db: dbtest.DB(t, db.Options{})}
	file := filepath.Join(t.TempDir(), "keys")
	err := sealer.Make(file)
	if err == nil {
		s.keys, err = sealer.Load(file)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, tenant := range tenants {
		if err := s.db.Tenants.Create(t.Context(), spec.NewTenant{ID: tenant}); err != nil {
			t.Fatal(err)
		}
	}
	owner := background.New()
	t.Cleanup(owner.Close)
	s.rules = admission.New(s.db, owner, admission.Rules{Images: images})
	// Submits request digests from now on, also before a resolver runs.
	if err := s.db.Images.Alive(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) secret(tenant berth.TenantID, name, value string) {
	s.t.Helper()
	key, sealed := s.keys.Seal(tenant, name, []byte(value))
	if _, _, err := s.db.Secrets.Set(s.t.Context(), db.SealedSecret{Tenant: tenant, Name: name, Key: key, Sealed: sealed}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) submit(tenant berth.TenantID, image, login string) berth.JobID {
	s.t.Helper()
	jobSpec := spec.Job{Name: "x", Image: image, ImageAuth: login, Command: []string{"true"}}.WithDefaults()
	job, _, err := s.db.Jobs.Submit(s.t.Context(), db.Submission{Tenant: tenant, Spec: jobSpec, Actor: "user:test"})
	if err != nil {
		s.t.Fatal(err)
	}
	return job.ID
}

func (s *site) job(id berth.JobID) wire.Job {
	s.t.Helper()
	j, err := s.db.Jobs.Get(s.t.Context(), "", id)
	if err != nil {
		s.t.Fatal(err)
	}
	return j
}

// due makes all waiting questions due.
func (s *site) due() {
	s.t.Helper()
	if _, err := s.db.Pool().Exec(s.t.Context(),
		`UPDATE image_requests SET due_at = now() - interval '1 second' WHERE state = 'waiting'`); err != nil {
		s.t.Fatal(err)
	}
}

// until waits until is holds; questions that wait are due all the time.
func (s *site) until(what string, is func() bool) {
	s.t.Helper()
	if !poll.Until(waitLimit, 20*time.Millisecond, func() bool { s.due(); return is() }) {
		s.t.Fatalf("not in time: %s", what)
	}
}

// resolve runs a resolver until the test ends or stop is called. Registries on loopback are allowed, and h without TLS,
// unless edit says otherwise.
func (s *site) resolve(h *hub, edit func(*digest.Options)) (stop func()) {
	s.t.Helper()
	local, err := publicnet.Parse("127.0.0.0/8")
	if err != nil {
		s.t.Fatal(err)
	}
	o := digest.Options{
		DB: s.db, Keys: s.keys, Admission: s.rules, Logger: slog.New(slog.DiscardHandler),
		Registries: &digest.Registries{Network: local, Plaintext: []string{h.address}, Timeout: waitLimit},
		Look:       10 * time.Millisecond, First: 10 * time.Millisecond, Lease: 3 * waitLimit,
	}
	if edit != nil {
		edit(&o)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	resolver := digest.New(o)
	go func() {
		defer close(ended)
		_ = resolver.Run(ctx)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	s.t.Cleanup(stop)
	return stop
}

func TestAJobGetsTheDigestThatItsTagHadAtTheSubmit(t *testing.T) {
	t.Parallel()
	s, h := newSite(t, nil), newHub(t)
	ref, first := h.push("team/app:1")
	id := s.submit("default", ref, "")
	s.resolve(h, nil)
	s.until("the job has a digest", func() bool { return s.job(id).ImageDigest != "" })
	_, second := h.push("team/app:1")
	later := s.submit("default", ref, "")
	s.until("the later job has a digest", func() bool { return s.job(later).ImageDigest != "" })
	if j, k := s.job(id), s.job(later); j.ImageDigest != first || j.ImageDigestBy != wire.DigestBySubmit ||
		k.ImageDigest != second {
		t.Errorf("digests %s by %s and %s, want %s and %s", j.ImageDigest, j.ImageDigestBy, k.ImageDigest, first, second)
	}
}

// Two replicas resolve a thousand jobs of one image.
func TestAThousandJobsAskAFewTimes(t *testing.T) {
	t.Parallel()
	s, h := newSite(t, nil), newHub(t)
	ref, want := h.push("team/app:1")
	for range 1000 {
		s.submit("default", ref, "")
	}
	s.resolve(h, nil)
	s.resolve(h, nil)
	open := func() (n int) {
		if err := s.db.Pool().QueryRow(t.Context(), `SELECT count(*) FROM image_requests`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	s.until("all have a digest", func() bool { return open() == 0 })
	var n int
	if err := s.db.Pool().QueryRow(t.Context(), `SELECT count(*) FROM jobs WHERE image_digest = $1`, want).Scan(&n); err != nil {
		t.Fatal(err)
	}
	// A question of each replica, as far as they claim at the same moment.
	if asked := h.count(); n != 1000 || asked == 0 || asked > 4 {
		t.Errorf("%d of 1000 jobs have the digest after %d questions", n, asked)
	}
}

func TestOnlyTheLoginOfTheJobsTenantIsSent(t *testing.T) {
	t.Parallel()
	s, h := newSite(t, nil, "red", "blue"), newHub(t)
	h.login = "red:password"
	ref, want := h.push("red/private:1")
	s.secret("red", "login", "red:password")
	s.secret("blue", "login", "blue:guess")
	hers, named, his := s.submit("red", ref, "login"), s.submit("red", ref, ""), s.submit("blue", ref, "login")
	s.resolve(h, nil)
	state := func(id berth.JobID) wire.ImageState {
		if r := s.job(id).ImageRequest; r != nil {
			return r.State
		}
		return ""
	}
	s.until("all are answered", func() bool {
		answered := func(id berth.JobID) bool { return s.job(id).ImageDigest != "" || state(id) == wire.ImageUnresolvable }
		return answered(hers) && answered(named) && answered(his)
	})
	if got := s.job(hers).ImageDigest; got != want {
		t.Errorf("digest %s, want %s", got, want)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	slices.Sort(h.logins)
	if !slices.Equal(h.logins, []string{"blue:guess", "red:password"}) {
		t.Errorf("logins %q", h.logins)
	}
	for _, id := range []berth.JobID{named, his} {
		r := s.job(id).ImageRequest
		if r == nil || !strings.Contains(r.Reason, "refuses the image (401)") || s.job(id).ImageDigest != "" {
			t.Errorf("request %+v", r)
		}
	}
}

func TestARegistryThatFailsDelaysNothing(t *testing.T) {
	t.Parallel()
	s, h := newSite(t, nil), newHub(t)
	ref, want := h.push("team/app:1")
	h.fails(http.StatusServiceUnavailable)
	id := s.submit("default", ref, "")
	s.resolve(h, nil)
	s.until("a question has failed", func() bool {
		r := s.job(id).ImageRequest
		return r != nil && r.State == wire.ImageWaiting && strings.Contains(r.Reason, "the registry has failed")
	})
	h.fails(0)
	s.until("the job has a digest", func() bool { return s.job(id).ImageDigest != "" })
	if got := s.job(id).ImageDigest; got != want {
		t.Errorf("digest %s, want %s", got, want)
	}
}

// ages makes a job's request an hour old.
func (s *site) ages(id berth.JobID) {
	s.t.Helper()
	if _, err := s.db.Pool().Exec(s.t.Context(),
		`UPDATE image_requests SET created_at = created_at - interval '1 hour' WHERE job = $1`, id); err != nil {
		s.t.Fatal(err)
	}
}

// The time for a job's image is over: the first machine decides. The reason of the last question stays.
func TestAJobIsGivenUpAfterItsTime(t *testing.T) {
	t.Parallel()
	s, h := newSite(t, nil), newHub(t)
	ref, _ := h.push("team/app:1")
	h.fails(http.StatusTooManyRequests)
	id := s.submit("default", ref, "")
	s.resolve(h, nil)
	s.until("a question has failed", func() bool {
		r := s.job(id).ImageRequest
		return r != nil && r.State == wire.ImageWaiting && strings.Contains(r.Reason, "429")
	})
	s.ages(id)
	s.until("it is given up", func() bool {
		r := s.job(id).ImageRequest
		return r != nil && r.State == wire.ImageGivenUp && strings.Contains(r.Reason, "429")
	})
}

// An answer hours after the submit is not the content of the submit. A younger job with the same image gets it.
func TestALateAnswerIsNotOfTheSubmit(t *testing.T) {
	t.Parallel()
	s, h := newSite(t, nil), newHub(t)
	ref, want := h.push("team/app:1")
	old := s.submit("default", ref, "")
	s.ages(old)
	young := s.submit("default", ref, "")
	s.resolve(h, nil)
	s.until("the younger job has a digest", func() bool { return s.job(young).ImageDigest != "" })
	j := s.job(old)
	if j.ImageDigest != "" || j.ImageRequest == nil || j.ImageRequest.State != wire.ImageGivenUp ||
		s.job(young).ImageDigest != want {
		t.Errorf("the old job has digest %q, request %+v; the younger %q, want %s", j.ImageDigest, j.ImageRequest,
			s.job(young).ImageDigest, want)
	}
}

// A header with such a login breaks the connection to many registries, and would count as their failure.
func TestALongLoginIsNotSent(t *testing.T) {
	t.Parallel()
	s, h := newSite(t, nil), newHub(t)
	ref, _ := h.push("team/app:1")
	s.secret("default", "login", "me:"+strings.Repeat("x", 8<<10))
	id := s.submit("default", ref, "login")
	s.resolve(h, nil)
	s.until("it is refused", func() bool {
		r := s.job(id).ImageRequest
		return s.job(id).ImageDigest != "" || r != nil && r.State == wire.ImageUnresolvable
	})
	if asked, j := h.count(), s.job(id); asked != 0 || j.ImageDigest != "" ||
		!strings.Contains(j.ImageRequest.Reason, "more than 4096 bytes") {
		t.Errorf("%d questions, digest %q, request %+v", asked, j.ImageDigest, j.ImageRequest)
	}
}

// After some failures in a row, a registry is left alone for a time, whatever the number of jobs.
func TestARegistryThatFailsIsLeftAlone(t *testing.T) {
	t.Parallel()
	s, h := newSite(t, nil), newHub(t)
	h.fails(http.StatusBadGateway)
	s.resolve(h, nil)
	var ids []berth.JobID
	for i := range 20 {
		ids = append(ids, s.submit("default", fmt.Sprintf("%s/team/app%d:1", h.address, i), ""))
	}
	put := func(id berth.JobID) bool {
		r := s.job(id).ImageRequest
		return r != nil && strings.Contains(r.Reason, "does not answer at present")
	}
	s.until("most were not asked", func() bool {
		n := 0
		for _, id := range ids {
			if put(id) {
				n++
			}
		}
		return n >= 10 || h.count() > 6
	})
	// Three failures close the registry. Others may be in flight by then, up to four.
	if asked := h.count(); asked < 3 || asked > 6 {
		t.Errorf("%d questions", asked)
	}
}

func TestRulesAreJudgedBeforeTheQuestion(t *testing.T) {
	t.Parallel()
	s, h := newSite(t, []string{"ghcr.io/acme"}), newHub(t)
	ref, _ := h.push("team/app:1")
	id := s.submit("default", ref, "")
	s.resolve(h, nil)
	s.until("it is refused", func() bool {
		r := s.job(id).ImageRequest
		return r != nil && r.State == wire.ImageRefused && strings.Contains(r.Reason, "not among the images that the cluster allows")
	})
	if asked := h.count(); asked != 0 {
		t.Errorf("%d questions to a registry outside of the rules", asked)
	}
}

func TestRegistriesInPrivateNetworksNeedTheOperator(t *testing.T) {
	t.Parallel()
	s, h := newSite(t, nil), newHub(t)
	s.secret("default", "login", "me:password")
	ref, _ := h.push("team/app:1")
	id := s.submit("default", ref, "login")
	s.resolve(h, func(o *digest.Options) { o.Registries.Network = publicnet.Policy{} })
	s.until("it is refused", func() bool {
		r := s.job(id).ImageRequest
		return s.job(id).ImageDigest != "" ||
			r != nil && r.State == wire.ImageUnresolvable && strings.Contains(r.Reason, "the control plane may not call")
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asked != 0 || len(h.logins) != 0 {
		t.Errorf("%d questions, logins %q", h.asked, h.logins)
	}
}

func TestAnImageThatNoRegistryHasIsNoFailure(t *testing.T) {
	t.Parallel()
	s, h := newSite(t, nil), newHub(t)
	id := s.submit("default", h.address+"/built/here:1", "")
	s.resolve(h, nil)
	s.until("it is known", func() bool {
		r := s.job(id).ImageRequest
		return r != nil && r.State == wire.ImageUnresolvable && strings.Contains(r.Reason, "no such image")
	})
	if j := s.job(id); j.Status != berth.Submitted || j.ImageDigest != "" {
		t.Errorf("the job is %s with %q", j.Status, j.ImageDigest)
	}
}

// A registry that is not listed gets no call without TLS, so no login either.
func TestOnlyListedRegistriesAreCalledWithoutTLS(t *testing.T) {
	t.Parallel()
	s, h := newSite(t, nil), newHub(t)
	s.secret("default", "login", "me:password")
	ref, _ := h.push("team/app:1")
	id := s.submit("default", ref, "login")
	s.resolve(h, func(o *digest.Options) { o.Registries.Plaintext = []string{"registry.example:5000"} })
	s.until("a question has failed", func() bool {
		r := s.job(id).ImageRequest
		return s.job(id).ImageDigest != "" || r != nil && strings.Contains(r.Reason, "could not be reached")
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asked != 0 || len(h.logins) != 0 || s.job(id).ImageDigest != "" {
		t.Errorf("%d questions, logins %q, digest %q", h.asked, h.logins, s.job(id).ImageDigest)
	}
}
