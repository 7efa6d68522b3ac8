// Package authority is a private certificate authority in a folder, for clusters without one. It
// signs certificates for the API, for PostgreSQL and for Temporal.
//
// The one rule to know: a holder of the authority's key can impersonate every server and client
// of the cluster. So only its owner may read the key, and no program needs it except to sign
// certificates.
package authority

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// Lifetimes of certificates, in days.
const (
	RootDays    = 3650
	DefaultDays = 365
	MaxDays     = 825 // what clients accept of a private authority
)

// The files of an authority in its folder.
const (
	CertFile = "ca.crt"
	KeyFile  = "ca.key"
)

// fileName is the form of the name of a certificate, which becomes the name of its files.
var fileName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

// hostName is the form of a DNS name, with * as its first label or without.
var hostName = regexp.MustCompile(`^(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Init creates an authority in a folder: ca.crt and ca.key. It fails if either file exists, since a
// new key would end the trust in every certificate that the old one has signed.
func Init(folder, name string, now time.Time) error {
	for _, file := range []string{CertFile, KeyFile} {
		if _, err := os.Lstat(filepath.Join(folder, file)); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s exists in %s: an authority is created once", file, folder)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		NotAfter:              now.AddDate(0, 0, RootDays),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true, // it signs no other authority
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	certFile, keyFile := filepath.Join(folder, CertFile), filepath.Join(folder, KeyFile)
	return sign(template, template, key, key, now, certFile, keyFile, Access{})
}

// Access names the group that may read the key of a certificate, in addition to the owner.
type Access struct {
	Group int // id of a group; 0: the owner alone
}

// Issue signs a certificate for DNS names and IP addresses by the authority in a folder, for servers
// and clients, and writes NAME.crt and NAME.key there. Files of that name are replaced: this is how
// a certificate is renewed. It never outlives the authority.
func Issue(folder, name string, hosts []string, days int, access Access, now time.Time) error {
	switch {
	case !fileName.MatchString(name) || name == "ca":
		return fmt.Errorf("%q cannot name a certificate; allowed: 1 to 63 of a-z, 0-9, '-' and '.', not ca", name)
	case len(hosts) == 0:
		return errors.New("a certificate needs a DNS name or an IP address")
	case days < 1 || days > MaxDays:
		return fmt.Errorf("a lifetime of %d days is out of range; allowed: 1 to %d", days, MaxDays)
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		NotAfter:    now.AddDate(0, 0, days),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else if len(h) <= 253 && hostName.MatchString(h) {
			template.DNSNames = append(template.DNSNames, h)
		} else {
			return fmt.Errorf("%q is neither a DNS name in lower case nor an IP address", h)
		}
	}
	root, rootKey, err := open(folder)
	if err != nil {
		return err
	}
	if now.After(root.NotAfter) {
		return fmt.Errorf("the authority in %s has expired at %s", folder, root.NotAfter.Format(time.RFC3339))
	}
	if template.NotAfter.After(root.NotAfter) {
		template.NotAfter = root.NotAfter
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	base := filepath.Join(folder, name)
	return sign(template, root, key, rootKey, now, base+".crt", base+".key", access)
}

// open reads the authority in a folder. A key that others may read is refused.
func open(folder string) (*x509.Certificate, crypto.Signer, error) {
	keyFile := filepath.Join(folder, KeyFile)
	info, err := os.Stat(keyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("read the authority: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, nil, fmt.Errorf("others than its owner may read or write %s (mode %o): chmod 600 %s",
			keyFile, mode, keyFile)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(folder, CertFile), keyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("read the authority in %s: %w", folder, err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, nil, fmt.Errorf("%s in %s is not the certificate of an authority", CertFile, folder)
	}
	return pair.Leaf, key, nil
}

// sign completes and signs a certificate, and writes it after its key.
func sign(
	template, parent *x509.Certificate, key *ecdsa.PrivateKey, parentKey crypto.Signer, now time.Time,
	certFile, keyFile string, access Access,
) error {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return err
	}
	template.SerialNumber = serial
	template.NotBefore = now.Add(-time.Hour) // clocks differ
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		return fmt.Errorf("sign %s: %w", certFile, err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	mode := fs.FileMode(0o600)
	if access.Group != 0 {
		mode = 0o640
	}
	if err := replace(keyFile, "PRIVATE KEY", secret, mode, access.Group); err != nil {
		return err
	}
	return replace(certFile, "CERTIFICATE", der, 0o644, 0)
}

// replace writes a PEM file in one step, so that no reader sees half of it.
func replace(name, kind string, der []byte, mode fs.FileMode, group int) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".new-*") // with mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	defer os.Remove(f.Name())
	err = pem.Encode(f, &pem.Block{Type: kind, Bytes: der})
	if err == nil && group != 0 {
		err = f.Chown(-1, group)
	}
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
