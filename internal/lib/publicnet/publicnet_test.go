package publicnet_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/internal/lib/publicnet"
)

func TestOnlyPublicAddressesPass(t *testing.T) {
	t.Parallel()
	for addr, public := range map[string]bool{
		"8.8.8.8": true, "1.1.1.1": true, "100.63.255.255": true, "100.128.0.1": true, "172.32.0.1": true, "223.255.255.255": true,
		"2606:4700:4700::1111": true, "2a00:1450:4001:810::200e": true, "::ffff:8.8.8.8": true,
		"127.0.0.1": false, "127.255.255.254": false, "::1": false, "0.0.0.0": false, "0.1.2.3": false, "::": false,
		"10.0.0.1": false, "172.16.0.1": false, "172.31.255.255": false, "192.168.1.1": false, "fd00::1": false, "fc00::1": false,
		"169.254.169.254": false, "fe80::1": false, "fe80::1%eth0": false, "fec0::1": false,
		"100.64.0.1": false, "100.127.255.254": false, "100.100.100.200": false,
		"224.0.0.1": false, "239.255.255.255": false, "ff02::1": false, "255.255.255.255": false, "240.0.0.1": false,
		"192.0.0.192": false, "192.0.2.1": false, "198.18.0.1": false, "198.51.100.1": false, "203.0.113.1": false,
		"::ffff:127.0.0.1": false, "::ffff:10.0.0.1": false, "::ffff:169.254.169.254": false, "::7f00:1": false,
		"64:ff9b::7f00:1": false, "64:ff9b::a9fe:a9fe": false, "64:ff9b::808:808": true, "2002:808:808::1": true, "64:ff9b:1::1": false, "2001::1": false, "2001:db8::1": false, "2002:7f00:1::": false, "2002:a00:1::1": false,
		"3fff::1": false, "100::1": false, "5f00::1": false,
	} {
		err := publicnet.Policy{}.Check(netip.MustParseAddr(addr))
		if (err == nil) != public {
			t.Errorf("Check(%s) = %v, want public: %v", addr, err, public)
		}
	}
	if err := (publicnet.Policy{}).Check(netip.Addr{}); err == nil {
		t.Error("an address that is none passes")
	}
}

func TestOperatorAllowsNetworks(t *testing.T) {
	t.Parallel()
	p, err := publicnet.Parse(" 10.1.0.0/16, 127.0.0.1 ,fd00::/8,::ffff:10.9.9.9")
	if err != nil {
		t.Fatal(err)
	}
	for addr, ok := range map[string]bool{
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "10.2.0.1": false, "127.0.0.1": true, "127.0.0.2": false, "fd12::1": true, "fe80::1": false, "10.9.9.9": true,
	} {
		if err := p.Check(netip.MustParseAddr(addr)); (err == nil) != ok {
			t.Errorf("Check(%s) = %v, want allowed: %v", addr, err, ok)
		}
	}
	for addr, ok := range map[string]bool{"10.1.2.3": true, "8.8.8.8": false, "2606:4700:4700::1111": false} {
		if err := p.Only().Check(netip.MustParseAddr(addr)); (err == nil) != ok {
			t.Errorf("only what is listed: Check(%s) = %v, want allowed: %v", addr, err, ok)
		}
	}
	for _, bad := range []string{"localhost", "10.0.0.0/33", "10.0.0.0/8;11.0.0.0/8", "fe80::1%eth0", "::ffff:10.0.0.0/104"} {
		if _, err := publicnet.Parse(bad); err == nil || !strings.Contains(err.Error(), "allowed are") {
			t.Errorf("Parse(%q) = %v, want an error that says what is allowed", bad, err)
		}
	}
}

// The check applies to the dialed address: a name, an odd spelling of an address and
// a redirect all lead to it.
func TestConnectionsAreCheckedAsTheyAreMade(t *testing.T) {
	t.Parallel()
	reached := make(chan string, 16)
	inner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reached <- r.URL.Path
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "http://127.0.0.2:1/secret", http.StatusFound)
		}
	}))
	defer inner.Close()
	port := inner.Listener.Addr().(interface{ AddrPort() netip.AddrPort }).AddrPort().Port()

	get := func(p publicnet.Policy, address string) error {
		transport := p.Transport(5 * time.Second)
		defer transport.CloseIdleConnections()
		client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
		u, err := url.Parse(address)
		if err != nil {
			return err
		}
		u.Host = u.Hostname()
		if strings.Contains(u.Host, ":") {
			u.Host = "[" + u.Host + "]"
		}
		u.Host += ":" + netip.AddrPortFrom(netip.IPv4Unspecified(), port).String()[len("0.0.0.0:"):]
		req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, u.String(), nil)
		if err != nil {
			return err
		}
		r, err := client.Do(req)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		_, err = io.Copy(io.Discard, r.Body)
		return err
	}
	for _, host := range []string{"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]"} {
		err := get(publicnet.Policy{}, "http://"+host+"/"+host)
		if refused := (*publicnet.RefusedError)(nil); !errors.As(err, &refused) {
			t.Errorf("%s: got %v, want it refused", host, err)
		}
	}
	// Spellings of 127.0.0.1 that some resolvers accept: no connection is made.
	for _, host := range []string{"2130706433", "0x7f000001", "0177.0.0.1", "127.1"} {
		if err := get(publicnet.Policy{}, "http://"+host+"/"); err == nil {
			t.Errorf("%s is reached", host)
		}
	}
	if len(reached) > 0 {
		t.Fatalf("%s reached an address that is not public", <-reached)
	}

	local, err := publicnet.Parse("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	if err := get(local, "http://127.0.0.1/allowed"); err != nil {
		t.Errorf("an allowed address: %v", err)
	}
	err = get(local, "http://127.0.0.1/away")
	if refused := (*publicnet.RefusedError)(nil); !errors.As(err, &refused) {
		t.Errorf("a redirect to an address that is not allowed: got %v, want it refused", err)
	}
}

// The list for rules of other programs says the same as the check of this package.
func TestNetworksOutsideOfSpecial4ArePublic(t *testing.T) {
	t.Parallel()
	agree := func(a netip.Addr) {
		t.Helper()
		listed := slices.ContainsFunc(publicnet.Special4(), func(p netip.Prefix) bool { return p.Contains(a) })
		if public := (publicnet.Policy{}).Check(a) == nil; public == listed {
			t.Errorf("%s: public is %v, in the list: %v", a, public, listed)
		}
	}
	for _, p := range publicnet.Special4() { // the borders of each network
		last := p.Addr().As4()
		for i := p.Bits(); i < 32; i++ {
			last[i/8] |= 1 << (7 - i%8)
		}
		for _, a := range []netip.Addr{p.Addr(), p.Addr().Prev(), netip.AddrFrom4(last), netip.AddrFrom4(last).Next()} {
			if a.Is4() {
				agree(a)
			}
		}
	}
	for i := range 1 << 16 {
		agree(netip.AddrFrom4([4]byte{byte(i >> 8), byte(i), 7, 7}))
	}
}
