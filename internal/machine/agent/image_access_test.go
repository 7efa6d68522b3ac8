package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/db"
	"berth/failure"
	"berth/spec"
)

// guarded is a registry that serves an image to one login only, and counts the questions.
type guarded struct {
	mu    sync.Mutex
	login string // USER:PASSWORD; "": everybody
	fails error  // instead of any answer
	asked int
}

func (g *guarded) of(engine *fakeruntime.Fake) {
	engine.GuardImages(func(ref, digest string, auth *node.RegistryAuth) error {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.asked++
		login := ""
		if auth != nil {
			login = auth.Username + ":" + auth.Password
		}
		switch {
		case g.fails != nil:
			return fmt.Errorf("pull image %s: %w", ref, g.fails)
		case g.login != "" && login != g.login:
			return fmt.Errorf("pull image %s: %w: denied", ref, node.ErrImageNotFound)
		}
		return nil
	})
}

func (g *guarded) set(login string, fails error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.login, g.fails = login, fails
}

func (g *guarded) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.asked
}

// secretOf stores a secret of a tenant.
func (s *site) secretOf(tenant berth.TenantID, name, value string) {
	s.t.Helper()
	key, sealed := s.keys.Seal(tenant, name, []byte(value))
	if _, _, err := s.db.Secrets.Set(s.t.Context(),
		db.SealedSecret{Tenant: tenant, Name: name, Key: key, Sealed: sealed}); err != nil {
		s.t.Fatal(err)
	}
}

// privateImage is a machine whose engine has an image that the registry serves to one login only.
func privateImage(s *site) (*machine, *guarded, *created) {
	s.t.Helper()
	if err := s.db.Tenants.Create(s.t.Context(), spec.NewTenant{ID: "blue"}); err != nil {
		s.t.Fatal(err)
	}
	m := s.machine("m1")
	registry, ran := &guarded{login: "me:" + canary}, &created{}
	registry.of(m.runtime)
	ran.of(m.runtime)
	s.secretOf("default", "LOGIN", "me:"+canary)
	return m, registry, ran
}

// digest is the digest of the site's image on an engine that has it.
func (s *site) digest() string {
	s.t.Helper()
	found, err := fakeruntime.New(fakeruntime.Options{}).EnsureImage(s.t.Context(), s.image, nil, false)
	if err != nil {
		s.t.Fatal(err)
	}
	return found.Digest
}

func withLogin(j *spec.Job) { j.ImageAuth = "LOGIN" }

// wantRefused runs a job whose image the registry does not serve to its tenant.
func (m *machine) wantRefused(id berth.JobID, cause failure.ExitCause, reason berth.ReasonCode) {
	m.s.t.Helper()
	_, w := m.run(id)
	if x := w.exit(); x.Cause != cause || x.Started() {
		m.s.t.Errorf("exit is %+v, want %s", x, cause)
	}
	j := m.s.settle(id)
	if j.Reason == nil || j.Reason.Code != reason || j.ImageDigest != "" {
		m.s.t.Errorf("job is %s, %+v, with the digest %q", j.Status, j.Reason, j.ImageDigest)
	}
}

func TestAnotherTenantsPrivateImageIsNotServed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m, registry, ran := privateImage(s)
	m.ran(s.submit(withLogin, "exit", "0"))
	pinned := s.image + "@" + s.digest()
	if got := ran.sorted(); len(got) != 1 || got[0] != pinned {
		t.Errorf("ran %q, want %q", got, pinned)
	}

	// Neither no login nor a wrong one gets what the machine has.
	m.wantRefused(s.submitAs("blue", nil, "exit", "0"), failure.CauseImageNotFound, berth.ReasonImageNotFound)
	s.secretOf("blue", "LOGIN", "me:wrong")
	m.wantRefused(s.submitAs("blue", withLogin, "exit", "0"), failure.CauseImageNotFound, berth.ReasonImageNotFound)
	if got := ran.sorted(); len(got) != 1 {
		t.Errorf("ran %q", got)
	}

	// The same tenant without its login has no right either.
	m.wantRefused(s.submit(nil, "exit", "0"), failure.CauseImageNotFound, berth.ReasonImageNotFound)

	// Each tenant asks for itself, also with the login of another one.
	before := registry.count()
	s.secretOf("blue", "LOGIN", "me:"+canary)
	m.ran(s.submitAs("blue", withLogin, "exit", "0"))
	if n := registry.count() - before; n != 1 {
		t.Errorf("the registry was asked %d times, want 1", n)
	}
}

func TestARegistrysAnswerToALoginCountsForATime(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m, registry, _ := privateImage(s)
	for range 2 {
		m.ran(s.submit(withLogin, "exit", "0"))
	}
	if n := registry.count(); n != 1 {
		t.Errorf("the registry was asked %d times, want once", n)
	}
	registry.set("", node.ErrImageUnavailable) // it is down
	m.ran(s.submit(withLogin, "exit", "0"))

	// No file has a trace of the login.
	if found := holds(t, m.cfg.StateDir); len(found) > 0 {
		t.Errorf("the login lies in %q", found)
	}

	// A silent registry costs the job another machine, as at a pull, and nothing is served.
	m.cfg.Timing.AccessFresh, m.cfg.Timing.PullPause = time.Nanosecond, time.Millisecond
	m.restart()
	before := registry.count()
	id := s.submit(withLogin, "exit", "0")
	_, w := m.run(id)
	if x := w.exit(); x.Cause != failure.CauseImageUnavailable || x.Started() {
		t.Errorf("exit is %+v, want %s", x, failure.CauseImageUnavailable)
	}
	if n := registry.count() - before; n != 5 {
		t.Errorf("the registry was asked %d times, want 5", n)
	}

	registry.set("me:revoked", nil)
	m.wantRefused(s.submit(withLogin, "exit", "0"), failure.CauseImageNotFound, berth.ReasonImageNotFound)
}

// An image that everybody may pull is served without questions, also by a later process of the agent.
func TestAPublicImageNeedsItsRegistryOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m, registry, _ := privateImage(s)
	registry.set("", nil)
	m.ran(s.submit(nil, "exit", "0"))
	registry.set("", node.ErrImageUnavailable)
	m.restart()
	m.ran(s.submitAs("blue", nil, "exit", "0"))
	m.ran(s.submit(withLogin, "exit", "0"))
	if n := registry.count(); n != 1 {
		t.Errorf("the registry was asked %d times, want once", n)
	}

	// A lost or damaged record gives nobody access.
	record := filepath.Join(m.cfg.StateDir, "image-access.json")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(record); err != nil || !strings.Contains(string(text), s.digest()) {
		t.Errorf("the record is %s, %v", text, err)
	}
	if err := os.WriteFile(record, []byte(`{"docker.io`), 0o600); err != nil {
		t.Fatal(err)
	}
	m.start()
	registry.set("me:"+canary, nil)
	m.wantRefused(s.submitAs("blue", nil, "exit", "0"), failure.CauseImageNotFound, berth.ReasonImageNotFound)
}

func TestTrustedImagesNeedNoRegistry(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m, registry, _ := privateImage(s)
	m.cfg.TrustedImages = []string{"docker.io/library/testprog"}
	m.restart()
	registry.set("", node.ErrImageUnavailable)
	m.ran(s.submitAs("blue", nil, "exit", "0"))
	if n := registry.count(); n != 0 {
		t.Errorf("the registry was asked %d times", n)
	}
}
