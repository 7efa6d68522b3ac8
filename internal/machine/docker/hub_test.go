package docker_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// hub is a registry on loopback, which engines trust without TLS. It counts the
// fetches, and can be set to give other answers.
type hub struct {
	t       *testing.T
	address string // host:port
	blobs   atomic.Int64
	// meddle, if set, may answer a request itself and reports whether it did.
	meddle atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{t: t}
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f := h.meddle.Load(); f != nil && (*f)(w, r) {
			return
		}
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			h.blobs.Add(1)
		}
		store.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	h.address = strings.TrimPrefix(server.URL, "http://")
	return h
}

// push stores an image and returns its reference and digest.
func (h *hub) push(repository string, img v1.Image) (ref, digest string) {
	h.t.Helper()
	ref = h.address + "/" + repository
	tag, err := name.NewTag(ref, name.Insecure)
	if err != nil {
		h.t.Fatal(err)
	}
	if err := remote.Write(tag, img); err != nil {
		h.t.Fatal(err)
	}
	d, err := img.Digest()
	if err != nil {
		h.t.Fatal(err)
	}
	return ref, d.String()
}

func (h *hub) answer(f func(http.ResponseWriter, *http.Request) bool) {
	if f == nil {
		h.meddle.Store(nil)
		return
	}
	h.meddle.Store(&f)
}

// closedPort returns an address without a listener. It stays without one during the
// test, because the test has bound it.
func closedPort(t *testing.T) string {
	t.Helper()
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(s) })
	if err := syscall.Bind(s, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(s)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
}
