package identity

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"

	"berth/internal/control/cloud"
	"berth/wire"
)

// skew is the greatest difference of clocks that is accepted in the times of a token.
const skew = time.Minute

// longestToken is the greatest time from the issue of a token to its end. Google's live for an hour.
const longestToken = 2 * time.Hour

// issuers are the names with which Google issues tokens.
var issuers = map[string]bool{"https://accounts.google.com": true, "accounts.google.com": true}

// GCE verifies identity tokens of instances of Google Compute Engine (Google, "Verify VM identity").
type GCE struct {
	project string
	keys    *keys
}

var _ cloud.Identities = (*GCE)(nil)

var projects = regexp.MustCompile(`^[a-z0-9.:-]+$`)

// NewGCE returns a verifier for the instances of a project, with the keys that a JWK set at a URL names.
func NewGCE(project, url string, o KeyOptions) (*GCE, error) {
	if !projects.MatchString(project) {
		return nil, fmt.Errorf("project %q: must be the id of a Google project", project)
	}
	k, err := newKeys(url, o)
	return &GCE{project, k}, err
}

// Source implements cloud.Identities.
func (g *GCE) Source() wire.IdentitySource { return wire.IdentityGCE }

// tokenHeader is the header of a token. Critical names extensions that a verifier must know; this one knows none.
type tokenHeader struct {
	Algorithm string          `json:"alg"`
	Key       string          `json:"kid"`
	Critical  json.RawMessage `json:"crit"`
}

// tokenClaims is the part of a token's payload that Berth compares. The claims of the instance are in a token of
// the format "full" alone.
type tokenClaims struct {
	Issuer   string  `json:"iss"`
	Audience string  `json:"aud"`
	Issued   float64 `json:"iat"` // seconds since 1970
	Expires  float64 `json:"exp"`
	Google   struct {
		Engine struct {
			Project  string `json:"project_id"`
			Zone     string `json:"zone"`
			Instance string `json:"instance_id"`
			Name     string `json:"instance_name"`
		} `json:"compute_engine"`
	} `json:"google"`
}

// Verify implements cloud.Identities.
func (g *GCE) Verify(ctx context.Context, id wire.Identity, d cloud.Demand, now time.Time) (cloud.Claims, error) {
	payload, err := g.open(ctx, id.Token, now)
	if err != nil {
		return cloud.Claims{}, err
	}
	var c tokenClaims
	if err := json.Unmarshal(payload, &c); err != nil {
		return cloud.Claims{}, cloud.RefuseIdentity(cloud.IdentityMalformed,
			"the payload of the identity token is not the documented JSON")
	}
	if err := c.validate(d.Audience, now); err != nil {
		return cloud.Claims{}, err
	}
	e := c.Google.Engine
	switch {
	case e.Instance == "" || e.Name == "" || e.Zone == "":
		return cloud.Claims{}, cloud.RefuseIdentity(cloud.IdentityMalformed,
			"the identity token has no claims about an instance: it must have the format full")
	case e.Project != g.project:
		return cloud.Claims{}, cloud.RefuseIdentity(cloud.IdentityMismatch,
			"the identity names project %q, and the provider's is %s", e.Project, g.project)
	}
	region := e.Zone
	if i := strings.LastIndexByte(e.Zone, '-'); i > 0 {
		region = e.Zone[:i]
	}
	return cloud.Claims{Instance: e.Zone + "/" + e.Name + "/" + e.Instance, Region: region, Zone: e.Zone}, nil
}

// open returns the payload of a token whose signature it has verified. The algorithm is always RS256: a token
// that names another one is refused before anything is computed.
func (g *GCE) open(ctx context.Context, token string, now time.Time) ([]byte, error) {
	malformed := func(what string) error {
		return cloud.RefuseIdentity(cloud.IdentityMalformed, "identity token: %s", what)
	}
	part := strings.Split(token, ".")
	if len(part) != 3 {
		return nil, malformed("it does not have three parts")
	}
	if strings.ContainsAny(token, "\r\n") { // the decoder skips line breaks
		return nil, malformed("its parts must be base64url without padding")
	}
	var raw [3][]byte
	for i := range part {
		var err error
		if raw[i], err = base64.RawURLEncoding.Strict().DecodeString(part[i]); err != nil {
			return nil, malformed("its parts must be base64url without padding")
		}
	}
	var h tokenHeader
	if err := json.Unmarshal(raw[0], &h); err != nil {
		return nil, malformed("its header is not JSON")
	}
	if h.Algorithm != "RS256" {
		return nil, cloud.RefuseIdentity(cloud.IdentityUnsigned,
			"identity token: its algorithm is %.20q, allowed is RS256", h.Algorithm)
	}
	if h.Critical != nil {
		return nil, malformed("its header demands an extension (crit)")
	}
	key, err := g.keys.find(ctx, h.Key, now)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(part[0] + "." + part[1]))
	if rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], raw[2]) != nil {
		return nil, cloud.RefuseIdentity(cloud.IdentityUnsigned, "identity token: key %.40q has not signed it", h.Key)
	}
	return raw[1], nil
}

// validate compares issuer, audience and times.
func (c tokenClaims) validate(audience string, now time.Time) error {
	at := func(seconds float64) time.Time { return time.Unix(int64(min(max(seconds, 0), 1<<40)), 0) }
	issued, expires := at(c.Issued), at(c.Expires)
	switch {
	case !issuers[c.Issuer]:
		return cloud.RefuseIdentity(cloud.IdentityMismatch,
			"identity token: issuer %.60q is not https://accounts.google.com", c.Issuer)
	case audience == "" || c.Audience != audience:
		return cloud.RefuseIdentity(cloud.IdentityAudience,
			"identity token: its audience %.80q is not that of this launch", c.Audience)
	case now.After(expires.Add(skew)):
		return cloud.RefuseIdentity(cloud.IdentityExpired, "identity token: it expired at %s",
			expires.UTC().Format(time.RFC3339))
	case issued.After(now.Add(skew)):
		return cloud.RefuseIdentity(cloud.IdentityExpired,
			"identity token: it was issued at %s, which is in the future", issued.UTC().Format(time.RFC3339))
	case expires.Sub(issued) > longestToken:
		return cloud.RefuseIdentity(cloud.IdentityExpired, "identity token: it is valid for %s, allowed are %s",
			expires.Sub(issued), longestToken)
	}
	return nil
}
