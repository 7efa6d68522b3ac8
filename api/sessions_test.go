package api_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"berth"
	"berth/api"
	"berth/internal/lib/framed"
	"berth/internal/lib/poll"
	"berth/wire"
)

// session asks for a session in a job, which runs from then on if it does not yet.
func (s *site) session(name string, job berth.JobID) (id string) {
	s.t.Helper()
	if _, err := s.db.Jobs.Load(s.t.Context(), job); err != nil {
		s.t.Fatal(err)
	}
	s.exec(`UPDATE jobs SET state = 'scheduled', version = version + 1, attempt = 1, actor = 'leader' WHERE id = $1 AND state = 'queued'`, job)
	s.exec(`UPDATE jobs SET state = 'running', version = version + 1, actor = 'leader' WHERE id = $1 AND state = 'scheduled'`, job)
	s.exec(`INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli, state, phase)
		VALUES ($1, 1, 0, 'm1', 1, 10, 10, 0, 0, 'active', 'running') ON CONFLICT DO NOTHING`, job)
	a := s.call(name, "POST", "/v1/jobs/"+string(job)+"/sessions", `{"command": ["sh"]}`)
	var made wire.JobSession
	if err := json.Unmarshal([]byte(a.body), &made); err != nil || a.status != http.StatusCreated {
		s.t.Fatalf("ask for a session: %d %s", a.status, a.body)
	}
	return made.ID
}

// pairing is a running job of alice on m1, whose agent the test plays.
type pairing struct {
	*site
	agent *agent
	job   berth.JobID
}

// quickly are times of sessions for tests that wait for them.
func quickly(d *api.Deps) {
	d.Sessions.Renew, d.Transfers.Recheck = 20*time.Millisecond, 20*time.Millisecond
}

func newPairing(t *testing.T, edit func(*api.Deps)) *pairing {
	t.Helper()
	s := newSite(t, edit)
	a := s.joinMachine("m1")
	return &pairing{s, a, s.submit("alice", nil).ID}
}

// dial opens a websocket; status is the refusal, 0 for none.
func (s *site) dial(url, name, path string, header ...string) (ws *websocket.Conn, status int) {
	s.t.Helper()
	h := http.Header{"Authorization": {"Bearer " + s.tokens[name]}}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	ws, res, err := websocket.Dial(s.t.Context(), url+path, &websocket.DialOptions{
		HTTPHeader: h, Subprotocols: []string{wire.SessionProtocol},
	})
	if err != nil {
		if res == nil {
			s.t.Fatalf("dial %s: %v", path, err)
		}
		return nil, res.StatusCode
	}
	ws.SetReadLimit(framed.MaxFrame)
	s.t.Cleanup(func() { _ = ws.CloseNow() })
	return ws, 0
}

// user connects a user to a session that it asks for.
func (p *pairing) user(url string) (id string, ws *websocket.Conn) {
	p.t.Helper()
	id = p.session("alice", p.job)
	ws, status := p.dial(url, "alice", "/v1/sessions/"+id)
	if status != 0 {
		p.t.Fatalf("connect to session: %d", status)
	}
	return id, ws
}

// order waits for the order of a session, as the agent does.
func (p *pairing) order(id string) wire.SessionOrder {
	p.t.Helper()
	for digest := ""; ; {
		var r wire.SyncResponse
		p.agent.post("sync", wire.SyncRequest{AgentBoot: p.agent.boot, Epoch: p.agent.epoch, Digest: digest, WaitMS: 1000}, &r)
		for _, o := range r.Sessions {
			if o.ID == id {
				return o
			}
		}
		digest = r.Digest
	}
}

// pair is a whole session, of which the agent's end dials agentURL.
func (p *pairing) pair(userURL, agentURL string) (id string, user, machine *websocket.Conn) {
	p.t.Helper()
	id, user = p.user(userURL)
	o := p.order(id)
	machine, status := p.dial(agentURL, "m1", "/agent/v1/sessions/"+id, wire.HeaderSessionNonce, o.Nonce)
	if status != 0 {
		p.t.Fatalf("agent's connection: %d", status)
	}
	return id, user, machine
}

func send(t *testing.T, ws *websocket.Conn, ch framed.Channel, text string) {
	t.Helper()
	if err := ws.Write(t.Context(), websocket.MessageBinary, append([]byte{byte(ch)}, text...)); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, ws *websocket.Conn, ch framed.Channel, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	_, m, err := ws.Read(ctx)
	if err != nil || framed.Channel(m[0]) != ch || string(m[1:]) != want {
		t.Fatalf("received %q, %v; want %q on channel %d", m, err, want, ch)
	}
}

// closed waits for the end of a connection and returns its cause.
func closed(t *testing.T, ws *websocket.Conn) (wire.SessionCause, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	for {
		if _, _, err := ws.Read(ctx); err != nil {
			if ctx.Err() != nil {
				t.Fatal("the connection stays open")
			}
			cause, message, _ := framed.Closed(err)
			return cause, message
		}
	}
}

// read reads a connection to its end and returns the cause.
func read(ctx context.Context, ws *websocket.Conn) wire.SessionCause {
	for {
		if _, _, err := ws.Read(ctx); err != nil {
			cause, _, _ := framed.Closed(err)
			return cause
		}
	}
}

// ended waits for the record of a session's end.
func (s *site) ended(id string) (cause wire.SessionCause, exit *int) {
	s.t.Helper()
	s.eventually("session is recorded as ended", func() bool {
		err := s.db.Pool().QueryRow(s.t.Context(), `SELECT cause, exit FROM acts WHERE session = $1 AND event = 'ended'`, id).
			Scan(&cause, &exit)
		return err == nil
	})
	return cause, exit
}

func (s *site) eventually(what string, ok func() bool) {
	s.t.Helper()
	if !poll.Until(waitLimit, 50*time.Millisecond, ok) {
		s.t.Fatalf("never: %s", what)
	}
}

func TestASessionJoinsItsTwoEnds(t *testing.T) {
	t.Parallel()
	p := newPairing(t, nil)
	id, user, machine := p.pair(p.url, p.url)
	send(t, user, framed.Stdin, "hello")
	receive(t, machine, framed.Stdin, "hello")
	send(t, machine, framed.Stdout, "good day")
	receive(t, user, framed.Stdout, "good day")
	send(t, machine, framed.Status, `{"exit":3,"cause":"exited"}`)
	receive(t, user, framed.Status, `{"exit":3,"cause":"exited"}`)
	_ = user.Close(websocket.StatusNormalClosure, "")
	if cause, exit := p.ended(id); cause != wire.CauseExited || exit == nil || *exit != 3 {
		t.Errorf("recorded as %s, exit %v", cause, exit)
	}
	var in, out int
	if err := p.db.Pool().QueryRow(t.Context(), `SELECT bytes_in, bytes_out FROM acts WHERE session = $1 AND event = 'ended'`, id).
		Scan(&in, &out); err != nil || in != 5 || out != 8 {
		t.Errorf("%d bytes in and %d out, %v", in, out, err)
	}
	if _, status := p.dial(p.url, "alice", "/v1/sessions/"+id); status != http.StatusNotFound {
		t.Errorf("a second use of the session: %d", status)
	}
}

func TestAViewerAndAnotherTenantGetNoSession(t *testing.T) {
	t.Parallel()
	p := newPairing(t, nil)
	id := p.session("alice", p.job)
	for name, want := range map[string]int{"viewer": http.StatusForbidden, "bob": http.StatusNotFound} {
		if a := p.call(name, "POST", "/v1/jobs/"+string(p.job)+"/sessions", `{"command": ["sh"]}`); a.status != want {
			t.Errorf("%s asks: %d %s", name, a.status, a.body)
		}
	}
	for _, name := range []string{"viewer", "bob", "admin"} {
		if _, status := p.dial(p.url, name, "/v1/sessions/"+id); status != http.StatusNotFound {
			t.Errorf("%s connects to alice's session: %d", name, status)
		}
	}
	if a := p.call("alice", "POST", "/v1/jobs/"+string(p.job)+"/sessions", `{"kind": "exec"}`); a.status != http.StatusUnprocessableEntity {
		t.Errorf("a session without a command: %d %s", a.status, a.body)
	}
}

func TestASessionEndsWithItsReason(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end   func(p *pairing, user, machine *websocket.Conn)
		cause wire.SessionCause
	}{
		"the user leaves":      {func(_ *pairing, user, _ *websocket.Conn) { _ = user.CloseNow() }, wire.CauseClientGone},
		"the machine is cut":   {func(_ *pairing, _, machine *websocket.Conn) { _ = machine.CloseNow() }, wire.CauseMachineGone},
		"the agent stops":      {func(_ *pairing, _, m *websocket.Conn) { go framed.Close(m, wire.CauseAgentStops, "bye") }, wire.CauseAgentStops},
		"the token is revoked": {func(p *pairing, _, _ *websocket.Conn) { p.revoke("alice") }, wire.CauseRevoked},
		"the server stops":     {func(p *pairing, _, _ *websocket.Conn) { p.server.Close() }, wire.CauseServerStops},
		"the member has ended": {func(p *pairing, _, _ *websocket.Conn) { p.exec(`UPDATE allocations SET phase = 'exited'`) }, wire.CauseJobEnded},
		"the attempt is over":  {func(p *pairing, _, _ *websocket.Conn) { p.exec(`UPDATE jobs SET attempt = 2`) }, wire.CauseJobEnded},
		"the row is gone":      {func(p *pairing, _, _ *websocket.Conn) { p.exec(`DELETE FROM job_sessions`) }, wire.CauseJobEnded},
		"a message is too long": {func(_ *pairing, u, _ *websocket.Conn) {
			_ = u.Write(context.Background(), websocket.MessageBinary, make([]byte, framed.MaxFrame+1))
		}, wire.CauseClientGone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPairing(t, quickly)
			id, user, machine := p.pair(p.url, p.url)
			userEnd, machineEnd := make(chan wire.SessionCause, 1), make(chan wire.SessionCause, 1)
			go func() { userEnd <- read(t.Context(), user) }() // as programs do, before the end
			go func() { machineEnd <- read(t.Context(), machine) }()
			c.end(p, user, machine)
			if name != "the row is gone" {
				if cause, exit := p.ended(id); cause != c.cause || exit != nil {
					t.Errorf("recorded as %s, exit %v; want %s without one", cause, exit, c.cause)
				}
			}
			if c.cause != wire.CauseClientGone {
				if cause := <-userEnd; cause != c.cause {
					t.Errorf("the user learns %q", cause)
				}
			}
			if c.cause != wire.CauseMachineGone && c.cause != wire.CauseAgentStops {
				if cause := <-machineEnd; cause != c.cause {
					t.Errorf("the machine learns %q", cause)
				}
			}
		})
	}
}

// revoke revokes the token of a name.
func (s *site) revoke(name string) {
	s.t.Helper()
	id := strings.Split(s.tokens[name], "_")[1]
	if a := s.call("admin", "DELETE", "/v1/tokens/"+id, ""); a.status >= 300 {
		s.t.Fatalf("revoke: %d %s", a.status, a.body)
	}
}

func TestASessionWithoutAnAgentSaysSo(t *testing.T) {
	t.Parallel()
	p := newPairing(t, func(d *api.Deps) { d.Sessions.Dial = 50 * time.Millisecond })
	id, user := p.user(p.url)
	cause, message := closed(t, user)
	if cause != wire.CauseNoAgent || !strings.Contains(message, "machine m1") {
		t.Errorf("the user learns %q, %q", cause, message)
	}
	if cause, _ := p.ended(id); cause != wire.CauseNoAgent {
		t.Errorf("recorded as %s", cause)
	}
}

func TestTheAgentsEndIsProven(t *testing.T) {
	t.Parallel()
	p := newPairing(t, nil)
	p.joinMachine("m2")
	id, _ := p.user(p.url)
	o := p.order(id)
	path := "/agent/v1/sessions/" + id
	if _, status := p.dial(p.url, "m2", path, wire.HeaderSessionNonce, o.Nonce); status != http.StatusNotFound {
		t.Errorf("another machine: %d", status)
	}
	if _, status := p.dial(p.url, "alice", path, wire.HeaderSessionNonce, o.Nonce); status != http.StatusForbidden {
		t.Errorf("a user as the agent: %d", status)
	}
	if _, status := p.dial(p.url, "m1", path, wire.HeaderSessionNonce, "other"); status != http.StatusNotFound {
		t.Errorf("a wrong nonce: %d", status)
	}
	p.exec(`UPDATE machines SET epoch = epoch + 1 WHERE id = 'm1'`)
	if _, status := p.dial(p.url, "m1", path, wire.HeaderSessionNonce, o.Nonce); status != http.StatusNotFound {
		t.Errorf("another epoch: %d", status)
	}
	p.exec(`UPDATE machines SET epoch = epoch - 1 WHERE id = 'm1'`)
	if _, status := p.dial(p.url, "m1", path, wire.HeaderSessionNonce, o.Nonce); status != 0 {
		t.Errorf("the right one: %d", status)
	}
	if _, status := p.dial(p.url, "m1", path, wire.HeaderSessionNonce, o.Nonce); status != http.StatusNotFound {
		t.Errorf("a second connection: %d", status)
	}
}

// replicaOf starts another replica over the same database. Its peers reach it by TLS.
func (s *site) replicaOf(t *testing.T) (url string) {
	t.Helper()
	var web *httptest.Server
	deps := api.Deps{DB: s.db, Control: s.db.Jobs, Logger: discarded(), Version: "test", Rate: 1e6, Burst: 1e6}
	deps.Sessions.Peer = func() (string, string) { return web.URL, certOf(web) }
	server, err := api.New(deps)
	if err != nil {
		t.Fatal(err)
	}
	web = httptest.NewTLSServer(server.Handler())
	t.Cleanup(func() { server.Close(); web.CloseClientConnections(); web.Close(); server.Wait() })
	return web.URL
}

func TestTheTwoEndsOfASessionMeetAcrossReplicas(t *testing.T) {
	t.Parallel()
	p := newPairing(t, nil)
	other := p.replicaOf(t)
	// The user's end is at the other replica, which speaks TLS with a certificate that no
	// authority has signed; users of this test trust it.
	id := p.session("alice", p.job)
	user := p.dialTrusting(other, "/v1/sessions/"+id)
	o := p.order(id)
	machine, status := p.dial(p.url, "m1", "/agent/v1/sessions/"+id, wire.HeaderSessionNonce, o.Nonce)
	if status != 0 {
		t.Fatalf("the agent's connection by the other replica: %d", status)
	}
	send(t, user, framed.Stdin, "hello")
	receive(t, machine, framed.Stdin, "hello")
	send(t, machine, framed.Stdout, strings.Repeat("x", framed.MaxPayload))
	receive(t, user, framed.Stdout, strings.Repeat("x", framed.MaxPayload))
	send(t, machine, framed.Status, `{"exit":0,"cause":"exited"}`)
	receive(t, user, framed.Status, `{"exit":0,"cause":"exited"}`)
	_ = user.Close(websocket.StatusNormalClosure, "")
	if cause, exit := p.ended(id); cause != wire.CauseExited || exit == nil || *exit != 0 {
		t.Errorf("recorded as %s, exit %v", cause, exit)
	}
	closed(t, machine)
	// A replica with another certificate than the recorded one gets nothing.
	id = p.session("alice", p.job)
	_ = p.dialTrusting(other, "/v1/sessions/"+id)
	o = p.order(id)
	p.exec(`UPDATE job_sessions SET replica_cert = repeat('0', 64)`)
	if _, status := p.dial(p.url, "m1", "/agent/v1/sessions/"+id, wire.HeaderSessionNonce, o.Nonce); status != http.StatusServiceUnavailable {
		t.Errorf("a replica with another certificate: %d", status)
	}
	// A connection is forwarded once.
	if _, status := p.dial(p.url, "m1", "/agent/v1/sessions/"+id, wire.HeaderSessionNonce, o.Nonce, wire.HeaderSessionHop, "x"); status != http.StatusServiceUnavailable {
		t.Errorf("a second hop: %d", status)
	}
}

// Cut either end at any moment: the user never sees a status that the machine did not send, and
// the record never has an exit code.
func TestACutIsNeverAnExit(t *testing.T) {
	t.Parallel()
	p := newPairing(t, nil)
	for i := range 60 {
		through := breaking(t, p.url)
		atUser := i%2 == 0
		urls := [2]string{p.url, through.url}
		if atUser {
			urls = [2]string{through.url, p.url}
		}
		urls[0], urls[1] = strings.TrimSuffix(urls[0], "/"), strings.TrimSuffix(urls[1], "/")
		id, user, machine := p.pair(urls[0], urls[1])
		machine.CloseRead(t.Context()) // it answers a close
		go func() {                    // and sends without end
			for machine.Write(context.Background(), websocket.MessageBinary, make([]byte, 1000)) == nil {
			}
		}()
		left := rand.IntN(1 << 18)
		for left > 0 {
			_, m, err := user.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			left -= len(m)
		}
		through.close()
		for {
			_, m, err := user.Read(t.Context())
			if err != nil {
				break
			}
			if framed.StatusOf(m) != nil {
				t.Fatal("a status, and the agent sent none")
			}
		}
		if cause, exit := p.ended(id); exit != nil || cause != wire.CauseClientGone && cause != wire.CauseMachineGone {
			t.Fatalf("a cut was recorded as %s, exit %v", cause, exit)
		}
	}
	var open int
	if err := p.db.Pool().QueryRow(t.Context(), `SELECT count(*) FROM job_sessions`).Scan(&open); err != nil || open != 0 {
		t.Errorf("%d sessions are left, %v", open, err)
	}
}

func TestAReplicaHasACapOnSessions(t *testing.T) {
	t.Parallel()
	p := newPairing(t, func(d *api.Deps) { d.Transfers.SessionsPerToken = 1 })
	_, _ = p.user(p.url)
	id := p.session("alice", p.job)
	if _, status := p.dial(p.url, "alice", "/v1/sessions/"+id); status != http.StatusTooManyRequests {
		t.Errorf("one session too many: %d", status)
	}
}

func discarded() *slog.Logger { return slog.New(slog.DiscardHandler) }

// certOf returns the SHA-256 of the certificate of a server.
func certOf(web *httptest.Server) string {
	sum := sha256.Sum256(web.Certificate().Raw)
	return hex.EncodeToString(sum[:])
}

// dialTrusting is dial by alice for a server whose certificate no authority has signed.
func (s *site) dialTrusting(url, path string) *websocket.Conn {
	s.t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	s.t.Cleanup(transport.CloseIdleConnections)
	ws, _, err := websocket.Dial(s.t.Context(), url+path, &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: transport},
		HTTPHeader: http.Header{"Authorization": {"Bearer " + s.tokens["alice"]}},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	ws.SetReadLimit(framed.MaxFrame)
	s.t.Cleanup(func() { _ = ws.CloseNow() })
	return ws
}
