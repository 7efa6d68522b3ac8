// Package identitytest signs identities of instances for tests, in the way of the clouds: documents of EC2, tokens of
// GCE with their published keys, and the metadata services from which an agent reads both.
package identitytest

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"berth/wire"
)

// Signer is the key of a cloud, and the data of one instance.
type Signer struct {
	tb  testing.TB
	Key *rsa.PrivateKey
	ID  string // of the key in a JWK set

	mu       sync.Mutex
	document map[string]any // of EC2
	claims   map[string]any // of GCE, without the audience and the times
}

// New returns a signer with a new key of this many bits.
func New(tb testing.TB, bits int) *Signer {
	tb.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		tb.Fatal(err)
	}
	return &Signer{tb: tb, Key: key, ID: fmt.Sprintf("key-%x", key.N.Bytes()[:6])}
}

// Certificate writes a certificate of the key, valid for years around now, into a PEM file with this name.
func (s *Signer) Certificate(name string) (path string) {
	s.tb.Helper()
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test of " + name},
		NotBefore: time.Now().Add(-10 * 365 * 24 * time.Hour), NotAfter: time.Now().Add(10 * 365 * 24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, s.Key.Public(), s.Key)
	if err != nil {
		s.tb.Fatal(err)
	}
	path = filepath.Join(s.tb.TempDir(), name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		s.tb.Fatal(err)
	}
	return path
}

// sign returns the signature of RSA PKCS #1 v1.5 with SHA-256.
func (s *Signer) sign(text []byte) []byte {
	sum := sha256.Sum256(text)
	signature, err := rsa.SignPKCS1v15(rand.Reader, s.Key, crypto.SHA256, sum[:])
	if err != nil {
		panic(err) // the key fits the hash
	}
	return signature
}

// Document is the identity document of an instance of EC2, in the documented form.
func Document(account, instance, region, zone string) map[string]any {
	return map[string]any{
		"accountId": account, "architecture": "x86_64", "availabilityZone": zone, "billingProducts": nil,
		"devpayProductCodes": nil, "marketplaceProductCodes": nil, "imageId": "ami-5fb8c835", "instanceId": instance,
		"instanceType": "t2.micro", "kernelId": nil, "pendingTime": "2026-11-26T12:00:00Z",
		"privateIp": "10.158.112.84", "ramdiskId": nil, "region": region, "version": "2017-09-30",
	}
}

// EC2 signs a document.
func (s *Signer) EC2(document map[string]any) wire.Identity {
	text, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		panic(err) // tests encode plain values
	}
	return wire.Identity{Source: wire.IdentityEC2, Document: string(text),
		Signature: base64.StdEncoding.EncodeToString(s.sign(text))}
}

// Claims are the claims of a token of GCE of the format full, for an audience, issued at a time for an hour.
func Claims(project, zone, name, number, audience string, issued time.Time) map[string]any {
	return map[string]any{
		"iss": "https://accounts.google.com", "aud": audience, "azp": "113774264463038321964",
		"sub": "113774264463038321964", "email": "vm@" + project + ".iam.gserviceaccount.com", "email_verified": true,
		"iat": issued.Unix(), "exp": issued.Add(time.Hour).Unix(),
		"google": map[string]any{"compute_engine": map[string]any{
			"project_id": project, "project_number": 739419398126, "zone": zone, "instance_id": number,
			"instance_name": name, "instance_creation_timestamp": issued.Unix() - 60,
		}},
	}
}

// GCE signs a token.
func (s *Signer) GCE(claims map[string]any) wire.Identity {
	return s.Token(map[string]any{"alg": "RS256", "kid": s.ID, "typ": "JWT"}, claims)
}

// Token signs a token with a header of the test's choice.
func (s *Signer) Token(header, claims map[string]any) wire.Identity {
	text := encode(header) + "." + encode(claims)
	return wire.Identity{Source: wire.IdentityGCE,
		Token: text + "." + base64.RawURLEncoding.EncodeToString(s.sign([]byte(text)))}
}

func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // tests encode plain values
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// KeySet is the published JWK set of signers.
func KeySet(signers ...*Signer) []byte {
	var list []map[string]string
	for _, s := range signers {
		list = append(list, map[string]string{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": s.ID,
			"n": base64.RawURLEncoding.EncodeToString(s.Key.N.Bytes()),
			"e": base64.RawURLEncoding.EncodeToString(big.NewInt(int64(s.Key.E)).Bytes())})
	}
	text, err := json.Marshal(map[string]any{"keys": list})
	if err != nil {
		panic(err) // tests encode plain values
	}
	return text
}

// Instance sets the instance whose metadata service ServeHTTP plays: its document on EC2, or its claims on GCE
// without audience and times. nil: this cloud serves nothing.
func (s *Signer) Instance(document, claims map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.document, s.claims = document, claims
}

// ServeHTTP plays the metadata service of an instance by the documents of its cloud. EC2 has version 2 alone.
func (s *Signer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const token = "AQAEtoken=="
	switch path := r.URL.Path; {
	case s.document != nil && path == "/latest/api/token":
		if r.Method != http.MethodPut || r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") == "" {
			http.Error(w, "Bad Request", http.StatusBadRequest)
			return
		}
		fmt.Fprint(w, token)
	case s.document != nil && r.Header.Get("X-aws-ec2-metadata-token") != token:
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
	case s.document != nil && path == "/latest/dynamic/instance-identity/document":
		fmt.Fprint(w, s.EC2(s.document).Document)
	case s.document != nil && path == "/latest/dynamic/instance-identity/signature":
		// The service breaks the text into lines of 76 characters.
		text := s.EC2(s.document).Signature
		for len(text) > 76 {
			fmt.Fprintln(w, text[:76])
			text = text[76:]
		}
		fmt.Fprint(w, text)
	case s.claims != nil && path == "/computeMetadata/v1/instance/service-accounts/default/identity":
		if r.Header.Get("Metadata-Flavor") != "Google" || r.URL.Query().Get("audience") == "" {
			http.Error(w, "Forbidden", http.StatusForbidden)
			return
		}
		w.Header().Set("Metadata-Flavor", "Google")
		full := map[string]any{}
		for k, v := range s.claims {
			if k != "google" || r.URL.Query().Get("format") == "full" {
				full[k] = v
			}
		}
		full["aud"], full["iat"], full["exp"] = r.URL.Query().Get("audience"), time.Now().Unix(),
			time.Now().Add(time.Hour).Unix()
		fmt.Fprint(w, s.GCE(full).Token)
	default:
		http.NotFound(w, r)
	}
}
