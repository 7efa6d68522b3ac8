package agent_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"berth"
	"berth/activities/node"
	"berth/db"
	"berth/failure"
	"berth/internal/lib/sealer"
	"berth/spec"
)

const canary = "hunter2-canary"

// canarySum is the hash of the canary that the test program prints.
var canarySum = func() string {
	sum := sha256.Sum256([]byte(canary))
	return hex.EncodeToString(sum[:])
}()

// secret stores a secret as the API would.
func (s *site) secret(name, value string) {
	s.t.Helper()
	key, sealed := s.keys.Seal("default", name, []byte(value))
	if _, _, err := s.db.Secrets.Set(s.t.Context(), db.SealedSecret{Tenant: "default", Name: name, Key: key, Sealed: sealed}); err != nil {
		s.t.Fatal(err)
	}
}

// newKeys makes a key file of its own and reads it.
func newKeys(t *testing.T) *sealer.Keys {
	t.Helper()
	at := filepath.Join(t.TempDir(), "keys")
	if err := sealer.Make(at); err != nil {
		t.Fatal(err)
	}
	k, err := sealer.Load(at)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// holds lists the files below a folder that hold the canary.
func holds(t *testing.T, dir string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		var b []byte
		if err == nil && d.Type().IsRegular() {
			b, err = os.ReadFile(path)
		}
		if bytes.Contains(b, []byte(canary)) {
			found = append(found, path)
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil // an agent at work writes each file under another name first
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// secretFolders lists where secrets of this job lie in memory.
func secretFolders(t *testing.T, job berth.JobID) []string {
	t.Helper()
	var all []string
	for _, place := range []string{"/run", "/dev/shm"} {
		found, err := filepath.Glob(filepath.Join(place, "berth-agent-*", "berth-"+string(job)+"-*"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

func TestAJobGetsItsSecretsAsItAsks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		as   string
		want []string
	}{
		{"", []string{"env TOKEN " + canarySum, "file " + canarySum}},
		{spec.SecretsEnv, []string{"env TOKEN " + canarySum, "no file"}},
		{spec.SecretsFile, []string{"env TOKEN is unset", "file " + canarySum}},
	} {
		t.Run("as "+c.as, func(t *testing.T) {
			t.Parallel()
			for name, open := range map[string]func(*testing.T) (*site, *machine){
				"fake":   func(t *testing.T) (*site, *machine) { s := newSite(t); return s, s.machine("m1") },
				"docker": dockerMachine,
			} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					s, m := open(t)
					s.secret("TOKEN", canary)
					id := s.submit(func(j *spec.Job) { j.Secrets, j.SecretsAs = []string{"TOKEN"}, c.as }, "do", "digest TOKEN /run/secrets/TOKEN", "trap-term 0")
					req, w := m.run(id)
					s.until("the program waits for its end", func() bool { return slices.Contains(s.log(id, 1), "ready") })
					folders := secretFolders(t, id)
					if len(folders) != 1 && c.as != spec.SecretsEnv {
						t.Errorf("its secrets lie in %v", folders)
					}
					m.terminate(req)
					if x := w.exit(); x.Code != 0 {
						t.Errorf("exit is %+v", x)
					}
					if got, want := s.log(id, 1), slices.Concat(c.want, []string{"ready", "term"}); !slices.Equal(got, want) {
						t.Errorf("it prints %q, want %q", got, want)
					}
					for _, lay := range folders {
						if _, err := os.Stat(filepath.Dir(lay)); !errors.Is(err, os.ErrNotExist) {
							t.Errorf("after its end there is %s, %v", filepath.Dir(lay), err)
						}
					}
					found := append(holds(t, m.cfg.StateDir), holds(t, s.blobDir)...)
					if len(found) > 0 || strings.Contains(m.logs.text(), canary) {
						t.Errorf("the value lies in %v, or the agent's log", found)
					}
					s.settle(id)
					m.cleared(req)
				})
			}
		})
	}
}

func TestAJobWhoseSecretIsGoneFails(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	s.secret("TOKEN", canary)
	id := s.submit(func(j *spec.Job) { j.Secrets = []string{"TOKEN"} }, "exit", "0")
	if err := s.db.Secrets.Delete(t.Context(), "default", "TOKEN"); err != nil {
		t.Fatal(err)
	}
	_, w := m.run(id)
	if x := w.exit(); x.Cause != failure.CauseSecretMissing || x.Started() {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Failed || j.Reason.Code != berth.ReasonSecretMissing || !strings.Contains(j.Reason.Message, "TOKEN was deleted") {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
}

// loginRuntime records the logins that images are pulled with.
type loginRuntime struct {
	node.Runtime
	mu     sync.Mutex
	logins []node.RegistryAuth
}

func (l *loginRuntime) EnsureImage(ctx context.Context, ref string, auth *node.RegistryAuth, fresh bool) (node.Image, error) {
	if auth != nil {
		l.mu.Lock()
		l.logins = append(l.logins, *auth)
		l.mu.Unlock()
	}
	return l.Runtime.EnsureImage(ctx, ref, auth, fresh)
}

func TestImageAuthIsUsedOnlyToPull(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	engine := &loginRuntime{Runtime: m.runtime}
	m.cfg.Runtime = engine
	m.start()
	s.secret("LOGIN", "me:"+canary)
	id := s.submit(func(j *spec.Job) { j.ImageAuth = "LOGIN" }, "digest", "LOGIN", "/run/secrets/LOGIN")
	_, w := m.run(id)
	if x := w.exit(); x.Code != 0 {
		t.Errorf("exit is %+v", x)
	}
	engine.mu.Lock()
	defer engine.mu.Unlock()
	if len(engine.logins) != 1 || engine.logins[0] != (node.RegistryAuth{Username: "me", Password: canary}) {
		t.Errorf("pulled with %d logins", len(engine.logins))
	}
	if got := s.log(id, 1); !slices.Equal(got, []string{"env LOGIN is unset", "no file"}) {
		t.Errorf("the container sees %q", got)
	}
}
