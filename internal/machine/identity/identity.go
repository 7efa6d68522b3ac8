// Package identity reads the identity of this machine from the metadata service of its cloud: a document that the
// cloud has signed, which the agent sends with its join.
//
// The agent reads it only if a setting says so, which the bootstrap of a launched machine has. It does not verify
// the document, since the control plane does.
package identity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"berth/wire"
)

// Address is the metadata service of EC2 and of GCE: its address, so that no answer of DNS decides.
const Address = "http://169.254.169.254"

// Off is the setting without a source.
const Off = "off"

// Paths and headers of the metadata services.
const (
	ec2TokenPath     = "/latest/api/token"
	ec2DocumentPath  = "/latest/dynamic/instance-identity/document"
	ec2SignaturePath = "/latest/dynamic/instance-identity/signature"
	ec2TokenHeader   = "X-aws-ec2-metadata-token"
	ec2TTLHeader     = "X-aws-ec2-metadata-token-ttl-seconds"
	gceTokenPath     = "/computeMetadata/v1/instance/service-accounts/default/identity"
	gceFlavorHeader  = "Metadata-Flavor"
	gceFlavor        = "Google"
)

// callLimit bounds one call. The service is on the host of the instance; GCE asks another server for the token.
const callLimit = 5 * time.Second

// Reader reads the identity of this machine.
type Reader struct {
	kind     wire.IdentitySource
	base     string
	audience string
	http     *http.Client
}

// audiences is the allowed form of an audience.
var audiences = regexp.MustCompile(`^[!-~]{1,200}$`)

// Open returns the source of a setting: "off" (nil), "ec2", or "gce" with the audience of the token. Tests use
// "ec2=URL" and "gce=URL" for another address of the metadata service.
func Open(setting, audience string) (*Reader, error) { return open(setting, audience, callLimit) }

// open is Open with a given limit for each call. Tests set a limit that a busy machine does not exceed.
func open(setting, audience string, limit time.Duration) (*Reader, error) {
	kind, base, given := strings.Cut(setting, "=")
	if !given {
		base = Address
	}
	s := &Reader{kind: wire.IdentitySource(kind), base: base, audience: audience, http: &http.Client{
		Timeout: limit,
		Transport: &http.Transport{ // without a proxy: the answers concern this machine alone
			DialContext:       (&net.Dialer{Timeout: limit}).DialContext,
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 16 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	u, err := url.Parse(base)
	switch {
	case setting == Off:
		return nil, nil
	case s.kind != wire.IdentityEC2 && s.kind != wire.IdentityGCE:
		return nil, fmt.Errorf("%q: allowed are off, ec2 and gce", setting)
	case err != nil || u.Scheme != "http" || u.Host == "" || u.Path != "" || u.RawQuery != "":
		return nil, fmt.Errorf("%q: allowed is an address such as %s=http://127.0.0.1:1338", setting, kind)
	case s.kind == wire.IdentityGCE && !audiences.MatchString(audience):
		return nil, errors.New("gce needs the audience of the token, in 1 to 200 characters of printable ASCII")
	}
	return s, nil
}

// String returns the kind of the source, for the log.
func (s *Reader) String() string {
	if s == nil {
		return Off
	}
	return string(s.kind)
}

// Read returns the identity. An error reports that the service did not answer as documented.
func (s *Reader) Read(ctx context.Context) (wire.Identity, error) {
	id := wire.Identity{Source: s.kind}
	var err error
	if s.kind == wire.IdentityGCE {
		path := gceTokenPath + "?format=full&audience=" + url.QueryEscape(s.audience)
		id.Token, err = s.get(ctx, path, gceFlavorHeader, gceFlavor)
		id.Token = strings.TrimSpace(id.Token)
	} else {
		var token string
		if token, err = s.call(ctx, http.MethodPut, ec2TokenPath, ec2TTLHeader, "60"); err == nil {
			id.Document, err = s.get(ctx, ec2DocumentPath, ec2TokenHeader, token)
		}
		if err == nil {
			id.Signature, err = s.get(ctx, ec2SignaturePath, ec2TokenHeader, token)
		}
	}
	if err == nil && id.Size() > wire.MaxIdentity {
		err = fmt.Errorf("the identity has %d bytes; allowed are %d", id.Size(), wire.MaxIdentity)
	}
	if err != nil {
		return wire.Identity{}, fmt.Errorf("identity of this machine from %s: %w", s.kind, err)
	}
	return id, nil
}

func (s *Reader) get(ctx context.Context, path, header, value string) (string, error) {
	return s.call(ctx, http.MethodGet, path, header, value)
}

// call sends one request with one header. An empty answer is an error.
func (s *Reader) call(ctx context.Context, method, path, header, value string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.base+path, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set(header, value)
	r, err := s.http.Do(req)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(io.LimitReader(r.Body, wire.MaxIdentity+1))
	name, _, _ := strings.Cut(path, "?")
	switch {
	case r.StatusCode != http.StatusOK:
		return "", fmt.Errorf("%s %s: the metadata service answers %s", method, name, strings.TrimSpace(r.Status))
	case err != nil:
		return "", fmt.Errorf("%s %s: %w", method, name, err)
	case len(body) == 0 || len(body) > wire.MaxIdentity:
		return "", fmt.Errorf("%s %s: the answer has %d bytes; allowed are 1 to %d", method, name, len(body),
			wire.MaxIdentity)
	case s.kind == wire.IdentityGCE && r.Header.Get(gceFlavorHeader) != gceFlavor:
		return "", fmt.Errorf("GET %s: the answer has no header %s: %s", name, gceFlavorHeader, gceFlavor)
	}
	return string(body), nil
}
