package gstest

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"berth"
)

// This file plays the servers that a login without a private key has: one that gives tokens without an assertion, and
// Google's API that signs for an account.

// Transport sends requests with a token of the account, and requests to Google's API for signatures to the account's
// own server.
func (a *Account) Transport() http.RoundTripper { return transport{a} }

type transport struct{ account *Account }

// RoundTrip sends one request.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+t.account.issue())
	if r.URL.Host == "iamcredentials.googleapis.com" {
		u, err := url.Parse(t.account.at)
		if err != nil {
			return nil, err
		}
		r.URL.Scheme, r.URL.Host, r.Host = u.Scheme, u.Host, u.Host
	}
	return http.DefaultTransport.RoundTrip(r)
}

// issue returns a new token.
func (a *Account) issue() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	token := string(berth.NewSecret())
	a.tokens[token] = true
	return token
}

// SpoilSigning lets answer serve requests for signatures in place of the account's server, for each request where
// answer returns true. nil restores the server.
func (a *Account) SpoilSigning(answer func(w http.ResponseWriter, r *http.Request) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.spoilsSigns = answer
}

// RefuseSigning makes the account's server refuse further signatures, as for a login without that right.
func (a *Account) RefuseSigning() {
	a.SpoilSigning(func(w http.ResponseWriter, _ *http.Request) bool {
		fault(w, http.StatusForbidden)
		return true
	})
}

// sign signs bytes for the account, as projects.serviceAccounts.signBlob does.
func (a *Account) sign(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	spoils := a.spoilsSigns
	a.mu.Unlock()
	if spoils != nil && spoils(w, r) {
		return
	}
	var request struct{ Payload []byte }
	if !a.Admits(r) || !strings.HasSuffix(r.URL.Path, "/serviceAccounts/"+Email+":signBlob") ||
		json.NewDecoder(r.Body).Decode(&request) != nil {
		fault(w, http.StatusForbidden)
		return
	}
	sum := sha256.Sum256(request.Payload)
	signature, err := rsa.SignPKCS1v15(rand.Reader, a.key, crypto.SHA256, sum[:])
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	a.Signed.Add(1)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{
		"keyId": keyID, "signedBlob": base64.StdEncoding.EncodeToString(signature),
	})
}
