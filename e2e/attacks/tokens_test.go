package attacks_test

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/spec"
)

func streamOfRevoked(a *attempt) {
	token, err := a.API.CreateToken(a.t.Context(), spec.NewToken{Name: "revoked", Tenant: victim, Role: spec.RoleUser})
	if err != nil {
		a.t.Fatal(err)
	}
	id := a.submit(a.victim, nil, "lines", "100000", "200ms")
	defer a.call(a.victim, "POST", "/v1/jobs/"+string(id)+"/cancel", "")
	a.running(id)
	streams := map[string]chan struct{}{
		"log":    a.stream(token.Secret, "/v1/jobs/"+string(id)+"/logs?follow=true"),
		"events": a.stream(token.Secret, "/v1/jobs/"+string(id)+"/events"),
	}
	for what, closed := range streams {
		select {
		case <-closed:
			a.t.Fatalf("the %s ended before the token was revoked", what)
		case <-time.After(500 * time.Millisecond):
		}
	}
	if err := a.API.RevokeToken(a.t.Context(), token.ID); err != nil {
		a.t.Fatal(err)
	}
	for what, closed := range streams {
		took := a.within(soon(), "end of the "+what, func() bool {
			select {
			case <-closed:
				return true
			default:
				return false
			}
		})
		a.saw("%s closed after %.1f s", what, took.Seconds())
	}
}

// stream follows a stream of events. It closes the returned channel when the server has ended the stream.
func (a *attempt) stream(token, path string) chan struct{} {
	a.t.Helper()
	req, err := http.NewRequestWithContext(a.t.Context(), "GET", a.URL+path, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Accept", "text/event-stream")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = res.Body.Close() })
	kind := res.Header.Get("Content-Type")
	if res.StatusCode != http.StatusOK || !strings.HasPrefix(kind, "text/event-stream") {
		a.t.Fatalf("follow %s: %d %s", path, res.StatusCode, kind)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_, _ = io.Copy(io.Discard, res.Body) // any end counts
	}()
	return closed
}

func badTokens(a *attempt) {
	expired, err := a.API.CreateToken(a.t.Context(), spec.NewToken{
		Name: "expired", Tenant: victim, TTL: spec.Duration(time.Minute),
	})
	if err != nil {
		a.t.Fatal(err)
	}
	if _, err := a.DB.Exec(a.t.Context(),
		`UPDATE tokens SET expires_at = now() - interval '1 minute' WHERE id = $1`, expired.ID); err != nil {
		a.t.Fatal(err)
	}
	revoked, err := a.API.CreateToken(a.t.Context(), spec.NewToken{Name: "revoked", Tenant: victim})
	if err != nil {
		a.t.Fatal(err)
	}
	if err := a.API.RevokeToken(a.t.Context(), revoked.ID); err != nil {
		a.t.Fatal(err)
	}
	code := regexp.MustCompile(`"code":"(\w+)"`)
	for what, token := range map[string]string{
		"none": "", "malformed": "berth_x", "unknown": "berth_000000000000_" + strings.Repeat("0", 64),
		"expired": expired.Secret, "revoked": revoked.Secret,
		"changed": a.victim[:len(a.victim)-1] + string('0'+(a.victim[len(a.victim)-1]&1^1)),
	} {
		got := a.callFrom("127.0.0.5", token, "GET", "/v1/jobs", "")
		if m := code.FindSubmatch(got.Body); got.Status != 401 || m == nil || string(m[1]) != "unauthorized" {
			a.breach("%s: %d %s", what, got.Status, got.clipped())
		}
	}
	a.saw("401 unauthorized for each of 6")
}

func guesses(a *attempt) {
	const from = "127.0.0.6" // the victim calls from the same address
	const enough, most = 500, 20_000
	var mu sync.Mutex
	count, tried := map[int]int{}, 0
	more := func() bool {
		mu.Lock()
		defer mu.Unlock()
		tried++
		return count[429] < enough && tried <= most
	}
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for more() {
				guess := "berth_" + berth.NewSecret()[:12] + "_" + berth.NewSecret()
				status := a.callFrom(from, guess, "GET", "/v1/jobs", "").Status
				mu.Lock()
				count[status]++
				mu.Unlock()
			}
		})
	}
	good := 0
	for range 10 {
		got := a.callFrom(from, a.victim, "GET", "/v1/whoami", "")
		if got.Status == 401 || got.Status == 429 {
			a.breach("a good token beside the guesses: %d %s", got.Status, got.clipped())
		}
		good++
	}
	callers.Wait()
	if count[429] < enough || count[200] > 0 {
		a.breach("answers to guesses: %v", count)
	}
	a.saw("answers to guesses: %v; %d good calls pass beside them", count, good)
}

func tokenTable(a *attempt) {
	_, secret, _ := strings.Cut(strings.TrimPrefix(a.victim, "berth_"), "_")
	sum := sha256.Sum256([]byte(secret))
	var text string
	err := a.DB.QueryRow(a.t.Context(), `SELECT string_agg(t::text, E'\n') FROM tokens t`).Scan(&text)
	if err != nil {
		a.t.Fatal(err)
	}
	if strings.Contains(text, secret) || strings.Contains(text, a.victim) {
		a.breach("the table has the token: %s", text)
	}
	full := sha256.Sum256([]byte(a.victim))
	if !strings.Contains(text, hex.EncodeToString(sum[:])) && !strings.Contains(text, hex.EncodeToString(full[:])) {
		a.breach("the table has no SHA-256 of the token: %s", text)
	}
	if len(secret) < 43 { // 256 bits have 43 characters in base64, 64 in hexadecimal
		a.breach("a secret of %d characters", len(secret))
	}
	a.saw("SHA-256 alone, secrets of %d characters", len(secret))
}

func canaries(a *attempt) {
	token := a.token(victim, spec.RoleUser)
	_, secret, _ := strings.Cut(strings.TrimPrefix(token, "berth_"), "_")
	a.refused("token in the address",
		a.call("", "GET", "/v1/jobs?token="+token+"&access_token="+token, ""), 400, 401, 422)
	a.call(token, "POST", "/v1/jobs", `{"token": "`+token+`"}`)
	a.call(token, "GET", "/v1/jobs/"+token, "")
	a.must(token, "POST", "/v1/jobs", a.job(nil, "exit", "0"))
	if found := a.scan(secret); len(found) > 0 {
		a.breach("the token is in %v", found)
	}
	var events string
	err := a.DB.QueryRow(a.t.Context(), `SELECT coalesce(string_agg(e::text, ' '), '') FROM job_events e`).Scan(&events)
	if err != nil {
		a.t.Fatal(err)
	}
	if strings.Contains(events, secret) {
		a.breach("the token is in an event")
	}
	a.saw("in no log, file or event")
}

func debugRoutes(a *attempt) {
	for _, path := range []string{
		"/debug/pprof/", "/debug/vars", "/debug/pprof/profile", "/v0/jobs", "/v2/jobs", "/api/v1/jobs", "/.git/config",
		"/server-status",
	} {
		a.refused(path, a.callFrom("127.0.0.7", a.attacker, "GET", path, ""), 404)
	}
	a.refused("old protocol of agents", a.callFrom("127.0.0.7", a.attacker, "GET", "/agent/v0/sync", ""), 403, 404)
	// A caller on the same host needs no token for metrics. The header of a proxy marks this caller as remote.
	a.refused("metrics", a.callFrom("127.0.0.8", "", "GET", "/metrics", "", "X-Forwarded-For", "192.0.2.1"), 401, 404)
	a.refused("metrics as a user",
		a.callFrom("127.0.0.8", a.attacker, "GET", "/metrics", "", "X-Forwarded-For", "192.0.2.1"), 403, 404)
	a.oldTLS()
}

// oldTLS starts a replica of berthd that serves TLS and calls it with old and current versions of TLS.
func (a *attempt) oldTLS() {
	address, pool := a.secured()
	for version, want := range map[uint16]bool{
		tls.VersionTLS10: false, tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true,
	} {
		conn, err := tls.Dial("tcp", address, &tls.Config{
			RootCAs: pool, MinVersion: version, MaxVersion: version, ServerName: "localhost",
		})
		if err == nil {
			_ = conn.Close()
		}
		if (err == nil) != want {
			a.breach("%s: %v", tls.VersionName(version), err)
		}
	}
	a.saw("TLS 1.0 and 1.1 refused")
}
