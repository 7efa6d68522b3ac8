package signature

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"berth/activities/node"
	"berth/internal/lib/publicnet"
)

const (
	maxSignatures = 64         // of an image; further ones are ignored
	maxAnswer     = 4 << 20    // bytes of an answer of a registry
	maxBlob       = 256 * 1024 // bytes of a signed text or bundle, which are of some KiB; longer ones do not count
	dialTimeout   = 10 * time.Second
)

// registry is a repository of images, for one login.
type registry struct {
	repository name.Repository
	options    []remote.Option
	transport  *http.Transport
}

// open returns the repository with this full name. It connects to nothing. The error wraps ErrUnsigned
// for a name that no registry can have, or node.ErrImageUnavailable for a fault of this machine.
func (v *Verifier) open(full string, login *node.RegistryAuth) (*registry, error) {
	repository, err := name.NewRepository(full)
	if err != nil {
		return nil, fmt.Errorf("%w: image %s: %w", ErrUnsigned, full, err)
	}
	host := repository.RegistryStr()
	roots, err := v.roots(host)
	if err != nil {
		return nil, fmt.Errorf("read the signatures of image %s: %w: %w", full, node.ErrImageUnavailable, err)
	}
	bare := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		bare = h
	}
	loopback := publicnet.Loopback(strings.Trim(bare, "[]"))
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.DialContext = dialer(loopback).DialContext
	base.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	base.ResponseHeaderTimeout = dialTimeout
	var auth authn.Authenticator = authn.Anonymous
	if login != nil {
		auth = &authn.Basic{Username: login.Username, Password: login.Password}
	}
	return &registry{repository: repository, transport: base, options: []remote.Option{
		remote.WithTransport(&careful{base, loopback}), remote.WithAuth(auth),
		// The caller repeats, with pauses of its own.
		remote.WithRetryBackoff(remote.Backoff{Duration: time.Millisecond, Steps: 1}),
	}}, nil
}

func (r *registry) close() { r.transport.CloseIdleConnections() }

// roots returns the certificates of the system, and the certificates that the operator has stored for the host. It
// returns nil for the certificates of the system alone.
func (v *Verifier) roots(host string) (*x509.CertPool, error) {
	if v.CertFolder == "" {
		return nil, nil
	}
	folder := filepath.Join(v.CertFolder, filepath.Base(host))
	files, err := os.ReadDir(folder) // not Glob: the address of a host in IPv6 has brackets
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("certificates of registry %s: %w", host, err)
	}
	var pool *x509.CertPool
	for _, file := range files {
		if filepath.Ext(file.Name()) != ".crt" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, file.Name()))
		if err != nil {
			return nil, fmt.Errorf("certificates of registry %s: %w", host, err)
		}
		if pool == nil {
			if pool, err = x509.SystemCertPool(); err != nil {
				pool = x509.NewCertPool()
			}
		}
		if !pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("certificates of registry %s: %s has none", host, file.Name())
		}
	}
	return pool, nil
}

// dialer refuses addresses to which only a hostile registry redirects: of the machine itself, unless
// the registry is there, and of the metadata services of clouds.
func dialer(loopback bool) *net.Dialer {
	return &net.Dialer{Timeout: dialTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("dial %.100q: not a resolved address", address)
		}
		a := to.Addr().Unmap()
		if a.IsLoopback() && !loopback || a.IsLinkLocalUnicast() || a.IsUnspecified() || metadata6.Contains(a) {
			return fmt.Errorf("address %s belongs to no registry", a)
		}
		return nil
	}}
}

// metadata6 is the network of the metadata service of EC2 in IPv6.
var metadata6 = netip.MustParsePrefix("fd00:ec2::/32")

// careful sends requests without TLS to a registry on this machine only, since they carry logins, and
// bounds the answers.
type careful struct {
	base     http.RoundTripper
	loopback bool
}

func (c *careful) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !(c.loopback && publicnet.Loopback(strings.Trim(r.URL.Hostname(), "[]"))) {
		return nil, fmt.Errorf("%s://%s is not asked: registries of signatures need TLS", r.URL.Scheme, r.URL.Host)
	}
	answer, err := c.base.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	answer.Body = struct {
		io.Reader
		io.Closer
	}{&bounded{answer.Body, maxAnswer}, answer.Body}
	return answer, nil
}

// bounded returns an error after n bytes.
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

// simple reads the signature image, which has a layer for each signature.
func (r *registry) simple(digest string, options []remote.Option) ([]candidate, error) {
	tag := r.repository.Tag(strings.ReplaceAll(digest, ":", "-") + ".sig")
	image, err := remote.Image(tag, options...)
	if isAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	manifest, err := image.Manifest()
	if err != nil {
		return nil, err
	}
	var found []candidate
	for _, layer := range manifest.Layers[:min(len(manifest.Layers), maxSignatures)] {
		text, ok := layer.Annotations[annotation]
		if !ok {
			continue
		}
		payload, err := r.blob(layer.Digest, options)
		if err != nil {
			return nil, err
		}
		if c, ok := simpleSignature(payload, text); ok {
			found = append(found, c)
		}
	}
	return found, nil
}

// bundles reads the Sigstore bundles that refer to the manifest.
func (r *registry) bundles(digest string, options []remote.Option) ([]candidate, error) {
	index, err := remote.Referrers(r.repository.Digest(digest), options...)
	if isAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	var found []candidate
	read := 0
	for _, d := range list.Manifests {
		if !strings.HasPrefix(d.ArtifactType, bundleType) {
			continue
		}
		if read++; read > maxSignatures || len(found) >= maxSignatures {
			break
		}
		image, err := remote.Image(r.repository.Digest(d.Digest.String()), options...)
		if isAbsent(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		manifest, err := image.Manifest()
		if err != nil {
			return nil, err
		}
		for _, layer := range manifest.Layers[:min(len(manifest.Layers), 1)] {
			text, err := r.blob(layer.Digest, options)
			if err != nil {
				return nil, err
			}
			found = append(found, bundleSignatures(text)...)
		}
	}
	return found[:min(len(found), maxSignatures)], nil
}

// blob reads a small blob, and verifies its digest. It returns nil for a missing or longer blob, which
// contains no signature: an author of images must not fill this machine's memory.
func (r *registry) blob(digest v1.Hash, options []remote.Option) ([]byte, error) {
	layer, err := remote.Layer(r.repository.Digest(digest.String()), options...)
	if err != nil {
		return nil, err
	}
	body, err := layer.Compressed()
	if isAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, maxBlob+1))
	if len(text) > maxBlob {
		return nil, nil
	}
	return text, err
}

// isAbsent reports whether a registry has no such manifest or blob.
func isAbsent(err error) bool {
	answer, ok := errors.AsType[*transport.Error](err)
	if !ok {
		return false
	}
	switch answer.StatusCode {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented: // without the call for referrers
		return true
	}
	return false
}
