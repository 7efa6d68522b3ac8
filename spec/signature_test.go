package spec_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"

	"berth/spec"
)

// publicPEM returns a public key in PEM.
func publicPEM(t *testing.T, public any) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func TestKeysOfSignaturesArePublicAndStrong(t *testing.T) {
	t.Parallel()
	good, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(good)
	if err != nil {
		t.Fatal(err)
	}
	text := publicPEM(t, good.Public())
	if key, err := spec.ParseSignatureKey(text + "\n"); err != nil || len(key.ID) != len("sha256:")+16 {
		t.Errorf("key %q, %v", key.ID, err)
	}
	for want, bad := range map[string]string{
		"is not PEM":                   "ssh-ed25519 AAAA",
		"bytes, more than 4096":        strings.Repeat("x\n", 2048) + text,
		"has more than one key":        text + text,
		`is a "PRIVATE KEY"`:           string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
		"is an ECDSA key on the curve": publicPEM(t, curve.Public()),
		"is an RSA key of 1024 bits":   weakRSA,
		"cannot be read":               string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")})),
	} {
		if _, err := spec.ParseSignatureKey(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q", err, want)
		}
	}
	rules := []spec.SignatureRule{
		{Keys: []string{text}},
		{Repositories: []string{"busybox"}, Keys: []string{text}},
		{Repositories: []string{"ghcr.io"}},
		{Keys: []string{text, "x"}},
	}
	var fields []string
	for _, f := range spec.CheckSignatureRules("r", rules) {
		fields = append(fields, f.Field)
	}
	if got := strings.Join(fields, " "); got != "r[1].repositories[0] r[2].keys r[3].keys[1]" {
		t.Errorf("faults in %s", got)
	}
	if f := spec.CheckSignatureRules("r", make([]spec.SignatureRule, 21)); len(f) == 0 || f[0].Field != "r" {
		t.Errorf("21 rules: %v", f)
	}
	if !rules[0].Covers("docker.io/library/busybox") || rules[2].Covers("docker.io/library/busybox") ||
		!rules[2].Covers("ghcr.io/acme/tool") {
		t.Error("a rule covers other images than those of its repositories")
	}
}

// weakRSA is an RSA key of 1024 bits.
const weakRSA = `-----BEGIN PUBLIC KEY-----
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQCieHB9Tf/flhpTLwscHPbngBZN
UhpyENJzKKjbcX5ckKvAXgTzVKrKsEtSX2QHiti5O1lAZ+ohDsu/E/N6kxYTJ0IU
snWUZKfeXyD2oFVa72wJIzOJ5BqcOGMyZeJCl+5tjtT6khp3ASkC4+ge66j4oGKZ
UI4sBI9vW1IW2OIcHwIDAQAB
-----END PUBLIC KEY-----
`
