package controlplane

import (
	"cmp"
	"net"

	"berth/db"
)

// peer returns the address by which other replicas reach this API, and the SHA-256 of the
// certificate that they must find there, "" for plain HTTP. One replica holds the session of a user,
// and the machine's connection may arrive at another replica.
func (c *ControlPlane) peer() (url, cert string) {
	url = c.cfg.PeerURL
	if url == "" {
		url = c.ownURL()
	}
	return url, c.certificate.sum()
}

// ownURL returns the address of the listener. One that listens on all addresses of the host is
// reached by the address from which the host reaches the database, as the other replicas do.
func (c *ControlPlane) ownURL() string {
	host, port, err := net.SplitHostPort(c.listener.Addr().String())
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = cmp.Or(towards(c.cfg.DatabaseURL), "127.0.0.1")
	}
	scheme := "http://"
	if c.cfg.TLSCert != "" {
		scheme = "https://"
	}
	return scheme + net.JoinHostPort(host, port)
}

// towards returns the address of this host on the way to the database, "" if the database is on
// this host. It sends no packet.
func towards(database string) string {
	host := db.Host(database)
	if host == "" {
		return ""
	}
	conn, err := net.Dial("udp", net.JoinHostPort(host, "1"))
	if err != nil {
		return ""
	}
	defer conn.Close()
	host, _, _ = net.SplitHostPort(conn.LocalAddr().String())
	return host
}
