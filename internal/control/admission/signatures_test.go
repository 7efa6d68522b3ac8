package admission_test

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/admission"
	"berth/spec"
	"berth/wire"
)

// signatureKey returns a public key in PEM.
func signatureKey(t *testing.T) string {
	t.Helper()
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// A tenant adds demands to the cluster's and to its ancestors' demands, and lifts none of them.
func TestATenantOnlyAddsDemandsForSignatures(t *testing.T) {
	t.Parallel()
	d, err := db.Open(t.Context(), dbtest.URL(t), db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	ofCluster, ofOrg, ofTeam := []string{signatureKey(t)}, []string{signatureKey(t)}, []string{signatureKey(t)}
	for _, n := range []spec.NewTenant{{ID: "org"}, {ID: "team", Parent: "org"}, {ID: "free", Parent: "org"}} {
		if err := d.Tenants.Create(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	for _, q := range []spec.Quota{
		{Tenant: "org", ImageSignatures: []spec.SignatureRule{{Repositories: []string{"ghcr.io"}, Keys: ofOrg}}},
		{Tenant: "team", ImageSignatures: []spec.SignatureRule{
			{Repositories: []string{"ghcr.io/acme/tool"}, Keys: ofTeam}, {Repositories: []string{"quay.io"}, Keys: ofTeam},
		}},
	} {
		if err := d.Tenants.SetQuota(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	c := admission.New(d, owner(t), admission.Rules{Signed: []spec.SignatureRule{{Keys: ofCluster}}})
	cluster := wire.SignatureDemand{Whose: "the cluster", Keys: ofCluster}
	org := wire.SignatureDemand{Whose: "tenant org", Keys: ofOrg}
	team := wire.SignatureDemand{Whose: "tenant team", Keys: ofTeam}
	for _, x := range []struct {
		tenant berth.TenantID
		image  string
		want   []wire.SignatureDemand
	}{
		{"team", "ghcr.io/acme/tool:1", []wire.SignatureDemand{cluster, team, org}},
		{"team", "ghcr.io/acme/other:1", []wire.SignatureDemand{cluster, org}},
		{"team", "busybox", []wire.SignatureDemand{cluster}},
		{"free", "ghcr.io/acme/tool:1", []wire.SignatureDemand{cluster, org}},
		{"team", "quay.io/x@sha256:" + strings.Repeat("1", 64), []wire.SignatureDemand{cluster, team}},
		{"team", "NO image", []wire.SignatureDemand{cluster, team, team, org}},
	} {
		got, err := c.Signatures(t.Context(), x.tenant, x.image)
		if diff := cmp.Diff(x.want, got); err != nil || diff != "" {
			t.Errorf("%s for %s: %v (-want +got):\n%s", x.image, x.tenant, err, diff)
		}
	}
}

func TestRulesOfTheClusterAreReadFromAFile(t *testing.T) {
	t.Parallel()
	if rules, err := admission.ReadSignatureRules(""); rules != nil || err != nil {
		t.Errorf("no file: %v, %v", rules, err)
	}
	indented := "    - |\n      " + strings.ReplaceAll(strings.TrimSpace(signatureKey(t)), "\n", "\n      ") + "\n"
	for _, c := range []struct{ text, says string }{
		{"- repositories: [ghcr.io/acme]\n  keys:\n" + indented, ""},
		{"- repositories: [acme]\n  keys:\n" + indented, "rule[0].repositories[0]"},
		{"- keys: [x]\n", "rule[0].keys[0]: is not PEM"},
		{"- keyring: [x]\n", "keyring"},
		{"[]", "has no rules"},
	} {
		path := filepath.Join(t.TempDir(), "rules.yaml")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		rules, err := admission.ReadSignatureRules(path)
		switch {
		case c.says == "" && (err != nil || len(rules) != 1 || len(rules[0].Keys) != 1):
			t.Errorf("%v, %v", rules, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%q: error is %v, want %q", c.text, err, c.says)
		}
	}
}
