package signature_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"berth/activities/node"
	"berth/internal/machine/signature"
	"berth/wire"
)

// hub is a registry on loopback.
type hub struct {
	t       *testing.T
	address string
	answer  atomic.Pointer[http.HandlerFunc] // instead of the registry; nil: the registry
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{t: t}
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f := h.answer.Load(); f != nil {
			(*f)(w, r)
			return
		}
		store.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	h.address = strings.TrimPrefix(server.URL, "http://")
	return h
}

func (h *hub) tag(ref string) name.Tag {
	h.t.Helper()
	tag, err := name.NewTag(h.address + "/" + ref)
	if err != nil {
		h.t.Fatal(err)
	}
	return tag
}

// push stores an image under REPOSITORY:TAG and returns its digest.
func (h *hub) push(ref string, image v1.Image) string {
	h.t.Helper()
	if err := remote.Write(h.tag(ref), image); err != nil {
		h.t.Fatal(err)
	}
	d, err := image.Digest()
	if err != nil {
		h.t.Fatal(err)
	}
	return d.String()
}

func image(t *testing.T) v1.Image {
	t.Helper()
	i, err := random.Image(100, 1)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// key is a key pair.
type key struct {
	private crypto.Signer
	pem     string
}

func newKey(t *testing.T, kind string) key {
	t.Helper()
	var private crypto.Signer
	var err error
	switch kind {
	case "ecdsa":
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ed25519":
		_, private, err = ed25519.GenerateKey(rand.Reader)
	case "rsa":
		private, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	return key{private, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))}
}

// sign signs as cosign does: Ed25519 signs the text itself, the others its SHA-256.
func (k key) sign(t *testing.T, text []byte) []byte {
	t.Helper()
	var raw []byte
	var err error
	if _, ok := k.private.(ed25519.PrivateKey); ok {
		raw, err = k.private.Sign(rand.Reader, text, crypto.Hash(0))
	} else {
		sum := sha256.Sum256(text)
		raw, err = k.private.Sign(rand.Reader, sum[:], crypto.SHA256)
	}
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// payload is the text that cosign signs for an image.
func payload(reference, digest string) []byte {
	return fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},`+
		`"type":"cosign container image signature"},"optional":null}`, reference, digest)
}

// signed is a layer of a signature image.
type signed struct{ payload, signature []byte }

// attach stores the signature image of a digest.
func (h *hub) attach(repository, digest string, list ...signed) {
	h.t.Helper()
	im := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	for _, s := range list {
		var err error
		im, err = mutate.Append(im, mutate.Addendum{
			Layer:       static.NewLayer(s.payload, "application/vnd.dev.cosign.simplesigning.v1+json"),
			Annotations: map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(s.signature)},
		})
		if err != nil {
			h.t.Fatal(err)
		}
	}
	h.push(repository+":"+strings.ReplaceAll(digest, ":", "-")+".sig", im)
}

// bundle stores a Sigstore bundle with a statement, which refers to the image with the digest.
func (h *hub) bundle(repository string, to v1.Image, k key, statement string) {
	h.t.Helper()
	const kind = "application/vnd.in-toto+json"
	text, err := json.Marshal(map[string]any{
		"mediaType":            "application/vnd.dev.sigstore.bundle.v0.3+json",
		"verificationMaterial": map[string]any{"publicKey": map[string]any{"hint": "x"}},
		"dsseEnvelope": map[string]any{
			"payload": []byte(statement), "payloadType": kind, "signatures": []any{map[string]any{
				"sig": k.sign(h.t, fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(kind), kind, len(statement), statement)),
			}},
		},
	})
	if err != nil {
		h.t.Fatal(err)
	}
	subject, err := partial(to)
	if err != nil {
		h.t.Fatal(err)
	}
	const bundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"
	im := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), bundleType)
	im, err = mutate.Append(im, mutate.Addendum{Layer: static.NewLayer(text, bundleType)})
	if err != nil {
		h.t.Fatal(err)
	}
	im = mutate.Subject(im, subject).(v1.Image)
	d, err := im.Digest()
	if err != nil {
		h.t.Fatal(err)
	}
	at, err := name.NewDigest(h.address + "/" + repository + "@" + d.String())
	if err != nil {
		h.t.Fatal(err)
	}
	if err := remote.Write(at, im); err != nil {
		h.t.Fatal(err)
	}
}

// partial describes an image.
func partial(i v1.Image) (v1.Descriptor, error) {
	d, err := i.Digest()
	if err != nil {
		return v1.Descriptor{}, err
	}
	size, err := i.Size()
	if err != nil {
		return v1.Descriptor{}, err
	}
	kind, err := i.MediaType()
	return v1.Descriptor{Digest: d, Size: size, MediaType: kind}, err
}

func by(keys ...key) []wire.SignatureDemand {
	d := wire.SignatureDemand{Whose: "the cluster"}
	for _, k := range keys {
		d.Keys = append(d.Keys, k.pem)
	}
	return []wire.SignatureDemand{d}
}

// wantUnsigned verifies an image that is not signed as demanded, and wants these texts in the error.
func (h *hub) wantUnsigned(what, repository, digest string, demands []wire.SignatureDemand, texts ...string) {
	h.t.Helper()
	err := (&signature.Verifier{}).Verify(h.t.Context(), h.address+"/"+repository+":1", digest, nil, demands)
	if !errors.Is(err, signature.ErrUnsigned) {
		h.t.Errorf("%s: error is %v, want %v", what, err, signature.ErrUnsigned)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			h.t.Errorf("%s: error lacks %q: %v", what, text, err)
		}
	}
}

func (h *hub) wantSigned(what, repository, digest string, demands []wire.SignatureDemand) {
	h.t.Helper()
	if err := (&signature.Verifier{}).Verify(h.t.Context(), h.address+"/"+repository+":1", digest, nil, demands); err != nil {
		h.t.Errorf("%s: %v", what, err)
	}
}

func TestAnImageIsSignedByEachKindOfKey(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	for _, kind := range []string{"ecdsa", "ed25519", "rsa"} {
		k, other := newKey(t, kind), newKey(t, kind)
		repository := "team/" + kind
		digest := h.push(repository+":1", image(t))
		text := payload(h.address+"/"+repository, digest)
		h.wantUnsigned(kind+" without a signature", repository, digest, by(k), "it has no signature", "the cluster demands",
			"the key sha256:")
		h.attach(repository, digest, signed{text, k.sign(t, text)})
		h.wantSigned(kind, repository, digest, by(k))
		h.wantSigned(kind+" by one of two keys", repository, digest, by(other, k))
		h.wantUnsigned(kind+" by another key", repository, digest, by(other), "it has 1 signature, by no such key")
		h.wantUnsigned(kind+" by one of two demanded", repository, digest, append(by(k), by(other)...))

		second := signed{text, other.sign(t, text)}
		h.attach(repository, digest, signed{text, k.sign(t, text)}, second)
		h.wantSigned(kind+" by both", repository, digest, append(by(k), by(other)...))
	}
}

func TestSignaturesOfSomethingElseCountForNothing(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	k := newKey(t, "ecdsa")
	digest := h.push("team/tool:1", image(t))
	other := h.push("team/tool:2", image(t))
	here := h.address + "/team/tool"
	good := payload(here, digest)
	long := append(bytes.Clone(good), bytes.Repeat([]byte(" "), 256*1024)...) // it would count if it were read
	for _, c := range []struct {
		name   string
		signed signed
		want   string
	}{
		{"the signature of another digest", signed{payload(here, other), k.sign(t, payload(here, other))}, "is of digest \\\"" + other},
		{"the signature of another repository", signed{payload(h.address+"/evil/tool", digest), k.sign(t, payload(h.address+"/evil/tool", digest))}, "is for repository"},
		{"a tampered payload", signed{bytes.Replace(good, []byte("null"), []byte("{} "), 1), k.sign(t, good)}, "by no such key"},
		{"a tampered signature", signed{good, append([]byte{1}, k.sign(t, good)...)}, "by no such key"},
		{"another type", signed{bytes.Replace(good, []byte("cosign container"), []byte("atomic container"), 1),
			k.sign(t, bytes.Replace(good, []byte("cosign container"), []byte("atomic container"), 1))}, "is of type"},
		{"no JSON", signed{[]byte("signed"), k.sign(t, []byte("signed"))}, "no signature of an image"},
		{"an empty signature", signed{good, nil}, "it has no signature"},
		{"a long text", signed{long, k.sign(t, long)}, "it has no signature"},
	} {
		h.attach("team/tool", digest, c.signed)
		h.wantUnsigned(c.name, "team/tool", digest, by(k), strings.ReplaceAll(c.want, `\"`, `"`))
	}

	// A good signature counts beside a bad one, in each form of the repository's name.
	for _, reference := range []string{here, here + ":1", here + "@" + digest} {
		text := payload(reference, digest)
		h.attach("team/tool", digest, signed{[]byte("signed"), k.sign(t, []byte("signed"))}, signed{text, k.sign(t, text)})
		h.wantSigned(reference, "team/tool", digest, by(k))
	}
}

// An index is signed as a whole: its digest is the one that a tag means. An image of one platform
// is signed only by a signature of its own.
func TestASignedIndexDoesNotSignItsPlatforms(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	k := newKey(t, "ecdsa")
	index, err := random.Index(100, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(h.tag("team/multi:1"), index); err != nil {
		t.Fatal(err)
	}
	whole, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	list, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	text := payload(h.address+"/team/multi", whole.String())
	h.attach("team/multi", whole.String(), signed{text, k.sign(t, text)})
	h.wantSigned("the index", "team/multi", whole.String(), by(k))
	h.wantUnsigned("a platform", "team/multi", list.Manifests[0].Digest.String(), by(k), "it has no signature")
}

func TestABundleIsASignature(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	k, other := newKey(t, "ecdsa"), newKey(t, "ecdsa")
	const statement = `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],"predicateType":%q}`
	const sign = "https://sigstore.dev/cosign/sign/v1"
	for _, c := range []struct {
		name      string
		by        key
		predicate string
		same      bool // the statement is about the image
		want      string
	}{
		{"signed", k, sign, true, ""},
		{"another key", other, sign, true, "by no such key"},
		{"another image", k, sign, false, "is of digest"},
		{"a list of packages", k, "https://spdx.dev/Document", true, "is a statement of type"},
	} {
		repository := "team/" + strings.ReplaceAll(c.name, " ", "-")
		im := image(t)
		digest := h.push(repository+":1", im)
		hex := strings.TrimPrefix(digest, "sha256:")
		if !c.same {
			hex = strings.Repeat("0", 64)
		}
		h.bundle(repository, im, c.by, fmt.Sprintf(statement, hex, c.predicate))
		if c.want == "" {
			h.wantSigned(c.name, repository, digest, by(k))
		} else {
			h.wantUnsigned(c.name, repository, digest, by(k), c.want)
		}
	}
}

func TestARegistryThatDoesNotAnswerIsNoMissingSignature(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	k := newKey(t, "ecdsa")
	digest := h.push("team/tool:1", image(t))
	for _, c := range []struct {
		status int
		want   error
	}{
		{http.StatusInternalServerError, node.ErrImageUnavailable},
		{http.StatusTooManyRequests, node.ErrImageUnavailable},
		{http.StatusUnauthorized, node.ErrImageNotFound},
		{http.StatusForbidden, node.ErrImageNotFound},
	} {
		h.answer.Store(new(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "secret of another host", c.status)
		})))
		err := (&signature.Verifier{}).Verify(t.Context(), h.address+"/team/tool:1", digest, nil, by(k))
		if !errors.Is(err, c.want) || errors.Is(err, signature.ErrUnsigned) || strings.Contains(err.Error(), "secret of") {
			t.Errorf("status %d: error is %v, want %v", c.status, err, c.want)
		}
	}
	for _, ref := range []string{"team/tool", "UPPER case"} {
		if err := (&signature.Verifier{}).Verify(t.Context(), ref, "", nil, by(k)); !errors.Is(err, signature.ErrUnsigned) {
			t.Errorf("an image without a digest: %v", err)
		}
	}
	if err := (&signature.Verifier{}).Verify(t.Context(), "team/tool", "", nil, nil); err != nil {
		t.Errorf("nothing is demanded: %v", err)
	}
}

// A hostile registry may redirect a machine to the metadata service of its cloud.
func TestRedirectsReachRegistriesOnly(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	k := newKey(t, "ecdsa")
	digest := h.push("team/tool:1", image(t))
	for _, to := range []string{"http://169.254.169.254/latest/", "https://169.254.169.254/latest/", "https://[fd00:ec2::254]/", "http://203.0.113.1/"} {
		h.answer.Store(new(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v2/" {
				return
			}
			http.Redirect(w, r, to, http.StatusTemporaryRedirect)
		})))
		err := (&signature.Verifier{}).Verify(t.Context(), h.address+"/team/tool:1", digest, nil, by(k))
		if !errors.Is(err, node.ErrImageUnavailable) ||
			!strings.Contains(err.Error(), "belongs to no registry") && !strings.Contains(err.Error(), "need TLS") {
			t.Errorf("%s: error is %v", to, err)
		}
	}
}

// A private registry has a certificate of its own, and serves signatures to a login.
func TestSignaturesAreReadWithTheLoginAndTheRegistrysCertificate(t *testing.T) {
	t.Parallel()
	k := newKey(t, "ecdsa")
	store := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); !ok || user != "robot" || password != "s3cret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		store.ServeHTTP(w, r)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "https://")
	certs := t.TempDir()
	if err := os.Mkdir(filepath.Join(certs, host), 0o700); err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(certs, host, "ca.crt"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	digest := "sha256:" + strings.Repeat("1", 64)
	login := &node.RegistryAuth{Username: "robot", Password: "s3cret"}
	v := &signature.Verifier{CertFolder: certs}
	if err := v.Verify(t.Context(), host+"/team/tool:1", digest, nil, by(k)); !errors.Is(err, node.ErrImageNotFound) {
		t.Errorf("without the login: %v", err)
	}
	if err := v.Verify(t.Context(), host+"/team/tool:1", digest, login, by(k)); !errors.Is(err, signature.ErrUnsigned) {
		t.Errorf("with the login: %v", err)
	}
	err := (&signature.Verifier{}).Verify(t.Context(), host+"/team/tool:1", digest, login, by(k))
	if !errors.Is(err, node.ErrImageUnavailable) {
		t.Errorf("without the certificate: %v", err)
	}

	// A file without a certificate is a fault of this machine, not of the image.
	if err := os.WriteFile(filepath.Join(certs, host, "other.crt"), []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	err = v.Verify(t.Context(), host+"/team/tool:1", digest, login, by(k))
	if !errors.Is(err, node.ErrImageUnavailable) || errors.Is(err, signature.ErrUnsigned) {
		t.Errorf("with a damaged certificate: %v", err)
	}
}
