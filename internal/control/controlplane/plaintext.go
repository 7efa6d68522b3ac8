package controlplane

import (
	"crypto/tls"
	"fmt"
	"strings"

	"berth/db"
)

// wayOut is the end of each error about a connection without TLS.
const wayOut = "or accept the risk with --allow-plaintext"

// plaintext returns a fault for each setting that would send tokens, passwords or jobs to another
// machine without encryption, or to a server whose identity is not verified. adr/0058 has the reasons.
func (c Config) plaintext() (faults []error) {
	if c.AllowPlaintext {
		return nil
	}
	if c.Plays(RoleAPI) && c.TLSCert == "" && isHostPort(c.Listen) && !isLoopback(c.Listen) {
		faults = append(faults, fmt.Errorf("listen address %q: other machines can reach the API, and it has no TLS: "+
			"set --tls-cert and --tls-key (berthd ca makes both), listen on 127.0.0.1 behind a proxy, %s",
			c.Listen, wayOut))
	}
	if strings.HasPrefix(c.PeerURL, "http://") && !isLoopback(hostOf(c.PeerURL)) {
		faults = append(faults, fmt.Errorf("peer-url %q: other replicas would reach this one without TLS: write "+
			"https://HOST:PORT, %s", c.PeerURL, wayOut))
	}
	if host := db.Unverified(c.DatabaseURL); host != "" {
		faults = append(faults, fmt.Errorf("database on %s: the connection does not verify the server: add "+
			"sslmode=verify-full to --database-url, and sslrootcert=FILE for a private authority, %s",
			host, wayOut))
	}
	return faults
}

// hostOf returns HOST:PORT of an http URL, with port 80 if the URL names no port.
func hostOf(address string) string {
	rest := strings.TrimSuffix(strings.TrimPrefix(address, "http://"), "/")
	if !isHostPort(rest) {
		rest += ":80"
	}
	return rest
}

// plainTemporal returns a fault if the connection to Temporal leaves this machine without TLS. The
// client's TLS settings come from the environment, and are not part of Config.
func (c Config) plainTemporal(settings *tls.Config) error {
	if c.AllowPlaintext || settings != nil || isLoopback(c.TemporalAddress) {
		return nil
	}
	return fmt.Errorf("temporal address %q: the connection has no TLS: set TEMPORAL_TLS=true (and "+
		"TEMPORAL_TLS_SERVER_CA_CERT_PATH for a private authority), %s", c.TemporalAddress, wayOut)
}
