package temporaldev

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	uiconfig "github.com/temporalio/ui-server/v2/server/config"
	"go.temporal.io/server/common/config"
)

// refreshEvery is the pause between two looks at the certificate files: a renewal needs no restart.
const refreshEvery = time.Minute

// expiryWarning is the time before the end of a certificate from which on the server logs warnings.
const expiryWarning = 14 * 24 * time.Hour

// TLS names the PEM files with which the server proves its identity and verifies that of its clients.
// Services of the server are clients of each other.
type TLS struct {
	CertFile string // of the server, for servers and clients, with at least one name
	KeyFile  string
	CAFile   string // authorities that sign the certificates of clients, and this server's own
}

// identity is a TLS whose files were read.
type identity struct {
	TLS
	name  string // in the certificate
	roots *x509.CertPool
}

// read reads the files and verifies the certificate as the server's own clients will.
func (t TLS) read(now time.Time) (*identity, error) {
	pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("certificate of the server: %w", err)
	}
	text, err := os.ReadFile(t.CAFile)
	if err != nil {
		return nil, fmt.Errorf("authority of the certificates: %w", err)
	}
	i := &identity{TLS: t, roots: x509.NewCertPool()}
	if !i.roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("authority of the certificates: %s has no certificate in PEM form", t.CAFile)
	}
	switch leaf := pair.Leaf; {
	case len(leaf.DNSNames) > 0:
		i.name = leaf.DNSNames[0]
	case len(leaf.IPAddresses) > 0:
		i.name = leaf.IPAddresses[0].String()
	default:
		return nil, fmt.Errorf("%s: the certificate has no DNS name and no IP address", t.CertFile)
	}
	between := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err := pair.Leaf.Verify(x509.VerifyOptions{
			Roots: i.roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use},
		})
		if err != nil {
			return nil, fmt.Errorf("%s: the certificate must be valid for servers and for clients, by an authority in "+
				"%s: %w", t.CertFile, t.CAFile, err)
		}
	}
	return i, nil
}

// client returns the settings of a client of the frontend in this process.
func (i *identity) client() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: i.roots, ServerName: i.name,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(i.CertFile, i.KeyFile)
			return &pair, err
		},
	}
}

// config returns the settings of the server: each connection, also between its services, needs a certificate
// on both sides.
func (i *identity) config() config.RootTLS {
	client := config.ClientTLS{ServerName: i.name, RootCAFiles: []string{i.CAFile}}
	both := config.GroupTLS{
		Server: config.ServerTLS{
			CertFile: i.CertFile, KeyFile: i.KeyFile, RequireClientAuth: true, ClientCAFiles: []string{i.CAFile},
		},
		Client: client,
	}
	return config.RootTLS{
		Internode: both, Frontend: both, RefreshInterval: refreshEvery,
		ExpirationChecks: config.CertExpirationValidation{ErrorWindow: expiryWarning, CheckInterval: time.Hour},
		SystemWorker:     config.WorkerTLS{CertFile: i.CertFile, KeyFile: i.KeyFile, Client: client},
	}
}

// ui returns the settings with which the web UI reaches the frontend.
func (i *identity) ui() uiconfig.TLS {
	return uiconfig.TLS{
		CaFile: i.CAFile, CertFile: i.CertFile, KeyFile: i.KeyFile, ServerName: i.name, EnableHostVerification: true,
	}
}
