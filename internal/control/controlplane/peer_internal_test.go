package controlplane

import (
	"net"
	"strings"
	"testing"
)

func TestAReplicaNamesAnAddressForOthers(t *testing.T) {
	t.Parallel()
	at := func(listen, database, set string) string {
		l, err := net.Listen("tcp", listen)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c := &ControlPlane{cfg: Config{DatabaseURL: database, PeerURL: set}, listener: l}
		url, cert := c.peer()
		if cert != "" {
			t.Errorf("plain HTTP has the certificate %s", cert)
		}
		return url[:strings.LastIndexByte(url, ':')]
	}
	for _, c := range []struct{ listen, database, set, want string }{
		{"127.0.0.1:0", "postgres://x@10.255.255.1/berth", "", "http://127.0.0.1"},
		{"0.0.0.0:0", "postgres://x@127.0.0.1/berth", "", "http://127.0.0.1"},
		{"0.0.0.0:0", "host=/run/postgresql dbname=berth", "", "http://127.0.0.1"},
		{"127.0.0.1:0", "", "https://replica-1.internal:7070", "https://replica-1.internal"},
	} {
		if got := at(c.listen, c.database, c.set); got != c.want {
			t.Errorf("listening on %s, database %s: %s, want %s", c.listen, c.database, got, c.want)
		}
	}
}
