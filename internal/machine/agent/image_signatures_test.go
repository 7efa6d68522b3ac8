package agent_test

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/failure"
	"berth/spec"
)

// signedSite is a registry on loopback with one image, and an engine that resolves the image's name there.
type signedSite struct {
	*site
	m      *machine
	ran    *created
	ref    string // REPOSITORY:TAG
	digest string
	down   atomic.Bool // the registry
	asked  atomic.Int64
}

// resolving is an engine that resolves names at a registry.
type resolving struct {
	*fakeruntime.Fake
	s *signedSite
}

func (e resolving) EnsureImage(ctx context.Context, ref string, auth *node.RegistryAuth, fresh bool) (node.Image, error) {
	found, err := e.Fake.EnsureImage(ctx, ref, auth, fresh)
	if err == nil && !strings.Contains(ref, "@") && strings.HasPrefix(ref, "127.") {
		tag, err := name.NewTag(ref)
		if err != nil {
			return found, err
		}
		d, err := remote.Head(tag)
		if err != nil {
			return found, fmt.Errorf("%w: %w", node.ErrImageUnavailable, err)
		}
		found.Digest = d.Digest.String()
	}
	return found, err
}

func newSignedSite(t *testing.T) *signedSite {
	t.Helper()
	s := &signedSite{site: newSite(t), ran: &created{}}
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		if s.down.Load() && strings.Contains(r.URL.Path, ".sig") {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		store.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.ref = strings.TrimPrefix(server.URL, "http://") + "/team/tool:1"
	im, err := random.Image(100, 1)
	if err != nil {
		t.Fatal(err)
	}
	s.digest = s.push(s.ref, im)
	engine := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})
	t.Cleanup(engine.Shutdown)
	s.ran.of(engine)
	s.m = s.machineOn("m1", resolving{engine, s})
	s.m.runtime = engine
	s.m.cfg.Timing.PullPause = time.Millisecond
	s.m.restart()
	return s
}

func (s *signedSite) push(ref string, im v1.Image) string {
	s.t.Helper()
	tag, err := name.NewTag(ref)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := remote.Write(tag, im); err != nil {
		s.t.Fatal(err)
	}
	d, err := im.Digest()
	if err != nil {
		s.t.Fatal(err)
	}
	return d.String()
}

// key returns a private key, and its public key in PEM.
func (s *signedSite) key() (ed25519.PrivateKey, string) {
	s.t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		s.t.Fatal(err)
	}
	return private, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// sign stores cosign's signature of a digest.
func (s *signedSite) sign(k ed25519.PrivateKey, digest string) {
	s.t.Helper()
	repository := strings.TrimSuffix(s.ref, ":1")
	payload := fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},`+
		`"type":"cosign container image signature"},"optional":null}`, repository, digest)
	im, err := mutate.Append(empty.Image, mutate.Addendum{
		Layer: static.NewLayer(payload, "application/vnd.dev.cosign.simplesigning.v1+json"),
		Annotations: map[string]string{
			"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(ed25519.Sign(k, payload)),
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.push(repository+":"+strings.ReplaceAll(digest, ":", "-")+".sig", im)
}

// demand makes the tenant demand a signature by the key.
func (s *signedSite) demand(key string) {
	s.t.Helper()
	q := spec.Quota{Tenant: "default", ImageSignatures: []spec.SignatureRule{
		{Repositories: []string{strings.TrimSuffix(s.ref, "/team/tool:1")}, Keys: []string{key}},
	}}
	if err := s.db.Tenants.SetQuota(s.t.Context(), q); err != nil {
		s.t.Fatal(err)
	}
	s.serves() // the server remembers quotas for a second
}

func (s *signedSite) tool(j *spec.Job) { j.Image = s.ref }

func (s *signedSite) wantUnsigned(what, says string) {
	s.t.Helper()
	id := s.submit(s.tool, "exit", "0")
	_, w := s.m.run(id)
	if x := w.exit(); x.Cause != failure.CauseImageUnsigned || x.Started() {
		s.t.Errorf("%s: exit is %+v", what, x)
	}
	j := s.settle(id)
	if j.Status != berth.Failed || j.Reason == nil || j.Reason.Code != berth.ReasonImageUnsigned ||
		!strings.Contains(j.Reason.Message, says) {
		s.t.Errorf("%s: job is %s, %+v, want %q", what, j.Status, j.Reason, says)
	}
}

func TestAnUnsignedImageDoesNotStart(t *testing.T) {
	t.Parallel()
	s := newSignedSite(t)
	private, public := s.key()
	s.demand(public)
	s.wantUnsigned("without a signature", "it has no signature; tenant default demands a signature by the key sha256:")
	s.sign(private, s.digest)
	s.m.ran(s.submit(s.tool, "exit", "0"))
	pinned := s.ref + "@" + s.digest
	if got := s.ran.sorted(); !slices.Equal(got, []string{pinned}) {
		t.Errorf("ran %q, want %q", got, pinned)
	}

	// Images of other registries need no signature.
	s.m.ran(s.submit(nil, "exit", "0"))

	// The tag moves to an image without a signature.
	im, err := random.Image(100, 1)
	if err != nil {
		t.Fatal(err)
	}
	moved := s.push(s.ref, im)
	s.wantUnsigned("a tag that moved", moved)
	if got := s.ran.sorted(); len(got) != 2 {
		t.Errorf("ran %q", got)
	}
}

// A key that is revoked counts for the next start. A container that runs goes on.
func TestARevokedKeyCountsForTheNextStart(t *testing.T) {
	t.Parallel()
	s := newSignedSite(t)
	private, public := s.key()
	s.demand(public)
	s.sign(private, s.digest)
	id := s.submit(s.tool, "trap-term", "0")
	req, _ := s.m.runOn(1, id)
	s.m.running(req)
	_, another := s.key()
	s.demand(another)
	s.wantUnsigned("by a key that was revoked", "by no such key")
	s.m.restart()
	if got := s.job(id); got.Status != berth.Running {
		t.Errorf("the job that ran is %s", got.Status)
	}
	s.cancel(id)
}

// A verified signature spares the registry for a time. Without an answer nothing starts.
func TestASilentRegistryOfSignaturesIsRetriedElsewhere(t *testing.T) {
	t.Parallel()
	s := newSignedSite(t)
	private, public := s.key()
	s.demand(public)
	s.sign(private, s.digest)
	s.m.ran(s.submit(s.tool, "exit", "0"))
	s.down.Store(true)
	s.m.ran(s.submit(s.tool, "exit", "0"))
	s.m.restart()
	id := s.submit(s.tool, "exit", "0")
	_, w := s.m.run(id)
	if x := w.exit(); x.Cause != failure.CauseImageUnavailable || x.Started() {
		t.Errorf("exit is %+v", x)
	}
}
