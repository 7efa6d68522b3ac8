package docker_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"berth/activities/node"
	"berth/activities/node/runtimetest"
	"berth/internal/machine/docker"
)

// unique creates a small image that no engine has seen. At the end of the test, all
// images of its repository are removed from the host's engine.
func unique(t *testing.T, h *hub) v1.Image {
	t.Helper()
	img, err := random.Image(2000, 2)
	if err != nil {
		t.Fatal(err)
	}
	img, err = mutate.Config(img, v1.Config{Cmd: []string{"/none"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeImages(t, h.address) })
	return img
}

// removeImages removes the images that the host's engine pulled from one registry.
func removeImages(t *testing.T, registry string) {
	t.Helper()
	api, err := client.NewClientWithOpts(client.WithHost(runtimetest.DefaultHost), client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	ctx := context.Background() // the test's own has ended
	all, err := api.ImageList(ctx, image.ListOptions{})
	if err != nil {
		t.Error(err)
	}
	for _, one := range all {
		for _, ref := range append(one.RepoTags, one.RepoDigests...) {
			if strings.HasPrefix(ref, registry+"/") {
				if _, err := api.ImageRemove(ctx, one.ID, image.RemoveOptions{Force: true}); err != nil && !strings.Contains(err.Error(), "No such image") {
					t.Error(err)
				}
				break
			}
		}
	}
}

func TestPullReturnsTheRegistrysDigest(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	ref, digest := h.push("team/tool:1", unique(t, h))
	e := open(t, "", docker.Options{})
	got, err := e.EnsureImage(t.Context(), ref, nil, false)
	if err != nil || got.Digest != digest || !got.Pulled {
		t.Fatalf("pull by tag: %+v, %v; want %q", got, err, digest)
	}
	pulled := h.blobs.Load()
	for _, same := range []string{ref, h.address + "/team/tool@" + digest, ref + "@" + digest} {
		if got, err := e.EnsureImage(t.Context(), same, nil, false); err != nil || got.Digest != digest {
			t.Errorf("ensure %s: %+v, %v; want %q", same, got, err, digest)
		}
	}
	if again := h.blobs.Load(); again != pulled {
		t.Errorf("an image that was here cost %d more fetches", again-pulled)
	}
}

// Two machines that imported the same files have images of different ids, and a
// job must be able to move between them.
func TestImageFromNoRegistryHasNoDigest(t *testing.T) {
	t.Parallel()
	e := open(t, runtimetest.DefaultHost, docker.Options{})
	got, err := e.EnsureImage(t.Context(), runtimetest.Image(t, runtimetest.DefaultHost), nil, false)
	if err != nil || got != (node.Image{}) {
		t.Errorf("image %+v, %v; want no digest and no pull", got, err)
	}
}

func TestPullByDigestTakesThatVeryImage(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	_, first := h.push("team/tool:1", unique(t, h))
	h.push("team/tool:1", unique(t, h)) // the tag has moved
	e := open(t, "", docker.Options{})
	ref := h.address + "/team/tool:1@" + first
	if got, err := e.EnsureImage(t.Context(), ref, nil, false); err != nil || got.Digest != first {
		t.Fatalf("pull %s: %+v, %v", ref, got, err)
	}
	if got, err := e.EnsureImage(t.Context(), ref, nil, false); err != nil || got.Digest != first {
		t.Errorf("ensure %s: %+v, %v", ref, got, err)
	}
	spec := node.ContainerSpec{Name: "berth-test-" + first[7:27], Image: ref, CPUMilli: 100, MemoryMiB: 16}
	t.Cleanup(func() {
		if err := e.Remove(context.Background(), spec.Name); err != nil {
			t.Error(err)
		}
	})
	if _, err := e.Create(t.Context(), spec); err != nil {
		t.Errorf("create from tag and digest: %v", err)
	}
}

// The engine refuses to remove the image of a container, also of one that was created by the digest, and
// removes the content with the last name.
func TestAnImageIsRemovedOnceNoContainerNeedsIt(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	ref, digest := h.push("team/tool:1", unique(t, h))
	e := open(t, "", docker.Options{})
	pulled, err := e.EnsureImage(t.Context(), ref, nil, false)
	if err != nil || pulled.ID == "" {
		t.Fatalf("pulled %+v, %v", pulled, err)
	}
	spec := node.ContainerSpec{Name: "berth-test-" + digest[7:27], Image: ref + "@" + digest, CPUMilli: 100, MemoryMiB: 16}
	t.Cleanup(func() {
		if err := e.Remove(context.Background(), spec.Name); err != nil {
			t.Error(err)
		}
	})
	if _, err := e.Create(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if err := e.RemoveImage(t.Context(), ref, pulled.ID); !errors.Is(err, node.ErrImageInUse) {
		t.Errorf("the image of a container: %v", err)
	}
	if err := e.Remove(t.Context(), spec.Name); err != nil {
		t.Fatal(err)
	}
	if err := e.RemoveImage(t.Context(), ref, "sha256:0"); !errors.Is(err, node.ErrNoImage) {
		t.Errorf("a name that means another image: %v", err)
	}
	if err := e.RemoveImage(t.Context(), ref, pulled.ID); err != nil {
		t.Error(err)
	}
	for _, name := range []string{ref, spec.Image} {
		if _, err := e.ImageBytes(t.Context(), name); !errors.Is(err, node.ErrNoImage) {
			t.Errorf("%s after the removal: %v", name, err)
		}
	}
	if err := e.RemoveImage(t.Context(), ref, pulled.ID); !errors.Is(err, node.ErrNoImage) {
		t.Errorf("a second removal: %v", err)
	}
	if got, err := e.EnsureImage(t.Context(), ref, nil, false); err != nil || got != pulled {
		t.Errorf("after the removal the image is %+v, %v, want %+v", got, err, pulled)
	}
}

// Without its digest an image counts as one of no registry, which every tenant may run.
func TestADigestThatATagNeedsIsNotRemoved(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	ref, digest := h.push("team/tool:1", unique(t, h))
	byDigest := h.address + "/team/tool@" + digest
	e := open(t, "", docker.Options{})
	first, err := e.EnsureImage(t.Context(), byDigest, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.EnsureImage(t.Context(), ref, nil, false); err != nil {
		t.Fatal(err)
	}
	if err := e.RemoveImage(t.Context(), byDigest, first.ID); !errors.Is(err, node.ErrImageInUse) {
		t.Errorf("a digest with a tag: %v", err)
	}
	if got, err := e.EnsureImage(t.Context(), ref, nil, false); err != nil || got.Digest != digest {
		t.Errorf("the tag has the digest %q, %v, want %q", got.Digest, err, digest)
	}
	if err := e.RemoveImage(t.Context(), ref, first.ID); err != nil {
		t.Errorf("the tag: %v", err)
	}
	if err := e.RemoveImage(t.Context(), byDigest, first.ID); err != nil && !errors.Is(err, node.ErrNoImage) {
		t.Errorf("the digest after its tag: %v", err)
	}
	if _, err := e.ImageBytes(t.Context(), byDigest); !errors.Is(err, node.ErrNoImage) {
		t.Errorf("after both removals: %v", err)
	}
}

func TestF37PullErrorsSayWhetherToTryAgain(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	good, digest := h.push("team/tool:1", unique(t, h))
	other := strings.Repeat("0", 64)
	status := func(code int, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/v2/" {
				return false
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
			return true
		}
	}
	everywhere := func(code int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool { w.WriteHeader(code); return true }
	}
	code := func(name string) string { return fmt.Sprintf(`{"errors":[{"code":%q,"message":"said so"}]}`, name) }
	cases := []struct {
		name   string
		ref    string
		answer func(http.ResponseWriter, *http.Request) bool
		want   error
	}{
		{"no such repository", h.address + "/no/such:1", nil, node.ErrImageNotFound},
		{"no such tag", h.address + "/team/tool:2", nil, node.ErrImageNotFound},
		{"no such digest", h.address + "/team/tool@sha256:" + other, nil, node.ErrImageNotFound},
		{"bad reference", "UPPER case", nil, node.ErrImageNotFound},
		{"empty reference", "", nil, node.ErrImageNotFound},
		{"401", good, status(401, code("UNAUTHORIZED")), node.ErrImageNotFound},
		{"401 from the start", good, everywhere(401), node.ErrImageNotFound},
		{"403", good, status(403, code("DENIED")), node.ErrImageNotFound},
		{"403 without a word", good, status(403, ""), node.ErrImageNotFound},
		{"403 from the start", good, everywhere(403), node.ErrImageNotFound},
		{"404 without a word", good, status(404, ""), node.ErrImageNotFound},
		{"429", good, status(429, code("TOOMANYREQUESTS")), node.ErrImageUnavailable},
		{"429 without a word", good, status(429, ""), node.ErrImageUnavailable},
		{"429 from the start", good, everywhere(429), node.ErrImageUnavailable},
		{"500", good, status(500, ""), node.ErrImageUnavailable},
		{"502 from the start", good, everywhere(502), node.ErrImageUnavailable},
		{"503 with a page", good, status(503, "<html>unauthorized: denied: manifest unknown</html>"), node.ErrImageUnavailable},
		{"closed port", closedPort(t) + "/team/tool:1", nil, node.ErrImageUnavailable},
		{"unknown host", "registry.berth-test.invalid/team/tool:1", nil, node.ErrImageUnavailable},
		{"deceptive name, unreachable", closedPort(t) + "/denied/unauthorized/manifest-unknown:404", nil, node.ErrImageUnavailable},
		{"deceptive name, missing", h.address + "/connection-refused/toomanyrequests:500", nil, node.ErrImageNotFound},
	}
	e := open(t, "", docker.Options{})
	for _, c := range cases {
		// One after the other: they share the registry.
		h.answer(c.answer)
		_, err := e.EnsureImage(t.Context(), c.ref, nil, false)
		h.answer(nil)
		t.Logf("%s: %v", c.name, err)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: error is %v, want %v", c.name, err, c.want)
		}
		if errors.Is(err, node.ErrImageNotFound) && errors.Is(err, node.ErrImageUnavailable) {
			t.Errorf("%s: error is both: %v", c.name, err)
		}
		if c.ref == h.address+"/team/tool:2" {
			continue // a check ignores the tag
		}
		h.answer(c.answer)
		err = e.CheckImage(t.Context(), c.ref, digest, nil)
		h.answer(nil)
		t.Logf("%s, check: %v", c.name, err)
		if strings.Contains(c.ref, other) { // the check is of another digest, which exists
			c.want = nil
		}
		if !errors.Is(err, c.want) {
			t.Errorf("%s: error of the check is %v, want %v", c.name, err, c.want)
		}
	}
}

func TestF37PullRefusesForgedContent(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	ref, digest := h.push("team/tool:1", unique(t, h))
	h.push("team/forged:1", unique(t, h))
	e := open(t, "", docker.Options{})

	h.answer(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/manifests/"+digest) {
			r.URL.Path = "/v2/team/forged/manifests/1"
		}
		return false
	})
	_, err := e.EnsureImage(t.Context(), h.address+"/team/tool@"+digest, nil, false)
	t.Log(err)
	if !errors.Is(err, node.ErrImageMismatch) {
		t.Errorf("another manifest under this digest: error is %v, want %v", err, node.ErrImageMismatch)
	}

	h.answer(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") || r.Method != http.MethodGet {
			return false
		}
		_, _ = w.Write([]byte("something else"))
		return true
	})
	_, err = e.EnsureImage(t.Context(), ref, nil, false)
	t.Log(err)
	if !errors.Is(err, node.ErrImageMismatch) {
		t.Errorf("another layer under this digest: error is %v, want %v", err, node.ErrImageMismatch)
	}
}

func TestPullUsesTheLogin(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	ref, digest := h.push("team/private:1", unique(t, h))
	h.answer(func(w http.ResponseWriter, r *http.Request) bool {
		if user, password, ok := r.BasicAuth(); ok && user == "robot" && password == "s3cret" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	e := open(t, "", docker.Options{})
	for _, auth := range []*node.RegistryAuth{nil, {Username: "robot", Password: "wrong"}} {
		_, err := e.EnsureImage(t.Context(), ref, auth, false)
		t.Log(err)
		if !errors.Is(err, node.ErrImageNotFound) {
			t.Errorf("login %v: error is %v, want %v", auth, err, node.ErrImageNotFound)
		}
		if err != nil && strings.Contains(err.Error(), "wrong") {
			t.Errorf("the error shows the password: %v", err)
		}
	}
	got, err := e.EnsureImage(t.Context(), ref, &node.RegistryAuth{Username: "robot", Password: "s3cret"}, false)
	if err != nil || got.Digest != digest || !got.Pulled {
		t.Errorf("with the login: %+v, %v; want %q", got, err, digest)
	}

	// The image is here now. EnsureImage asks nobody, and CheckImage asks the registry.
	if got, err := e.EnsureImage(t.Context(), ref, nil, false); err != nil || got != (node.Image{Digest: digest}) {
		t.Errorf("without a login, from the machine: %+v, %v", got, err)
	}
	pulled := h.blobs.Load()
	for _, auth := range []*node.RegistryAuth{nil, {Username: "robot", Password: "wrong"}} {
		err := e.CheckImage(t.Context(), ref, digest, auth)
		if !errors.Is(err, node.ErrImageNotFound) || strings.Contains(err.Error(), "wrong") {
			t.Errorf("check with login %v: error is %v, want %v", auth, err, node.ErrImageNotFound)
		}
	}
	if err := e.CheckImage(t.Context(), ref, digest, &node.RegistryAuth{Username: "robot", Password: "s3cret"}); err != nil {
		t.Errorf("check with the login: %v", err)
	}
	if again := h.blobs.Load(); again > pulled+1 { // the engine may read the configuration
		t.Errorf("the checks fetched %d blobs", again-pulled)
	}
}

func TestPullsOfOneImageAreOne(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	ref, digest := h.push("team/tool:1", unique(t, h))
	e := open(t, "", docker.Options{})
	asked, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var manifests int
	var mu sync.Mutex
	h.answer(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/manifests/") {
			mu.Lock()
			if r.Method == http.MethodGet {
				manifests++
			}
			mu.Unlock()
			once.Do(func() { close(asked) })
			<-release
		}
		return false
	})

	// The first caller gives up; the pull goes on for the second.
	first, leave := context.WithCancel(t.Context())
	type result struct {
		image node.Image
		err   error
	}
	results := make(chan result, 2)
	ensure := func(ctx context.Context) {
		image, err := e.EnsureImage(ctx, ref, nil, false)
		results <- result{image, err}
	}
	go ensure(first)
	<-asked
	go ensure(t.Context())
	for e.PullWaiters() < 2 { // until the second has joined
		select {
		case r := <-results:
			t.Fatalf("a pull ended early: %+v", r)
		default:
			runtime.Gosched()
		}
	}
	leave()
	if r := <-results; !errors.Is(r.err, context.Canceled) {
		t.Errorf("the caller who left got %+v", r)
	}
	close(release)
	if r := <-results; r.err != nil || r.image.Digest != digest {
		t.Errorf("the caller who stayed got %+v, want %q", r, digest)
	}
	if manifests != 1 {
		t.Errorf("the registry was asked %d times, want once", manifests)
	}
}

func TestCloseEndsAPull(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	ref, _ := h.push("team/tool:1", unique(t, h))
	e := open(t, "", docker.Options{})
	asked, release := make(chan struct{}), make(chan struct{})
	defer close(release) // the engine itself takes its time to hang up
	var once sync.Once
	h.answer(func(w http.ResponseWriter, r *http.Request) bool {
		once.Do(func() { close(asked) })
		<-release
		return false
	})
	done := make(chan error, 1)
	go func() {
		_, err := e.EnsureImage(t.Context(), ref, nil, false)
		done <- err
	}()
	<-asked
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, node.ErrImageUnavailable) {
		t.Errorf("error is %v, want %v", err, node.ErrImageUnavailable)
	}
	if _, err := e.EnsureImage(t.Context(), ref, nil, false); err == nil {
		t.Error("a closed engine pulls")
	}
}
