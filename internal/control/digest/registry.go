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
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"berth/internal/lib/publicnet"
)

const (
	maxAnswer  = 4 << 20 // bytes of an answer of a registry; manifests are smaller
	maxHeaders = 64 << 10
)

// Registries asks registries for digests. It may be used concurrently.
type Registries struct {
	Network publicnet.Policy // where registries may be besides public addresses; without TLS only there
	Certs   string           // folder with a folder for each registry, HOST[:PORT], with certificates *.crt; "": none
	Timeout time.Duration    // of a question, with the calls for a token
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

// hostOf returns the registry of an image, as an engine reads the reference.
func hostOf(image string) (string, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return "", &answerError{text: "the image is not a reference to a registry", final: true}
	}
	return ref.Context().RegistryStr(), nil
}

// Digest returns the digest that the registry gives for an image: of the index, if the image has several platforms, as
// engines record it. login is nil for an anonymous question. The error is an *answerError.
func (r *Registries) Digest(ctx context.Context, image string, login *Login) (string, error) {
	// A registry without TLS is in a network of the operator; RoundTrip refuses others.
	ref, err := name.ParseReference(image, name.Insecure)
	if err != nil {
		return "", &answerError{text: "the image is not a reference to a registry", final: true}
	}
	roots, err := r.roots(ref.Context().RegistryStr())
	if err != nil {
		return "", &answerError{text: "the certificates for the registry cannot be read", cause: err}
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	w := newWay(r.Network, roots, r.Timeout)
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

// way carries the calls of one question. Calls without TLS reach the networks of the operator only, since they may
// carry a login.
type way struct {
	secure, plain *http.Transport
	status        atomic.Int32 // of the latest answer; 0: none so far
	after         atomic.Int64 // nanoseconds of its Retry-After

	// refused is set once the policy has refused an address for a call with TLS. A call without TLS is often refused
	// only because the call with TLS has failed before.
	refused atomic.Bool
}

func newWay(network publicnet.Policy, roots *x509.CertPool, timeout time.Duration) *way {
	w := &way{secure: network.Transport(timeout), plain: network.Only().Transport(timeout)}
	for _, t := range []*http.Transport{w.secure, w.plain} {
		t.MaxResponseHeaderBytes, t.DisableCompression = maxHeaders, true
	}
	w.secure.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return w
}

func (w *way) close() {
	w.secure.CloseIdleConnections()
	w.plain.CloseIdleConnections()
}

// RoundTrip makes one call.
func (w *way) RoundTrip(r *http.Request) (*http.Response, error) {
	by := w.plain
	if r.URL.Scheme == "https" {
		by = w.secure
	}
	answer, err := by.RoundTrip(r)
	if err != nil {
		if _, refused := errors.AsType[*publicnet.RefusedError](err); refused && by == w.secure {
			w.refused.Store(true)
		}
		return nil, err
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

// judge returns the answerError of a failed question.
func (w *way) judge(err error) error {
	e := &answerError{cause: err, after: time.Duration(w.after.Load())}
	if w.refused.Load() {
		e.text, e.final = "the address of the registry is none that the control plane may call", true
		return e
	}
	answer, ok := errors.AsType[*transport.Error](err)
	switch {
	case !ok:
		e.text, e.ill = "the registry could not be reached, or gave no answer that a registry gives", true
	case answer.StatusCode == http.StatusTooManyRequests:
		e.text, e.ill = "the registry limits the rate of calls (429)", true
	case answer.StatusCode >= 500:
		e.text, e.ill = fmt.Sprintf("the registry has failed (%d)", answer.StatusCode), true
	case answer.StatusCode == http.StatusNotFound:
		e.text, e.final = "the registry has no such image", true
	case answer.StatusCode == http.StatusUnauthorized, answer.StatusCode == http.StatusForbidden:
		e.text, e.final = fmt.Sprintf("the registry refuses the image (%d)", answer.StatusCode), true
	default:
		e.text, e.final = fmt.Sprintf("the registry answered %d", answer.StatusCode), true
	}
	return e
}
