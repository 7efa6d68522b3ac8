package identity

import (
	"cmp"
	"context"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"berth/internal/control/cloud"
)

// GoogleKeys is the set of keys with which Google signs identity tokens.
const GoogleKeys = "https://www.googleapis.com/oauth2/v3/certs"

const (
	freshFor   = time.Hour        // after this age a set of keys is fetched again
	fetchPause = 10 * time.Second // least time between two fetches
	fetchLimit = 5 * time.Second  // of one fetch; a join waits for it
	maxKeySet  = 64 << 10         // bytes
	leastBits  = 2048             // of a key
	maxKeys    = 50
)

// KeyOptions are options of a set of keys.
type KeyOptions struct {
	Client *http.Client // nil: a client with the proxy of the environment
	Logger *slog.Logger // nil: discard

	Limit time.Duration // of one fetch; 0: 5 s
}

// keys is a cached JWK set (RFC 7517). A set that cannot be fetched again keeps its known keys: an outage of the
// server of keys stops no join.
type keys struct {
	url    string
	client *http.Client
	log    *slog.Logger
	limit  time.Duration // of one fetch

	mu      sync.Mutex // also held during a fetch: the joins that follow need the same result
	known   map[string]*rsa.PublicKey
	fetched time.Time // last success; zero: never
	tried   time.Time
}

// newKeys returns an empty set. The address must be https: a forged key would let any host join as
// a launched machine.
func newKeys(at string, o KeyOptions) (*keys, error) {
	u, err := url.Parse(at)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("keys %q: must be an https URL, such as %s", at, GoogleKeys)
	}
	k := &keys{url: at, client: o.Client, log: o.Logger, limit: cmp.Or(o.Limit, fetchLimit)}
	if k.client == nil {
		k.client = &http.Client{}
	}
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}
	return k, nil
}

// find returns a key. It fetches the set if the set is old, or if the key is unknown and the last try
// is old. A caller with an unknown key cannot cause more than one fetch in fetchPause. All errors are
// passing ones: the machine tries again.
func (k *keys) find(ctx context.Context, id string, now time.Time) (*rsa.PublicKey, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key := k.known[id]
	// Tokens of attackers name any key, so an unknown one must not cause a fetch each time.
	rested := k.tried.IsZero() || now.Sub(k.tried) >= fetchPause
	var failed error
	if rested && (key == nil || now.Sub(k.fetched) >= freshFor) {
		k.tried = now
		if failed = k.fetch(ctx, now); failed != nil {
			k.log.Warn("cannot fetch the keys of a cloud's identity tokens", "url", k.url, "known", len(k.known),
				"err", failed)
		}
		key = k.known[id]
	}
	switch {
	case key != nil:
		return key, nil
	case failed != nil, k.fetched.IsZero():
		return nil, cloud.RefuseIdentity(cloud.IdentityNoKeys,
			"this server cannot fetch the keys of identity tokens now; try again")
	}
	// Not final: a mirror of the keys may lag behind a rotation.
	return nil, cloud.RefuseIdentity(cloud.IdentityNoKeys,
		"the keys of identity tokens that this server has do not include %.40q; try again", id)
}

// jwk is a key of a set. Keys of other types and for other uses are left out.
type jwk struct {
	Type      string `json:"kty"`
	Use       string `json:"use"`
	Algorithm string `json:"alg"`
	ID        string `json:"kid"`
	Modulus   string `json:"n"`
	Exponent  string `json:"e"`
}

// fetch replaces the set by the published one. The old set stays after an error. The caller holds mu.
func (k *keys) fetch(ctx context.Context, now time.Time) error {
	// The set is for all callers, so the end of this one does not end the fetch.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.url, nil)
	if err != nil {
		return err
	}
	r, err := k.client.Do(req)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("answer %s", r.Status)
	}
	// One byte more than allowed, by which parseKeys recognizes a longer answer.
	body, err := io.ReadAll(io.LimitReader(r.Body, maxKeySet+1))
	if err != nil {
		return err
	}
	set, err := parseKeys(body)
	if err != nil {
		return err
	}
	k.known, k.fetched = set, now
	return nil
}

// parseKeys returns the RSA keys of a set for RS256. Keys for other purposes are skipped. A weak or
// malformed RSA key is an error of the whole set, since the published set has none.
func parseKeys(body []byte) (map[string]*rsa.PublicKey, error) {
	if len(body) > maxKeySet {
		return nil, fmt.Errorf("the set has more than %d bytes", maxKeySet)
	}
	var set struct {
		Keys []jwk `json:"keys"`
	}
	if err := json.Unmarshal(body, &set); err != nil {
		return nil, fmt.Errorf("not a set of keys: %w", err)
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("the set has %d keys; allowed are %d", len(set.Keys), maxKeys)
	}
	known := map[string]*rsa.PublicKey{}
	for _, j := range set.Keys {
		if j.Type != "RSA" || j.ID == "" || !slices.Contains([]string{"", "sig"}, j.Use) ||
			!slices.Contains([]string{"", "RS256"}, j.Algorithm) {
			continue
		}
		n, err1 := base64.RawURLEncoding.DecodeString(j.Modulus)
		e, err2 := base64.RawURLEncoding.DecodeString(j.Exponent)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("key %.40q: %w", j.ID, err)
		}
		// An exponent that does not fit stays 0 and is refused below.
		key := &rsa.PublicKey{N: new(big.Int).SetBytes(n)}
		if exponent := new(big.Int).SetBytes(e); exponent.IsInt64() && exponent.Int64() < 1<<31 {
			key.E = int(exponent.Int64())
		}
		if key.N.BitLen() < leastBits || key.E < 3 || key.E%2 == 0 {
			return nil, fmt.Errorf("key %.40q: it has %d bits and exponent %d; allowed are RSA keys of %d bits or more",
				j.ID, key.N.BitLen(), key.E, leastBits)
		}
		known[j.ID] = key
	}
	if len(known) == 0 {
		return nil, errors.New("the set has no RSA key for RS256")
	}
	return known, nil
}
