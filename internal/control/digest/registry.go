package digest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"berth/internal/lib/publicnet"
	"berth/spec"
)

const (
	maxAnswer  = 4 << 20 // bytes of an answer of a registry; manifests are smaller
	maxHeaders = 64 << 10
)

// Registries asks registries for digests. It may be used concurrently.
type Registries struct {
	Network   publicnet.Policy // where registries may be besides public addresses
	Plaintext []string         // registries, HOST[:PORT], that may be called without TLS, in Network alone
	Certs     string           // folder with a folder for each registry, HOST[:PORT], with certificates *.crt; "": none
	Timeout   time.Duration    // of a question, with the calls for a token
}

// Login is a login for a registry.
type Login struct{ User, Password string }

// answerError is a question without a digest. Its text is for the users of the tenant, and reveals nothing about the
// network of this process.
type answerError struct {
	text  string
	final bool          // a repeat would not change it
	ill   bool          // the registry did not answer, or cannot serve at present: others would fail, too
	after time.Duration // the registry asks for this pause; 0: for none
	cause error         // for operators; nil: none

	limited bool // the registry limits the calls of this login: others would not fail
}

func (e *answerError) Error() string { return e.text }

func (e *answerError) Unwrap() error { return e.cause }

// detail returns the error for operators.
func (e *answerError) detail() error {
	if e.cause != nil {
		return e.cause
	}
	return e
}

// hostOf returns the registry of an image, as an engine reads the reference. The rules of images and the engines read
// some references in another way than the library that calls registries: for the library, localhost/tool is a
// repository of Docker Hub. Such a reference is refused, since the call would go to a registry that no rule has judged.
func hostOf(image string) (string, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return "", &answerError{text: "the image is not a reference to a registry", final: true}
	}
	host := ref.Context().RegistryStr()
	judged, ok := spec.ImageName(image)
	called := host + "/" + ref.Context().RepositoryStr()
	if host == name.DefaultRegistry {
		called = "docker.io/" + ref.Context().RepositoryStr()
	}
	if !ok || judged != called {
		return "", &answerError{text: "the control plane calls no registry for images of this name", final: true}
	}
	return host, nil
}

// CheckHost returns an error unless a text is the name of a registry, HOST[:PORT], as in names of images.
func CheckHost(text string) error {
	if found, err := name.NewRegistry(text, name.StrictValidation); err != nil || found.RegistryStr() != text {
		return fmt.Errorf("%.100q is no registry: allowed is HOST[:PORT], as in names of images", text)
	}
	return nil
}

// Digest returns the digest that the registry gives for an image: of the index, if the image has several platforms, as
// engines record it. login is nil for an anonymous question. The error is an *answerError.
func (r *Registries) Digest(ctx context.Context, image string, login *Login) (string, error) {
	host, err := hostOf(image)
	if err != nil {
		return "", err
	}
	var how []name.Option
	if slices.Contains(r.Plaintext, host) {
		how = append(how, name.Insecure)
	}
	ref, err := name.ParseReference(image, how...)
	if err != nil {
		return "", &answerError{text: "the image is not a reference to a registry", final: true}
	}
	roots, err := r.roots(host)
	if err != nil {
		return "", &answerError{text: "the certificates for the registry cannot be read", cause: err}
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	w := r.way(host, roots)
	defer w.close()
	var auth authn.Authenticator = authn.Anonymous
	if login != nil {
		auth = &authn.Basic{Username: login.User, Password: login.Password}
	}
	options := []remote.Option{
		remote.WithContext(ctx), remote.WithTransport(w), remote.WithAuth(auth),
		// The caller repeats, with pauses of its own.
		remote.WithRetryBackoff(remote.Backoff{Duration: time.Millisecond, Steps: 1}),
		remote.WithUserAgent("Berth"),
	}
	head, err := remote.Head(ref, options...)
	if err == nil {
		return head.Digest.String(), nil
	}
	// Some registries answer HEAD without the digest, or not at all. The manifest has one in any case.
	if w.answered() && !refusal(err) {
		full, err := remote.Get(ref, options...)
		if err == nil {
			return full.Digest.String(), nil
		}
		return "", w.judge(err)
	}
	return "", w.judge(err)
}

// refusal reports whether a registry has answered with a status that a GET would get, too.
func refusal(err error) bool {
	answer, ok := errors.AsType[*transport.Error](err)
	return ok && answer.StatusCode != http.StatusMethodNotAllowed && answer.StatusCode != http.StatusNotImplemented
}

// roots returns the certificates of the system and of the operator for a host; nil: of the system alone.
func (r *Registries) roots(host string) (*x509.CertPool, error) {
	if r.Certs == "" {
		return nil, nil
	}
	folder := filepath.Join(r.Certs, filepath.Base(host))
	files, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("certificates of registry %s: %w", host, err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	for _, file := range files {
		if filepath.Ext(file.Name()) != ".crt" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, file.Name()))
		if err != nil {
			return nil, fmt.Errorf("certificates of registry %s: %w", host, err)
		}
		if !pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("certificates of registry %s: %s has none", host, file.Name())
		}
	}
	return pool, nil
}

// way carries the calls of one question: to the registry, and where its answers lead, which is a token service or a
// redirect. These others are called at public addresses alone, unless the registry itself has answered from a network
// of the operator: a registry on the Internet must not choose calls into such a network.
//
// Calls without TLS go to listed registries only, and only in the networks of the operator. They may carry a login, and
// whoever answers them chooses the digest.
type way struct {
	host      string   // of the registry
	plaintext []string // hosts that may be called without TLS

	registry, public, plain *http.Transport

	inside atomic.Bool  // the registry has answered from an address that is not public
	status atomic.Int32 // of the latest answer; 0: none so far
	after  atomic.Int64 // nanoseconds of its Retry-After

	// refused is set once an address was refused, or a call without TLS to another host. A call without TLS to the
	// registry is only the second try of one with TLS, whose error counts.
	refused atomic.Bool
}

// way returns the way to a registry.
func (r *Registries) way(host string, roots *x509.CertPool) *way {
	w := &way{host: host, plaintext: r.Plaintext, registry: r.Network.Transport(r.Timeout),
		public: publicnet.Policy{}.Transport(r.Timeout), plain: r.Network.Only().Transport(r.Timeout)}
	for _, t := range []*http.Transport{w.registry, w.public, w.plain} {
		t.MaxResponseHeaderBytes, t.DisableCompression = maxHeaders, true
		t.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return w
}

func (w *way) close() {
	for _, t := range []*http.Transport{w.registry, w.public, w.plain} {
		t.CloseIdleConnections()
	}
}

// choose returns the transport for a call.
func (w *way) choose(to *url.URL) (*http.Transport, error) {
	own := to.Host == w.host
	switch {
	case to.Scheme == "https" && (own || w.inside.Load()):
		return w.registry, nil
	case to.Scheme == "https":
		return w.public, nil
	case slices.Contains(w.plaintext, to.Host) && (own || w.inside.Load()):
		return w.plain, nil
	case !own:
		w.refused.Store(true)
	}
	return nil, fmt.Errorf("call to %s refused: the operator lists no such registry without TLS", to.Host)
}

// RoundTrip makes one call.
func (w *way) RoundTrip(r *http.Request) (*http.Response, error) {
	by, err := w.choose(r.URL)
	if err != nil {
		return nil, err
	}
	var inside bool
	trace := &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
		at, err := netip.ParseAddrPort(c.Conn.RemoteAddr().String())
		inside = err == nil && publicnet.Policy{}.Check(at.Addr()) != nil
	}}
	answer, err := by.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
	if err != nil {
		if _, refused := errors.AsType[*publicnet.RefusedError](err); refused && by != w.plain {
			w.refused.Store(true)
		}
		return nil, err
	}
	if inside && r.URL.Host == w.host {
		w.inside.Store(true)
	}
	w.status.Store(int32(answer.StatusCode))
	w.after.Store(int64(pauseOf(answer.Header.Get("Retry-After"))))
	answer.Body = struct {
		io.Reader
		io.Closer
	}{&bounded{answer.Body, maxAnswer}, answer.Body}
	return answer, nil
}

// pauseOf reads a Retry-After, of seconds or a time. It returns at most longestPause, and 0 for no pause.
func pauseOf(text string) time.Duration {
	var pause time.Duration
	if seconds, err := strconv.Atoi(strings.TrimSpace(text)); err == nil {
		pause = time.Duration(min(seconds, int(longestPause/time.Second))) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		pause = time.Until(at)
	}
	return min(max(pause, 0), longestPause)
}

// bounded returns an error after n bytes. A manifest that was cut off would have another digest.
type bounded struct {
	io.Reader
	n int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.n <= 0 {
		return 0, errors.New("the answer of the registry is too long")
	}
	n, err := b.Reader.Read(p[:min(int64(len(p)), b.n)])
	b.n -= int64(n)
	return n, err
}

// answered reports whether the latest call got an answer of the registry that is no failure of its own.
func (w *way) answered() bool {
	s := w.status.Load()
	return s != 0 && s < 500 && s != http.StatusTooManyRequests
}

// unreached is one text for a refused address, a missing name and a closed port: users must not learn from it which
// names exist in the networks of the control plane.
const unreached = "the registry could not be reached, is at an address that the control plane may not call, or gave " +
	"no answer that a registry gives"

// judge returns the answerError of a failed question.
func (w *way) judge(err error) error {
	e := &answerError{cause: err, after: time.Duration(w.after.Load())}
	if w.refused.Load() {
		e.text, e.final = unreached, true
		return e
	}
	answer, ok := errors.AsType[*transport.Error](err)
	switch {
	case !ok:
		e.text, e.ill = unreached, true
	case answer.StatusCode == http.StatusTooManyRequests:
		e.text, e.limited = "the registry limits the rate of calls (429)", true
	case answer.StatusCode >= 500:
		e.text, e.ill = "the registry has failed", true
	case answer.StatusCode == http.StatusNotFound:
		e.text, e.final = "the registry has no such image", true
	case answer.StatusCode == http.StatusUnauthorized, answer.StatusCode == http.StatusForbidden:
		e.text, e.final = fmt.Sprintf("the registry refuses the image (%d)", answer.StatusCode), true
	default:
		e.text, e.final = "the registry gave no answer that a registry gives", true
	}
	return e
}
