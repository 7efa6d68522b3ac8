package controlplane

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// certificate is the TLS certificate of the API. It is read again when its files change, so that a
// renewed certificate needs no restart, which would cut every stream. A pair that cannot be read,
// such as a new certificate before its key is written, changes nothing: the pair before stays in
// use. nil: the API speaks plain HTTP.
type certificate struct {
	cert, key string // files
	log       *slog.Logger

	mu     sync.Mutex
	seen   [2]fileVersion // of the last attempt to read, failed ones included
	served *tls.Certificate
}

// fileVersion distinguishes two contents of a file.
type fileVersion struct {
	changed time.Time
	bytes   int64
}

// newCertificate returns the certificate of two files, nil for no files. It reads nothing.
func newCertificate(cert, key string, log *slog.Logger) *certificate {
	if cert == "" {
		return nil
	}
	return &certificate{cert: cert, key: key, log: log}
}

// current returns the certificate for a new connection. The error is for files that no attempt so
// far could read.
func (c *certificate) current() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var now [2]fileVersion
	for i, name := range []string{c.cert, c.key} {
		info, err := os.Stat(name)
		if err == nil {
			now[i] = fileVersion{info.ModTime(), info.Size()}
		}
	}
	if c.served != nil && now == c.seen {
		return c.served, nil
	}
	c.seen = now
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		if c.served == nil {
			return nil, fmt.Errorf("read the TLS certificate %s and its key %s: %w", c.cert, c.key, err)
		}
		c.log.Warn("cannot read the changed TLS certificate, the one before stays in use", "cert", c.cert, "key", c.key,
			"err", err)
		return c.served, nil
	}
	c.served = &pair
	c.log.Info("TLS certificate read", "cert", c.cert, "not_after", pair.Leaf.NotAfter)
	return c.served, nil
}

var certificateEndDesc = prometheus.NewDesc("berth_tls_certificate_end_seconds",
	"End of the validity of the API's certificate in use, in seconds since 1970; no series for plain HTTP.", nil, nil)

// Describe implements prometheus.Collector.
func (c *certificate) Describe(ch chan<- *prometheus.Desc) { ch <- certificateEndDesc }

// Collect implements prometheus.Collector. The chain is as good as its first certificate to end.
func (c *certificate) Collect(ch chan<- prometheus.Metric) {
	if c == nil {
		return
	}
	served, err := c.current()
	if err != nil {
		return
	}
	end := served.Leaf.NotAfter
	for _, der := range served.Certificate[1:] {
		if issuer, err := x509.ParseCertificate(der); err == nil && issuer.NotAfter.Before(end) {
			end = issuer.NotAfter
		}
	}
	ch <- prometheus.MustNewConstMetric(certificateEndDesc, prometheus.GaugeValue, float64(end.Unix()))
}

// sum returns the SHA-256 of the certificate in use, in hex, and "" for plain HTTP.
func (c *certificate) sum() string {
	if c == nil {
		return ""
	}
	served, err := c.current()
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(served.Certificate[0])
	return hex.EncodeToString(sum[:])
}
