package attacks_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"

	"berth"
	"berth/e2e/rig"
)

// canary is a server on the host that neither a container nor Berth may connect to. It counts the connections.
type canary struct {
	port  string
	calls atomic.Int64
}

// newCanary listens on all addresses of the host.
func (a *attempt) newCanary() *canary {
	a.t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		a.t.Fatal(err)
	}
	c := &canary{}
	if _, c.port, err = net.SplitHostPort(l.Addr().String()); err != nil {
		a.t.Fatal(err)
	}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }),
		ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				c.calls.Add(1)
			}
		},
	}
	go func() { _ = server.Serve(l) }() // returns when the server is closed
	a.t.Cleanup(func() { _ = server.Close() })
	return c
}

func privateAddresses(a *attempt) {
	c := a.newCanary()
	hosts := []string{
		"127.0.0.1", "[::1]", "localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "[::ffff:127.0.0.1]",
		"0.0.0.0", "[::]",
	}
	// A public address of this host would be allowed.
	if own := hostAddress(netip.Addr.IsPrivate); own != "" {
		hosts = append(hosts, own)
	}
	for _, metadata := range []string{
		"https://169.254.169.254/latest/", "https://10.1.2.3/", "https://[fd00:ec2::254]/",
	} {
		a.submit(a.attacker, map[string]any{"notify": []any{map[string]any{"url": metadata}}}, "exit", "0")
	}
	// A name that does not resolve may resolve later, so Berth repeats calls to the name for a day. Berth gives up
	// calls to a private address at once.
	var webhooks, final, inputs []berth.JobID
	for _, host := range hosts {
		address := "https://" + host + ":" + c.port + "/x"
		for what, more := range map[string]map[string]any{
			"webhook": {"notify": []any{map[string]any{"url": address}}},
			"input":   {"inputs": []any{map[string]any{"from": address, "to": "/in/x"}}},
			"bucket": {"inputs": []any{map[string]any{
				"from": "s3://bucket/x", "to": "/in", "endpoint": "https://" + host + ":" + c.port,
			}}},
		} {
			got := a.call(a.attacker, "POST", "/v1/jobs", a.job(more, "exit", "0"))
			switch {
			case got.Status == 422:
			case !got.Good():
				a.breach("%s %s: %d %s", what, address, got.Status, got.clipped())
			case what == "webhook":
				webhooks = append(webhooks, jobID(got.Body))
				if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
					final = append(final, jobID(got.Body))
				}
			default:
				inputs = append(inputs, jobID(got.Body))
			}
		}
	}
	for _, id := range inputs {
		if j := a.ended(id); j.Status != berth.Failed {
			a.breach("a job whose input is private %s: %v", j.Status, j.Reason)
		}
	}
	for _, id := range webhooks {
		a.ended(id)
	}
	// Berth gives up a forbidden call and records an event of the job.
	err := rig.Await(a.t.Context(), rig.Patience, a.givenUp(final))
	if err != nil {
		a.breach("webhooks: %v", err)
	}
	if n := c.calls.Load(); n > 0 {
		a.breach("%d connections came", n)
	}
	a.saw("%d webhooks and %d inputs accepted, none connected", len(webhooks), len(inputs))
}

// hostAddress returns an IPv4 address of this host that is neither loopback nor link-local and that fits, or "" if the
// host has none.
func hostAddress(fits func(netip.Addr) bool) string {
	addresses, _ := net.InterfaceAddrs() // a host without addresses is valid
	for _, a := range addresses {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || !p.Addr().Is4() || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if fits(p.Addr()) {
			return p.Addr().String()
		}
	}
	return ""
}

// givenUp returns a check that each of the jobs has an event about a webhook that was given up.
func (a *attempt) givenUp(ids []berth.JobID) func(context.Context) error {
	return func(context.Context) error {
		for _, id := range ids {
			events := string(a.must(a.attacker, "GET", "/v1/jobs/"+string(id)+"/events", ""))
			if !strings.Contains(events, "gave up calling notify[0]") {
				return fmt.Errorf("job %s has no event of its webhook: %s", id, events)
			}
		}
		return nil
	}
}
