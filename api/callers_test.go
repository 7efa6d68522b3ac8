package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/api"
	"berth/db/dbtest"
	"berth/spec"
	"berth/wire"
)

// guess is a token of the right form that opens nothing.
func guess(n int) string { return fmt.Sprintf("berth_%012x_%064x", n, n) }

// wrongly makes the i-th call of a stranger, who has no token or guesses one, as a
// user or an agent, and returns the status of the answer.
func (s *site) wrongly(i int) int {
	s.t.Helper()
	method, path, body := "GET", "/v1/jobs", ""
	if i%2 == 1 {
		method, path, body = "POST", "/agent/v1/sync", "{}"
	}
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Error(err)
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	if i%4 > 1 {
		req.Header.Set("Authorization", "Bearer "+guess(i))
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Error(err)
		return 0
	}
	_ = res.Body.Close()
	return res.StatusCode
}

// from calls the handler as if the connection came from an address.
func (s *site) from(remote, token string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", "/v1/jobs", nil)
	r.RemoteAddr = remote
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.server.Handler().ServeHTTP(w, r)
	return w
}

// half opens a connection and sends the head of a request and a part of its body.
func (s *site) half(head, body string) net.Conn {
	s.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, head+"\r\nHost: berth\r\nContent-Type: application/json\r\n\r\n"+body); err != nil {
		s.t.Fatal(err)
	}
	return c
}

// answered reports whether the server has sent anything or closed the connection.
func answered(t *testing.T, c net.Conn) bool {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	_, err := c.Read(make([]byte, 1))
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// status reads the answer of a connection and reports whether the server closed
// it after that.
func status(t *testing.T, c net.Conn) (code int, closed bool) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(waitLimit)); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_, err = in.ReadByte()
	return res.StatusCode, err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

func TestAGoodTokenPassesWhateverElseItsAddressSends(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	m := s.joinMachine("m1")
	s.server.StopRates()
	const calls = 1200
	var mu sync.Mutex
	statuses := map[int]int{}
	var all sync.WaitGroup
	for worker := range 16 {
		all.Go(func() {
			for i := worker; i < calls; i += 16 {
				status := s.wrongly(i)
				mu.Lock()
				statuses[status]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	// Users and agents each may guess 100 times at once.
	want := map[int]int{http.StatusUnauthorized: 200, http.StatusTooManyRequests: calls - 200}
	if !maps.Equal(statuses, want) {
		t.Errorf("%d calls without a good token: %v, want %v", calls, statuses, want)
	}
	if a := s.call("alice", "GET", "/v1/jobs", ""); a.status != http.StatusOK {
		t.Errorf("a good token of that address: %d %s", a.status, a.body)
	}
	if a := s.call("bob", "GET", "/v1/jobs", ""); a.status != http.StatusOK {
		t.Errorf("a good token never seen before: %d %s", a.status, a.body)
	}
	m.post("sync", wire.SyncRequest{AgentBoot: m.boot, Epoch: m.epoch, Seq: 1}, &wire.SyncResponse{})
	s.joinMachine("m2")
	metrics := s.call("", "GET", "/metrics", "").body
	if line := `berth_http_wrong_tokens_total{caller="user",status="429"} 500`; !strings.Contains(metrics, line) {
		t.Errorf("the metrics lack %s", line)
	}
}

func TestGuessesOfTheRightFormTakeOneConnection(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	ctx := t.Context()
	pool := s.beside()
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `LOCK TABLE tokens IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	locked := time.Now()
	var wg sync.WaitGroup
	var begun, refused, late atomic.Int64
	for i := range 100 {
		wg.Go(func() {
			begun.Add(1)
			switch s.from("192.0.2.1:1", guess(i)).Code {
			case http.StatusUnauthorized, http.StatusTooManyRequests:
				refused.Add(1)
			case http.StatusServiceUnavailable:
				late.Add(1)
			}
		})
	}
	waiting := func() (n int) {
		if err := pool.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	eventually(t, "a guess waits for the table", func() bool { return begun.Load() == 100 && waiting() > 0 })
	for range 20 { // more would come within this time, if any did
		if n := waiting(); n > 1 {
			t.Fatalf("%d connections look up what nobody knows", n)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	held := time.Since(locked)
	wg.Wait()
	// A query is given up after ten seconds.
	if n := late.Load(); refused.Load()+n != 100 || n > 0 && held < 9*time.Second {
		t.Errorf("%d of 100 guesses were refused, and %d not answered with the table locked for %s", refused.Load(), n, held)
	}
}

func TestTextsThatAreNoTokensAreRefusedWithoutALookUp(t *testing.T) {
	t.Parallel()
	proxy := breaking(t, dbtest.URL(t))
	s := newSiteAt(t, proxy.url, nil)
	proxy.close()
	for _, token := range []string{"", "x", "berth_short_x", "berthjoin_" + strings.Repeat("0", 12) + "_" + strings.Repeat("0", 64), strings.Repeat("x", 10_000)} {
		if w := s.from("192.0.2.1:1", token); w.Code != http.StatusUnauthorized {
			t.Errorf("%.30q while the database is away: %d", token, w.Code)
		}
	}
}

func TestAddressesAreThoseOfTheClientBehindTrustedProxies(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(d *api.Deps) { d.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} })
	s.server.StopRates()
	spend := func(remote string, header ...string) {
		t.Helper()
		for range 100 {
			s.from(remote, "", header...)
		}
	}
	want := func(claim string, status int, remote string, header ...string) {
		t.Helper()
		if got := s.from(remote, "", header...).Code; got != status {
			t.Errorf("%s: %d, want %d", claim, got, status)
		}
	}
	const ff = "X-Forwarded-For"
	spend("10.0.0.1:1", ff, "203.0.113.9, 192.0.2.7")
	want("the client that the proxy names", 429, "10.0.0.2:1", ff, "198.51.100.1, 192.0.2.7")
	want("another client of the proxy", 401, "10.0.0.1:1", ff, "203.0.113.9, 192.0.2.8")
	want("what the client itself says is not believed", 401, "10.0.0.1:1", ff, "192.0.2.7, 192.0.2.9")
	spend("192.0.2.50:1", ff, "192.0.2.51")
	want("nobody else's header is believed", 401, "192.0.2.51:1")
	want("the sender of that header is counted", 429, "192.0.2.50:1", ff, "192.0.2.52")
	spend("[2001:db8:0:1::1]:1")
	want("an address of the same /64", 429, "[2001:db8:0:1:ffff::2]:1")
	want("an address of another /64", 401, "[2001:db8:0:2::1]:1")
	spend("[::ffff:192.0.2.60]:1")
	want("an IPv4 address inside IPv6", 429, "192.0.2.60:1")
}

func TestOnlyTheLeastRecentlyUsedIsForgotten(t *testing.T) {
	t.Parallel()
	r := api.NewRecent(3)
	for i, key := range []string{"a", "b", "c"} {
		r.Put(key, i)
	}
	r.Get("a")
	r.Put("d", 3)
	for key, want := range map[string]bool{"a": true, "b": false, "c": true, "d": true} {
		if _, ok := r.Get(key); ok != want {
			t.Errorf("%s is remembered: %v", key, ok)
		}
	}
}

func TestJoinsAreJudgedBeforeTheirBodyAndEndInTime(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.joinMachine("by-body") // as agents of the version before do
	wrong := "Authorization: Bearer berthjoin_" + strings.Repeat("0", 12) + "_" + strings.Repeat("0", 64)
	if code, closed := status(t, s.half("POST /agent/v1/join HTTP/1.1\r\nContent-Length: 100\r\n"+wrong, "")); code != http.StatusUnauthorized || !closed {
		t.Errorf("a wrong join token without a body: %d, closed %v", code, closed)
	}
	var open []net.Conn
	for range 60 {
		open = append(open, s.half("POST /agent/v1/join HTTP/1.1\r\nContent-Length: 15728640", `{"token":"`))
	}
	token := s.joinToken()
	s.tokens["join"] = token
	if a := s.call("join", "POST", "/agent/v1/join", `{"machine":"by-header"}`); a.status != http.StatusCreated {
		t.Errorf("a join by header: %d %s", a.status, a.body)
	}
	for _, c := range open[:8] {
		if code, closed := status(t, c); code < 400 || !closed {
			t.Errorf("an unfinished join: %d, closed %v", code, closed)
		}
	}
	s.tokens["join"] = s.joinToken()
	if a := s.call("join", "POST", "/agent/v1/join", `{"machine":"long","token":"`+strings.Repeat("x", 50_000)+`"}`); a.status != http.StatusRequestEntityTooLarge {
		t.Errorf("a join of 5000 bytes: %d %s", a.status, a.body)
	}
	if a := s.call("join", "POST", "/agent/v1/join", `{"machine":"long","token":"x"}`); a.status != http.StatusCreated {
		t.Errorf("the token of the header counts, and is not spent by a refusal: %d %s", a.status, a.body)
	}
}

func (s *site) joinToken() string {
	s.t.Helper()
	var made wire.JoinToken
	if err := json.Unmarshal([]byte(s.call("admin", "POST", "/v1/join-tokens", "{}").body), &made); err != nil {
		s.t.Fatal(err)
	}
	return made.Secret
}

func TestSilentBodiesHoldNoSlots(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	var silent []net.Conn
	beside := func() bool {
		silent = nil
		for range 60 {
			silent = append(silent, s.half("POST /v1/plans HTTP/1.1\r\nContent-Length: 100\r\nAuthorization: Bearer "+s.tokens["viewer"], `{"name":`))
		}
		for range 20 { // the connections above are served one by one
			if a := s.call("bob", "GET", "/v1/jobs", ""); a.status != http.StatusOK {
				t.Fatalf("a call beside silent ones: %d %s", a.status, a.body)
			}
		}
		return !slices.ContainsFunc(silent, func(c net.Conn) bool { return answered(t, c) })
	}
	if !ever(beside) {
		t.Fatal("the other tenant's call had to wait until a silent one was given up")
	}
	if code, closed := status(t, silent[0]); code != http.StatusRequestTimeout || !closed {
		t.Errorf("a silent body: %d, closed %v", code, closed)
	}
}

func TestBodiesThatAreTooLongEndTheirConnection(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	for name, head := range map[string]string{
		"announced":     "POST /v1/jobs HTTP/1.1\r\nContent-Length: 104857600",
		"without end":   "POST /v1/jobs HTTP/1.1\r\nTransfer-Encoding: chunked",
		"not asked for": "GET /v1/jobs HTTP/1.1\r\nContent-Length: 104857600",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := "x"
			if strings.Contains(head, "chunked") {
				body = "200000\r\n" + strings.Repeat("x", 2<<20)
			}
			c := s.half(head+"\r\nAuthorization: Bearer "+s.tokens["alice"], body)
			stop := make(chan struct{})
			t.Cleanup(func() { close(stop) })
			go func() { // ends when the test does, or the connection
				for tick := time.NewTicker(50 * time.Millisecond); ; {
					select {
					case <-stop:
						tick.Stop()
						return
					case <-tick.C:
						if _, err := io.WriteString(c, "x"); err != nil {
							return
						}
					}
				}
			}()
			if code, closed := status(t, c); code != http.StatusRequestEntityTooLarge || !closed {
				t.Errorf("%d, closed %v", code, closed)
			}
		})
	}
}

func TestATenantsCallsLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	job := "/v1/jobs/" + string(s.submit("alice", nil).ID)
	for _, c := range []struct{ table, method, path, othersMethod, others string }{
		{"jobs", "GET", "/v1/jobs", "GET", "/v1/secrets"},
		{"tenants", "GET", job + "/explain", "GET", "/v1/jobs"},
		{"jobs", "GET", job + "/explain", "GET", "/v1/secrets"},
		{"job_events", "GET", job + "/events", "GET", "/v1/jobs"},
		{"jobs", "GET", job + "/logs?follow=true", "GET", "/v1/secrets"},
		{"jobs", "GET", job + "/outputs/model", "GET", "/v1/secrets"},
		{"secrets", "DELETE", "/v1/secrets/none", "POST", "/v1/jobs"},
	} {
		other := func() time.Duration {
			t.Helper()
			began, body := time.Now(), ""
			if c.othersMethod == "POST" {
				body = small
			}
			if a := s.call("bob", c.othersMethod, c.others, body); a.status >= 300 {
				t.Errorf("%s %s beside calls %s %s that wait for %s: %d %s", c.othersMethod, c.others, c.method, c.path, c.table, a.status, a.body)
			}
			return time.Since(began)
		}
		var alone, took time.Duration
		if !ever(func() bool {
			alone = other()
			defer s.crowd(c.table, c.method, c.path)()
			took = max(other(), other(), other())
			return took < 2*time.Second+10*alone && s.waitingForLocks() > 0 // all that time
		}) {
			t.Errorf("%s %s took %s beside calls %s %s that wait for %s, and %s alone", c.othersMethod, c.others, took, c.method, c.path, c.table, alone)
		}
	}
}

// ever tries a few times to make a call while others are stuck. The server gives those
// up after 10 or 15 s, so that one try proves nothing on a machine that was slow just
// then; calls that do wait for the others fail each time.
func ever(beside func() bool) bool {
	for range 4 {
		if beside() {
			return true
		}
	}
	return false
}

// crowd has alice make a hundred calls that wait for a table, until leave is called.
func (s *site) crowd(table, method, path string) (leave func()) {
	s.t.Helper()
	release := s.lock(table)
	ctx, cancel := context.WithCancel(s.t.Context())
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			r := httptest.NewRequestWithContext(ctx, method, path, nil)
			r.Header.Set("Authorization", "Bearer "+s.tokens["alice"])
			s.server.Handler().ServeHTTP(httptest.NewRecorder(), r)
		})
	}
	// Questions are refused once the queue is full.
	eventually(s.t, "a crowd of calls", func() bool { return s.server.OpenCalls() >= 30 && s.waitingForLocks() > 0 })
	return func() {
		release()
		cancel()
		wg.Wait()
	}
}

// lock locks a table, which all statements on it wait for, until release is called.
func (s *site) lock(table string) (release func()) {
	s.t.Helper()
	conn, err := pgx.ConnectConfig(s.t.Context(), s.db.Pool().Config().ConnConfig.Copy())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(s.t.Context(), `BEGIN; LOCK TABLE `+table+` IN ACCESS EXCLUSIVE MODE`); err != nil {
		s.t.Fatal(err)
	}
	return func() { _ = conn.Close(context.Background()) }
}

// waitingForLocks returns how many statements wait for a lock.
func (s *site) waitingForLocks() (n int) {
	s.t.Helper()
	if err := s.beside().QueryRow(s.t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// unreadSite has a list of jobs of 300 KB. Readers must take 64 KiB within stall.
func unreadSite(t *testing.T, stall time.Duration, edit ...func(*api.Deps)) *site {
	s := newSite(t, func(d *api.Deps) {
		d.Transfers = api.TransferLimits{Stall: stall}
		for _, f := range edit {
			f(d)
		}
	})
	labels := map[string]string{}
	for i := range spec.MaxLabels {
		labels[fmt.Sprint("label-", i)] = strings.Repeat("x", 256)
	}
	for range 16 {
		s.submit("alice", func(j *spec.Job) { j.Labels = labels })
	}
	return s
}

// asks opens a connection that asks again and again, and reads nothing.
func (s *site) asks() {
	s.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	request := "GET /v1/jobs?limit=1000 HTTP/1.1\r\nHost: berth\r\nAuthorization: Bearer " + s.tokens["viewer"] + "\r\n\r\n"
	if _, err := io.WriteString(c, strings.Repeat(request, 100)); err != nil {
		s.t.Fatal(err)
	}
}

func TestAnswersThatAreNotReadHoldNoSlots(t *testing.T) {
	t.Parallel()
	s := unreadSite(t, time.Hour) // so that calls that have to wait for them do not end in time
	for range 4 {                 // some megabytes of answers go into the buffers of each
		s.asks()
	}
	eventually(t, "an end of all calls before their answers are read", func() bool { return s.server.UnreadAnswers() > 0 && s.server.OpenCalls() == 0 })
	for _, name := range []string{"alice", "bob"} {
		if a := s.call(name, "GET", "/v1/jobs?limit=1", ""); a.status != http.StatusOK {
			t.Errorf("a call of %s: %d %s", name, a.status, clipped(a.body))
		}
	}
}

func TestAnswersThatNobodyReadsEnd(t *testing.T) {
	t.Parallel()
	s := unreadSite(t, time.Second)
	s.asks()
	eventually(t, "an answer that is not read", func() bool { return s.server.UnreadAnswers() > 0 })
	eventually(t, "the end of answers that nobody reads", func() bool { return s.server.UnreadAnswers() == 0 && s.server.OpenCalls() == 0 })
}

func TestATenantThatReadsNothingIsRefused(t *testing.T) {
	t.Parallel()
	u := api.NewUnread()
	var taken []func()
	for range 4 {
		taken = append(taken, u.Add("a", 4<<20))
	}
	err := u.Refuses("a")
	if berth.CodeOf(err) != berth.CodeUnavailable || !strings.Contains(err.Error(), "tenant a") {
		t.Errorf("with 16 MiB unread: %v", err)
	}
	for i := range 14 {
		u.Add(berth.TenantID(fmt.Sprint("other-", i)), 10<<20)
	}
	if err := u.Refuses("b"); err != nil {
		t.Errorf("a tenant that reads: %v", err)
	}
	if err := u.Refuses("other-1"); err == nil {
		t.Error("with too much unread in all, a tenant with 10 MiB of it is not refused")
	}
	for _, f := range taken {
		f()
	}
	if err := u.Refuses("a"); err != nil {
		t.Errorf("once all is read: %v", err)
	}
}

func TestReadinessAsksOnceASecondForAll(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	s := newSite(t, func(d *api.Deps) {
		d.Checks = []api.Check{{Name: "temporal", Run: func(context.Context) error {
			asked.Add(1)
			return nil
		}}}
	})
	began := time.Now()
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			if status, body := s.probe("GET"); status != http.StatusOK && status != http.StatusServiceUnavailable {
				t.Errorf("%d %s", status, body)
			}
		})
	}
	wg.Wait()
	if most := 1 + int64(time.Since(began)/time.Second); asked.Load() > most {
		t.Errorf("200 calls asked a dependency %d times, want at most %d", asked.Load(), most)
	}
}
