package gstest

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/spec"
)

// Account is a service account together with its token server. The server issues a token for an
// assertion as RFC 7523 describes, signed by the account's key.
type Account struct {
	Login spec.Sensitive // its JSON key, as the secret of an input is written
	Given atomic.Int64   // how many tokens
	// Signed is the number of signatures that the account's server has made.
	Signed atomic.Int64

	key         *rsa.PrivateKey
	at          string
	scope       string // the only one that tokens are issued for
	mu          sync.Mutex
	tokens      map[string]bool
	spoils      func(w http.ResponseWriter) bool
	spoilsSigns func(w http.ResponseWriter, r *http.Request) bool
}

// Email is the name of every account. The token server checks it in each assertion, and the id of the key.
const Email = "reader@project.iam.gserviceaccount.com"

const keyID = "key-1"

// NewAccount creates an account with a new key and runs its server until the test ends.
func NewAccount(t testing.TB) *Account {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	a := &Account{key: key, tokens: map[string]bool{},
		scope: "https://www.googleapis.com/auth/devstorage.read_only"}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ":signBlob") {
			a.sign(w, r)
		} else {
			a.give(w, r)
		}
	}))
	t.Cleanup(server.Close)
	a.at = server.URL + "/token" // before Written, whose key names the address
	a.Login = a.Written(t, key)
	return a
}

// Written returns the JSON key of this account with any key. A key that is not the account's own
// makes the token server refuse each assertion.
func (a *Account) Written(t testing.TB, key *rsa.PrivateKey) spec.Sensitive {
	t.Helper()
	text, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": Email, "private_key_id": keyID, "token_uri": a.at,
		"private_key": string(encode(t, key)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return spec.Sensitive(text)
}

// Key returns the account's private key in PEM.
func (a *Account) Key(t testing.TB) []byte {
	t.Helper()
	return encode(t, a.key)
}

// encode returns a private key in PEM.
func encode(t testing.TB, key *rsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// Spoil lets answer serve requests in place of the account's server, for each request where
// answer returns true. nil restores the server.
func (a *Account) Spoil(answer func(w http.ResponseWriter) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.spoils = answer
}

// Admits reports whether a request carries an issued token.
func (a *Account) Admits(r *http.Request) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && a.tokens[token]
}

// Withdraw makes all issued tokens invalid, as an expiry on the server would.
func (a *Account) Withdraw() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.tokens)
}

// give issues a token for a valid assertion. The refusal carries a canary, which must not appear
// in logs or errors.
func (a *Account) give(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.spoils != nil && a.spoils(w) {
		return
	}
	if r.Method != http.MethodPost || r.FormValue("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" ||
		!a.signed(r.FormValue("assertion")) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"error": "invalid_grant", "error_description": "canary"}`)
		return
	}
	token := string(berth.NewSecret())
	a.tokens[token] = true
	a.Given.Add(1)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"access_token": token, "token_type": "Bearer", "expires_in": 3600})
}

// signed reports whether an assertion is valid: signed by this account's key, addressed to this
// server, limited to the account's scope, and made for at most the next hour. A client that asked
// for more rights than reading takes would therefore fail every test.
func (a *Account) signed(assertion string) bool {
	parts := strings.Split(assertion, ".")
	if len(parts) != 3 {
		return false
	}
	var raw [3][]byte
	for i, part := range parts {
		var err error
		if raw[i], err = base64.RawURLEncoding.DecodeString(part); err != nil {
			return false
		}
	}
	var header struct{ Alg, Kid string }
	var claims struct {
		Iss, Scope, Aud string
		Iat, Exp        int64
	}
	now := time.Now().Unix()
	if json.Unmarshal(raw[0], &header) != nil || header.Alg != "RS256" || header.Kid != keyID ||
		json.Unmarshal(raw[1], &claims) != nil ||
		claims.Iss != Email || claims.Aud != a.at ||
		claims.Scope != a.scope ||
		// The client's clock may be a minute fast.
		claims.Iat > now+60 || claims.Exp < now || claims.Exp > claims.Iat+3600 {
		return false
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	return rsa.VerifyPKCS1v15(&a.key.PublicKey, crypto.SHA256, sum[:], raw[2]) == nil
}
