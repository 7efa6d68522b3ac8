package controlplane

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"log/slog"
	"math"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// pair returns a certificate with a serial number, and its key.
func pair(t *testing.T, serial int64) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: []string{"berth.internal"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret})
}

func TestARenewedCertificateIsServedWithoutARestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "crt"), filepath.Join(dir, "key")
	changes := 0
	put := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
		// Two writes within the resolution of the file system's clock differ in it.
		changes++
		at := time.Now().Add(time.Duration(changes) * time.Second)
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	c := newCertificate(certFile, keyFile, slog.New(slog.NewTextHandler(&log, nil)))
	if _, err := c.current(); err == nil || !strings.Contains(err.Error(), certFile) {
		t.Fatalf("without files: %v; want an error that names them", err)
	}
	cert1, key1 := pair(t, 1)
	put(certFile, cert1)
	put(keyFile, key1)

	web := httptest.NewUnstartedServer(http.NotFoundHandler())
	web.TLS = tlsConfig(c)
	web.StartTLS()
	defer web.Close()
	expect := func(when string, serial int64) {
		t.Helper()
		conn, err := tls.Dial("tcp", web.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, ServerName: "berth.internal"})
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		defer conn.Close()
		got := conn.ConnectionState().PeerCertificates[0]
		if got.SerialNumber.Int64() != serial {
			t.Errorf("%s: certificate %d is served; want %d", when, got.SerialNumber, serial)
		}
		// Other replicas compare the certificate that they find with this sum.
		if sum := sha256.Sum256(got.Raw); c.sum() != hex.EncodeToString(sum[:]) {
			t.Errorf("%s: the sum is not that of the certificate that is served", when)
		}
	}
	expect("at the start", 1)
	cert2, key2 := pair(t, 2)
	put(certFile, cert2)
	expect("with the key of the certificate before", 1)
	put(keyFile, key2)
	expect("with both files renewed", 2)
	put(certFile, []byte("half a"))
	expect("with a damaged file", 2)
	if err := os.Remove(keyFile); err != nil {
		t.Fatal(err)
	}
	expect("without a key", 2)
	expect("without a key, again", 2)
	if n := strings.Count(log.String(), "the one before stays in use"); n != 3 {
		t.Errorf("%d warnings; want 3, one for each change:\n%s", n, log.String())
	}
	cert3, key3 := pair(t, 3)
	put(keyFile, key3)
	put(certFile, cert3)
	expect("with both files renewed, the key first", 3)
}

// The metric is the first end in the chain, and has no series for plain HTTP.
func TestTheEndOfTheCertificateIsAMetric(t *testing.T) {
	t.Parallel()
	values := func(c *certificate) []float64 {
		t.Helper()
		r := prometheus.NewRegistry()
		r.MustRegister(c)
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var list []float64
		for _, f := range families {
			list = append(list, f.GetMetric()[0].GetGauge().GetValue())
		}
		return list
	}
	if list := values(newCertificate("", "", nil)); list != nil {
		t.Errorf("plain HTTP has %v", list)
	}
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "crt"), filepath.Join(dir, "key")
	cert, key := pair(t, 1)
	for name, content := range map[string][]byte{certFile: cert, keyFile: key} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list := values(newCertificate(certFile, keyFile, slog.New(slog.DiscardHandler)))
	if len(list) != 1 || math.Abs(list[0]-float64(time.Now().Add(time.Hour).Unix())) > 120 {
		t.Errorf("a certificate that ends in an hour has %v, now is %d", list, time.Now().Unix())
	}
}
