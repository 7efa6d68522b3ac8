package publicnet_test

import (
	"context"
	"errors"
	"net"
	"testing"

	"berth/internal/lib/publicnet"
	"berth/internal/lib/publicnet/dnstest"
)

// Only a definite answer of the name servers is evidence that a host does not exist.
func TestOnlyADefiniteAnswerDeniesAHost(t *testing.T) {
	t.Parallel()
	var names dnstest.Server
	for host, row := range map[string]struct {
		answer  dnstest.Answer
		missing bool
	}{
		"none.test":  {dnstest.NoSuchName, true},
		"empty.test": {dnstest.NoAddress, true},
		"fails.test": {dnstest.Failure, false},
		"no-v4.test": {dnstest.FailsV4, false},
		"no-v6.test": {dnstest.FailsV6, false},
		"data.test":  {dnstest.Exists, false},
	} {
		names.Set(host, row.answer)
		if got := publicnet.NoSuchName(t.Context(), names.Resolver(), host); got != row.missing {
			t.Errorf("%s: missing is %v, want %v", host, got, row.missing)
		}
		if names.Asked(host) == 0 {
			t.Errorf("%s: the name server was not asked", host)
		}
	}
	for _, address := range []string{"127.0.0.1", "::1", ""} {
		if publicnet.NoSuchName(t.Context(), names.Resolver(), address) {
			t.Errorf("%q counts as a missing host", address)
		}
	}
	silent := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("network is unreachable")
	}}
	if publicnet.NoSuchName(t.Context(), silent, "none.test") {
		t.Error("name servers that cannot be reached deny a host")
	}
}
