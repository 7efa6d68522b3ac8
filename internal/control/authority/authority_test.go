package authority_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/control/authority"
)

var now = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// newAuthority returns a folder with an authority.
func newAuthority(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := authority.Init(dir, "Berth authority", now); err != nil {
		t.Fatal(err)
	}
	return dir
}

// leaf reads a certificate with its key, which must match.
func leaf(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"))
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

func TestAnIssuedCertificateIsTrustedForItsNamesAlone(t *testing.T) {
	t.Parallel()
	dir := newAuthority(t)
	if err := authority.Issue(dir, "berthd", []string{"berth.internal", "10.0.0.5"}, 90, authority.Access{}, now); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf(t, dir, "ca"))
	cert := leaf(t, dir, "berthd")
	check := func(host string, at time.Time, usage x509.ExtKeyUsage) error {
		_, err := cert.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage}})
		return err
	}
	for _, host := range []string{"berth.internal", "10.0.0.5"} {
		for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
			if err := check(host, now, usage); err != nil {
				t.Errorf("%s: %v", host, err)
			}
		}
	}
	if check("other.internal", now, x509.ExtKeyUsageServerAuth) == nil {
		t.Error("the certificate is trusted for another name")
	}
	if check("berth.internal", now.AddDate(0, 0, 91), x509.ExtKeyUsageServerAuth) == nil {
		t.Error("the certificate is trusted after its end")
	}
	if cert.IsCA {
		t.Error("the certificate may sign others")
	}
}

func TestKeysAreReadableByTheirOwnersAlone(t *testing.T) {
	t.Parallel()
	dir := newAuthority(t)
	if err := authority.Issue(dir, "berthd", []string{"h"}, 1, authority.Access{}, now); err != nil {
		t.Fatal(err)
	}
	if err := authority.Issue(dir, "temporal", []string{"h"}, 1, authority.Access{Group: os.Getgid() + 1}, now); err != nil && os.Getuid() == 0 {
		t.Fatal(err)
	}
	modes := map[string]os.FileMode{"ca.key": 0o600, "ca.crt": 0o644, "berthd.key": 0o600, "berthd.crt": 0o644}
	if os.Getuid() == 0 {
		modes["temporal.key"] = 0o640
	}
	for name, want := range modes {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %o", name, info.Mode(), err, want)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".new-*")); err != nil || len(left) > 0 {
		t.Errorf("files of a write are left: %v, %v", left, err)
	}
	if err := os.Chmod(filepath.Join(dir, "ca.key"), 0o640); err != nil {
		t.Fatal(err)
	}
	err := authority.Issue(dir, "berthd", []string{"h"}, 1, authority.Access{}, now)
	if err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key of the authority that a group reads: %v; want a refusal", err)
	}
}

func TestACertificateIsRenewedAndAnAuthorityIsNot(t *testing.T) {
	t.Parallel()
	dir := newAuthority(t)
	before := leaf(t, dir, "ca")
	if err := authority.Init(dir, "another", now); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("a second authority: %v; want a refusal", err)
	}
	if !leaf(t, dir, "ca").Equal(before) {
		t.Error("the authority was replaced")
	}
	for _, days := range []int{1, 2} {
		if err := authority.Issue(dir, "berthd", []string{"h"}, days, authority.Access{}, now); err != nil {
			t.Fatal(err)
		}
		if end := leaf(t, dir, "berthd").NotAfter; !end.Equal(now.AddDate(0, 0, days)) {
			t.Errorf("it ends at %s; want %d days", end, days)
		}
	}
	late := before.NotAfter.AddDate(0, 0, -10)
	if err := authority.Issue(dir, "berthd", []string{"h"}, 90, authority.Access{}, late); err != nil {
		t.Fatal(err)
	}
	if end := leaf(t, dir, "berthd").NotAfter; end.After(before.NotAfter) {
		t.Errorf("it ends at %s, after the authority at %s", end, before.NotAfter)
	}
	if err := authority.Issue(dir, "berthd", []string{"h"}, 1, authority.Access{}, before.NotAfter.Add(time.Hour)); err == nil {
		t.Error("an expired authority signs")
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	t.Parallel()
	dir := newAuthority(t)
	for want, err := range map[string]error{
		"cannot name a certificate": authority.Issue(dir, "../berthd", []string{"h"}, 1, authority.Access{}, now),
		"not ca":                    authority.Issue(dir, "ca", []string{"h"}, 1, authority.Access{}, now),
		"needs a DNS name":          authority.Issue(dir, "a", nil, 1, authority.Access{}, now),
		"neither a DNS name":        authority.Issue(dir, "a", []string{"https://h"}, 1, authority.Access{}, now),
		"allowed: 1 to 825":         authority.Issue(dir, "a", []string{"h"}, 826, authority.Access{}, now),
		"read the authority":        authority.Issue(t.TempDir(), "a", []string{"h"}, 1, authority.Access{}, now),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v; want an error with %q", err, want)
		}
	}
}
