package preflight

import (
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"time"

	"berth/db"
)

// soon is how long before its end a certificate is reported; the alert about certificates fires then, too.
const soon = 14 * 24 * time.Hour

// certificates examines the certificates that berthd shows: to users and machines, to the database, and
// to Temporal. A certificate that cannot be read or has ended is a fault, one that ends soon is advice.
func (r *report) certificates() {
	if cert, key := r.Config.TLSCert, r.Config.TLSKey; cert != "" && key != "" {
		certReadable := r.readable("tls", "tls-cert", cert)
		keyReadable := r.readable("tls", "tls-key", key)
		if certReadable && keyReadable {
			pair, err := tls.LoadX509KeyPair(cert, key)
			if err != nil {
				r.add("tls", Fault, "berthd ca issue makes a certificate and its key", "%s and %s: %v", cert, key, err)
			} else if leaf := r.chain("the certificate of the API, "+cert, pair); leaf != nil {
				r.names(leaf)
			}
		}
	}
	for _, pair := range db.ClientCertificates(r.Config.DatabaseURL) {
		r.chain("the certificate for the database", pair)
	}
	if t := r.Temporal.ConnectionOptions.TLS; t != nil {
		for _, pair := range t.Certificates {
			r.chain("the certificate for Temporal", pair)
		}
	}
}

// chain reports when the first certificate of a chain ends, and returns the leaf, or nil if it cannot
// be parsed. A chain is valid while all its certificates are: from the latest beginning to the earliest
// end.
func (r *report) chain(name string, pair tls.Certificate) *x509.Certificate {
	var leaf *x509.Certificate
	var begin, end time.Time
	for i, der := range pair.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			r.add("tls", Fault, "", "%s: %v", name, err)
			return nil
		}
		if i == 0 {
			leaf, begin, end = c, c.NotBefore, c.NotAfter
			continue
		}
		if c.NotAfter.Before(end) {
			end = c.NotAfter
		}
		if c.NotBefore.After(begin) {
			begin = c.NotBefore
		}
	}
	now := time.Now()
	switch {
	case now.After(end):
		r.add("tls", Fault, "renew it", "%s ended on %s", name, end.UTC().Format(time.RFC3339))
	case now.Before(begin):
		r.add("tls", Fault, "compare the clock of this host", "%s is not valid before %s", name,
			begin.UTC().Format(time.RFC3339))
	case end.Sub(now) < soon:
		r.add("tls", Advice, "renew it", "%s ends on %s", name, end.UTC().Format(time.RFC3339))
	default:
		r.add("tls", OK, "", "%s is valid until %s", name, end.UTC().Format(time.RFC3339))
	}
	return leaf
}

// names reports a certificate that is not for the host of the address that users have. It is advice,
// since a proxy in front of berthd may show another certificate. Without a public-url there is no name
// to compare.
func (r *report) names(leaf *x509.Certificate) {
	u, err := url.Parse(r.Config.PublicURL)
	if err != nil || u.Scheme != "https" {
		return
	}
	if err := leaf.VerifyHostname(u.Hostname()); err != nil {
		r.add("tls", Advice, "issue it for that name, unless a proxy with a certificate of its own is in front of "+
			"berthd", "the certificate of the API is not for %s, the host of public-url", u.Hostname())
	}
}
