package alarms_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// valid is the length for which a renewed certificate is valid.
const valid = 90 * 24 * time.Hour

// certificate is a pair of files, of which the key stays the same.
type certificate struct {
	cert, key string
	secret    *ecdsa.PrivateKey
}

func newCertificate(dir string) (*certificate, error) {
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		return nil, err
	}
	c := &certificate{cert: filepath.Join(dir, "tls.crt"), key: filepath.Join(dir, "tls.key"), secret: secret}
	return c, os.WriteFile(c.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
}

// issue replaces the certificate by one that ends after a time.
func (c *certificate) issue(ends time.Duration) error {
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "berthd"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(ends), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, c.secret.Public(), c.secret)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return errors.Join(os.WriteFile(c.cert+".new", text, 0o600), os.Rename(c.cert+".new", c.cert))
}
