package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"berth"
	"berth/activities/node"
)

// registry answers CheckImage.
type registry struct {
	node.Runtime
	asked  atomic.Int64
	answer func(auth *node.RegistryAuth) error
}

func (r *registry) CheckImage(_ context.Context, _, _ string, auth *node.RegistryAuth) error {
	r.asked.Add(1)
	return r.answer(auth)
}

func accessOf(t *testing.T, r *registry) *imageAccess {
	t.Helper()
	c := Config{StateDir: t.TempDir(), Runtime: r, Timing: Timing{}.withDefaults()}
	return openImageAccess(c, slog.New(slog.DiscardHandler))
}

// A pull proves the login of the job that pulled, and of no other.
func TestAPullGivesAccessToItsLoginAlone(t *testing.T) {
	t.Parallel()
	denied := errors.New("denied")
	r := &registry{answer: func(*node.RegistryAuth) error { return denied }}
	a := accessOf(t, r)
	pulled := node.Image{Digest: "sha256:" + strings.Repeat("1", 64), Pulled: true}
	here := node.Image{Digest: pulled.Digest}
	login := &node.RegistryAuth{Username: "a", Password: "b"}
	if err := a.demand(t.Context(), "red", "ghcr.io/a/b:1", pulled, login); err != nil {
		t.Fatal(err)
	}
	other := node.Image{Digest: "sha256:" + strings.Repeat("2", 64)}
	for _, c := range []struct {
		name   string
		tenant berth.TenantID
		ref    string
		image  node.Image
		login  *node.RegistryAuth
		want   error
	}{
		{"again", "red", "ghcr.io/a/b:1", here, login, nil},
		{"by another tag", "red", "ghcr.io/a/b:2@" + here.Digest, here, login, nil},
		{"another digest", "red", "ghcr.io/a/b:1", other, login, denied},
		{"another repository", "red", "ghcr.io/a/c:1", here, login, denied},
		{"another tenant", "blue", "ghcr.io/a/b:1", here, login, denied},
		{"no login", "red", "ghcr.io/a/b:1", here, nil, denied},
		{"parts of a login moved", "red", "ghcr.io/a/b:1", here, &node.RegistryAuth{Username: "ab"}, denied},
		{"an image of no registry", "blue", "ghcr.io/a/b:1", node.Image{}, nil, nil},
	} {
		if err := a.demand(t.Context(), c.tenant, c.ref, c.image, c.login); !errors.Is(err, c.want) {
			t.Errorf("%s: error is %v, want %v", c.name, err, c.want)
		}
	}
}

// An array of a thousand elements on one machine costs its registry one request. A member that
// is stopped does not wait for the answer.
func TestMembersShareOneQuestion(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}, 1), make(chan struct{})
	r := &registry{answer: func(*node.RegistryAuth) error { asked <- struct{}{}; <-release; return nil }}
	a := accessOf(t, r)
	image := node.Image{Digest: "sha256:" + strings.Repeat("1", 64)}
	stopped, stop := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { gone <- a.demand(stopped, "red", "ghcr.io/a/b:1", image, nil) }()
	<-asked
	stop()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("the member that was stopped got %v", err)
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := a.demand(t.Context(), "red", "ghcr.io/a/b:1", image, nil); err != nil {
				t.Error(err)
			}
		})
	}
	close(release)
	all.Wait()
	if n := r.asked.Load(); n != 1 {
		t.Errorf("the registry was asked %d times, want once", n)
	}
}
