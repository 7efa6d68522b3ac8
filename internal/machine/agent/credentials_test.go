package agent_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/db"
	"berth/db/dbtest"
	"berth/spec"
	"berth/wire"
)

// stored is the agent's credential file.
type stored struct {
	Machine berth.MachineID `json:"machine"`
	Token   string          `json:"token"`
	Cluster string          `json:"cluster"`
	Bound   bool            `json:"bound"`
	Former  string          `json:"former"`
}

func (m *machine) stored() (c stored) {
	m.s.t.Helper()
	b, err := os.ReadFile(filepath.Join(m.cfg.StateDir, "credential.json"))
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		m.s.t.Fatal(err)
	}
	return c
}

// exec changes rows past the program.
func (s *site) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.db.Pool().Exec(s.t.Context(), sql, args...); err != nil {
		s.t.Fatal(err)
	}
}

// renewals is the number of the last renewal of a machine.
func (s *site) renewals(id berth.MachineID) (n int64) {
	s.t.Helper()
	err := s.db.Pool().QueryRow(s.t.Context(), `SELECT coalesce(max(number), 0) FROM machine_keys WHERE machine_id = $1 AND revoked_at IS NULL`, id).Scan(&n)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// untouched fails unless the member's container runs and is the one of before.
func (m *machine) untouched(req wire.RunRequest, id string) {
	m.s.t.Helper()
	if c, err := m.container(req); err != nil || c.State != node.ContainerRunning || c.ID != id {
		m.s.t.Errorf("the container is %+v, %v; it was %s", c, err, id)
	}
}

// begins runs a job on the machine until its container runs.
func (m *machine) begins() (job berth.JobID, req wire.RunRequest, w *waiter, container string) {
	m.s.t.Helper()
	job = m.s.submit(nil, "sleep", "1h")
	req, w = m.run(job)
	m.running(req)
	c, err := m.container(req)
	if err != nil {
		m.s.t.Fatal(err)
	}
	return job, req, w, c.ID
}

// ends has the container end, and fails unless the job succeeds in its first attempt.
func (m *machine) ends(job berth.JobID, w *waiter) {
	m.s.t.Helper()
	m.runtime.Exit(berth.ContainerName(job, 0, 1), 0)
	if x := w.exit(); x.Code != 0 {
		m.s.t.Errorf("exit is %+v", x)
	}
}

func TestAgentsRenewTheirCredentialInTime(t *testing.T) {
	t.Parallel()
	s := newSiteWith(t, dbtest.DB(t, db.Options{CredentialTTL: 2 * time.Second}))
	m := s.machine("m1")
	info, err := os.Stat(filepath.Join(m.cfg.StateDir, "key.pem"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the key: %v, %v", info, err)
	}
	job, req, w, container := m.begins()
	first := m.stored()
	if !first.Bound {
		t.Errorf("stored %+v", first)
	}
	for range 3 {
		n := s.renewals("m1")
		s.until("the credential is renewed", func() bool { return s.renewals("m1") > n })
	}
	m.untouched(req, container)
	m.ends(job, w)
	s.until("the first token has ended", func() bool {
		_, err := s.db.Tokens.Authenticate(t.Context(), first.Token)
		return berth.CodeOf(err) == berth.CodeUnauthorized
	})
	m.restart() // the renewed credential is stored
	if now := m.stored(); now.Token == first.Token || now.Cluster != first.Cluster {
		t.Errorf("stored %+v", now)
	}
}

// 25 hours without a control plane: the credential has ended, and the machine comes back by itself.
func TestAnOutageLongerThanACredentialNeedsNoPerson(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	job, req, w, container := m.begins()
	s.gate.closed.Store(true)
	s.exec(`UPDATE tokens SET expires_at = expires_at - interval '25 hours'`)
	s.exec(`UPDATE machine_keys SET until = until - interval '25 hours'`)
	s.gate.closed.Store(false)
	s.until("the credential is renewed", func() bool { return s.renewals("m1") > 0 })
	m.untouched(req, container)
	m.ends(job, w)
	if j := s.settle(job); j.Status != berth.Succeeded || j.Attempt != 1 {
		t.Errorf("job is %s in attempt %d", j.Status, j.Attempt)
	}
}

// The credential ends a moment before a claim. The claim waits for the renewal, and the member is not abandoned.
func TestAClaimWaitsForTheRenewalOfAnEndedCredential(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	var ended sync.Once
	around := func(next http.Handler, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/agent/v1/claim" {
			ended.Do(func() {
				s.exec(`UPDATE tokens SET expires_at = now() - interval '1 hour' WHERE role = 'machine'`)
				s.serves() // the API of before remembers tokens
			})
		}
		next.ServeHTTP(w, r)
	}
	s.gate.around.Store(&around)
	job, _, w, _ := m.begins()
	if text := m.logs.text(); !strings.Contains(text, "claim failed, will retry") || !strings.Contains(text, "renews it") {
		t.Error("the claim did not meet an ended credential")
	}
	if s.renewals("m1") == 0 {
		t.Error("the credential was not renewed")
	}
	m.ends(job, w)
}

// credentialFile is the path of the agent's credential.
func (m *machine) credentialFile() string { return filepath.Join(m.cfg.StateDir, "credential.json") }

// edits changes a field of the stored credential. The agent is stopped.
func (m *machine) edits(field string, value any) {
	m.s.t.Helper()
	var state map[string]any
	b, err := os.ReadFile(m.credentialFile())
	if err == nil {
		err = json.Unmarshal(b, &state)
	}
	if err == nil {
		state[field] = value
		b, err = json.Marshal(state)
	}
	if err == nil {
		err = os.WriteFile(m.credentialFile(), b, 0o600)
	}
	if err != nil {
		m.s.t.Fatal(err)
	}
}

// endsTokens ends the credentials of all machines, also in the memory of the API, and their sessions.
func (s *site) endsTokens() {
	s.t.Helper()
	s.exec(`UPDATE tokens SET expires_at = now() - interval '1 hour' WHERE role = 'machine'`)
	s.serves()
	s.exec(`UPDATE machine_leases SET agent_boot = 'another'`) // the next call is a registration
}

// answersRenewals has the API answer renewals with a status in place of the outcome, while on.
func (s *site) answersRenewals(status int) (on *atomic.Bool, calls *atomic.Int64) {
	on, calls = &atomic.Bool{}, &atomic.Int64{}
	on.Store(true)
	around := func(next http.Handler, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/agent/v1/renew" {
			calls.Add(1)
			if on.Load() {
				w.Header().Set("Content-Type", "application/problem+json")
				w.WriteHeader(status)
				_, _ = w.Write([]byte(`{"code":"","detail":"by the test"}`))
				return
			}
		}
		next.ServeHTTP(w, r)
	}
	s.gate.around.Store(&around)
	return on, calls
}

// A renewal failed a moment before the credential ended. The machine does not wait for the next one.
func TestAnEndedCredentialIsRenewedAtOnceAfterAFailure(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.edits("renew_at", time.Now().Add(-time.Minute))
	m.cfg.Timing.RenewPause = 100 * time.Hour
	fails, _ := s.answersRenewals(http.StatusServiceUnavailable)
	m.start()
	m.until("the renewal fails", func() bool { return strings.Contains(m.logs.text(), "credential failed, will retry") })
	s.endsTokens()
	m.until("the renewal of the ended credential fails", func() bool {
		return strings.Count(m.logs.text(), "credential failed, will retry") > 3
	})
	fails.Store(false)
	s.until("the credential is renewed", func() bool { return s.renewals("m1") > 0 })
	job, _, w, _ := m.begins()
	m.ends(job, w)
}

func TestARefusedRenewalRests(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.cfg.Timing.RenewPause = 100 * time.Hour
	_, calls := s.answersRenewals(http.StatusUnauthorized)
	m.start()
	s.endsTokens()
	m.until("it registers again and again", func() bool {
		return strings.Count(m.logs.text(), "control plane refuses this machine") > 5
	})
	if n := calls.Load(); n != 1 {
		t.Errorf("%d renewals", n)
	}
}

// The host crashed after the binding of the key, before anything was stored.
func TestABindingThatWasNotStoredLocksNobodyOut(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.oldMachine("m1")
	before, err := os.ReadFile(m.credentialFile())
	if err != nil {
		t.Fatal(err)
	}
	m.start()
	s.until("the credential is renewed", func() bool { return s.renewals("m1") > 0 })
	if err = m.stop(); err == nil {
		err = os.WriteFile(m.credentialFile(), before, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.endsTokens()
	m.start()
	if now := m.stored(); !now.Bound || now.Former != m.formerIn(before) {
		t.Errorf("stored %+v", now)
	}
}

// formerIn returns the token in a credential file.
func (m *machine) formerIn(file []byte) string {
	var c stored
	if err := json.Unmarshal(file, &c); err != nil {
		m.s.t.Fatal(err)
	}
	return c.Token
}

func TestADamagedCredentialIsReplacedByTheKey(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	job, req, w, container := m.begins()
	for _, torn := range []string{"", `{"machine":"m1","tok`} {
		err := m.stop()
		if err == nil {
			err = os.WriteFile(m.credentialFile(), []byte(torn), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		m.start()
		m.untouched(req, container)
	}
	m.ends(job, w)
}

// A state folder without space for a key: the agent goes on with the token that it has.
func TestAnAgentStartsWithoutAKey(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.oldMachine("m1")
	full := filepath.Join(m.cfg.StateDir, "key.pem.new")
	if err := os.Mkdir(full, 0o700); err != nil {
		t.Fatal(err)
	}
	m.start()
	job, _, w, _ := m.begins()
	m.ends(job, w)
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	s.until("the credential is renewed", func() bool { return s.renewals("m1") > 0 })
}

// The state folder is older than renewals that were made when the clock of the host was ahead.
func TestARenewalPassesANumberOfAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	s.exec(`UPDATE machine_keys SET number = $1`, time.Now().AddDate(3, 0, 0).UnixMilli())
	ahead := s.renewals("m1")
	s.endsTokens()
	s.until("the credential is renewed", func() bool { return s.renewals("m1") > ahead })
	err := m.stop()
	if err == nil {
		err = os.Remove(m.credentialFile())
	}
	if err != nil {
		t.Fatal(err)
	}
	ahead = s.renewals("m1")
	m.start()
	if n := s.renewals("m1"); n != ahead+1 {
		t.Errorf("renewal %d after %d", n, ahead)
	}
}

// The answer of a join was lost, and a replica of the previous version does not know the key.
func TestAJoinInDoubtKeepsItsKey(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]int{"without a token": http.StatusUnauthorized, "without the route": http.StatusNotFound} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			lost := s.losesAnswers(1, "/agent/v1/join")
			loses := *s.gate.around.Load()
			var renewals atomic.Int64
			around := func(next http.Handler, w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/agent/v1/renew" && renewals.Add(1) == 1 {
					w.Header().Set("Content-Type", "application/problem+json")
					w.WriteHeader(status)
					return
				}
				loses(next, w, r)
			}
			s.gate.around.Store(&around)
			s.machine("m1")
			if joins, asked := lost[0].Load(), renewals.Load(); joins != 2 || asked < 2 {
				t.Errorf("%d joins, %d renewals", joins, asked)
			}
			var keys int
			if err := s.db.Pool().QueryRow(t.Context(), `SELECT count(*) FROM machine_keys`).Scan(&keys); err != nil || keys != 1 {
				t.Errorf("%d keys, %v", keys, err)
			}
		})
	}
}

// A machine that was removed joins again with the state folder of before, which has its revoked key.
func TestARevokedKeyIsReplacedByAJoin(t *testing.T) {
	t.Parallel()
	for name, older := range map[string]bool{"at this version": false, "at the version before": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			joinsAgain(t, older)
		})
	}
}

func joinsAgain(t *testing.T, older bool) {
	s := newSite(t)
	m := s.machine("m1")
	err := m.stop()
	if err == nil {
		err = s.db.Machines.Retire(t.Context(), "m1", "operator:test")
	}
	if err == nil {
		err = os.Remove(m.credentialFile())
	}
	if err != nil {
		t.Fatal(err)
	}
	j, err := s.db.JoinTokens.Create(t.Context(), spec.NewJoinToken{}, "operator:test")
	if err != nil {
		t.Fatal(err)
	}
	m.cfg.JoinToken = j.Secret
	around := func(next http.Handler, w http.ResponseWriter, r *http.Request) {
		r.Header.Del(wire.HeaderMachineKey)
		if r.URL.Path == "/agent/v1/key" || r.URL.Path == "/agent/v1/renew" {
			r.URL.Path = "/agent/v1/no-such-route"
		}
		next.ServeHTTP(w, r)
	}
	if older {
		s.gate.around.Store(&around)
	}
	m.start()
	s.gate.around.Store(nil)
	s.until("the key is bound", func() bool { return m.stored().Bound })
	job, _, w, _ := m.begins()
	m.ends(job, w)
}

// losesAnswers has the API carry out calls to each path, and lose the first n answers. It returns
// the numbers of calls that were carried out.
func (s *site) losesAnswers(n int64, paths ...string) (carried []*atomic.Int64) {
	carried = make([]*atomic.Int64, len(paths))
	for i := range carried {
		carried[i] = &atomic.Int64{}
	}
	around := func(next http.Handler, w http.ResponseWriter, r *http.Request) {
		i := slices.Index(paths, r.URL.Path)
		if i < 0 || carried[i].Load() >= n {
			next.ServeHTTP(w, r)
		} else {
			next.ServeHTTP(discard{http.Header{}}, r)
		}
		if i >= 0 && carried[i].Add(1) <= n {
			panic(http.ErrAbortHandler)
		}
	}
	s.gate.around.Store(&around)
	return carried
}

// discard is a response that reaches no client.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}

func TestLostAnswersAboutCredentialsLockNobodyOut(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	calls := s.losesAnswers(3, "/agent/v1/join", "/agent/v1/renew")
	m := s.machine("m1") // joins once, and has its credential by its key
	if joins, renewals := calls[0].Load(), calls[1].Load(); joins != 1 || renewals < 4 {
		t.Errorf("%d joins, %d renewals", joins, renewals)
	}
	job, req, w, container := m.begins()
	again := s.losesAnswers(3, "/agent/v1/renew")
	s.exec(`UPDATE tokens SET expires_at = now() - interval '1 hour'`)
	s.exec(`UPDATE machine_leases SET agent_boot = 'another'`) // ends the session: the next call is a registration
	s.until("the credential is renewed", func() bool { return again[0].Load() > 3 })
	m.untouched(req, container)
	m.ends(job, w)
}

// An agent dies between the renewal and its answer: the next process repeats the renewal.
func TestAnAgentThatDiesDuringARenewalGoesOn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(m.cfg.StateDir, "credential.json")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// The state before the answer: the present token is stored with the chosen one, which the server has.
	var state map[string]any
	if err := json.Unmarshal(b, &state); err != nil {
		t.Fatal(err)
	}
	state["renew_at"] = time.Now().Add(-time.Minute)
	if b, err = json.Marshal(state); err == nil {
		err = os.WriteFile(file, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.losesAnswers(1000, "/agent/v1/renew")
	m.start()
	s.until("a renewal was carried out, and its answer lost", func() bool { return s.renewals("m1") > 0 })
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	n := s.renewals("m1")
	s.gate.around.Store(nil)
	s.exec(`UPDATE tokens SET expires_at = now() - interval '1 hour' WHERE number = 0`)
	m.start()
	if got := s.renewals("m1"); got != n {
		t.Errorf("renewal %d follows %d: the token that was asked for was not taken", got, n)
	}
}

// oldMachine is a machine that joined with an agent of the version before, and has not run since.
func (s *site) oldMachine(id berth.MachineID) *machine {
	s.t.Helper()
	j, err := s.db.JoinTokens.Create(s.t.Context(), spec.NewJoinToken{}, "operator:test")
	if err != nil {
		s.t.Fatal(err)
	}
	token, cluster, err := s.db.JoinTokens.Join(s.t.Context(), j.Secret, id)
	if err != nil {
		s.t.Fatal(err)
	}
	fake := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})
	s.t.Cleanup(fake.Shutdown)
	m := &machine{s: s, id: id, logs: &lockedBuffer{}, runtime: fake}
	m.cfg = s.config(m, fake, "")
	if err := os.MkdirAll(m.cfg.StateDir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	b, err := json.Marshal(map[string]string{"machine": string(id), "token": token, "cluster": cluster})
	if err == nil {
		err = os.WriteFile(filepath.Join(m.cfg.StateDir, "credential.json"), b, 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

func TestMachinesOfTheVersionBeforeGetAKey(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.oldMachine("m1")
	was := m.stored().Token
	m.start()
	s.until("the credential is renewed", func() bool { return m.stored().Token != was && m.stored().Bound })
	s.until("the former token gets an end", func() bool {
		p, err := s.db.Tokens.Authenticate(t.Context(), was)
		return err == nil && p.ExpiresAt != nil && time.Until(*p.ExpiresAt) <= 10*time.Minute
	})
	m.restart()
	if n := strings.Count(m.logs.text(), "credential bound to the key"); n != 1 {
		t.Errorf("bound %d times", n)
	}
}

// A server of the version before knows neither keys nor renewals: the agent goes on with its token.
func TestAgentsWorkWithAServerWithoutKeys(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var keys atomic.Int64
	older := func(next http.Handler, w http.ResponseWriter, r *http.Request) {
		r.Header.Del(wire.HeaderMachineKey)
		if r.URL.Path == "/agent/v1/key" || r.URL.Path == "/agent/v1/renew" {
			keys.Add(1)
			r.URL.Path = "/agent/v1/no-such-route"
		}
		next.ServeHTTP(w, r)
	}
	s.gate.around.Store(&older)
	m := s.machine("m1")
	job, _, w, _ := m.begins()
	s.until("it has asked more than once", func() bool { return keys.Load() > 2 })
	m.ends(job, w)
	if strings.Contains(m.logs.text(), "credential not renewed") {
		t.Error("the agent complains about an older server")
	}
	s.gate.around.Store(nil) // the server is upgraded
	s.until("the key is bound", func() bool { return m.stored().Bound })
}

// Somebody else bound a key to the machine's token first: the agent says so, and goes on while it can.
func TestAKeyThatAnotherHasBoundIsNoticed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.oldMachine("m1")
	p, err := s.db.Tokens.Authenticate(t.Context(), m.stored().Token)
	if err == nil {
		err = s.db.Tokens.BindKey(t.Context(), p, make([]byte, 32))
	}
	if err != nil {
		t.Fatal(err)
	}
	m.start()
	m.until("it logs the other key", func() bool {
		return strings.Contains(m.logs.text(), "level=ERROR msg=\"machine credential not renewed\"") && strings.Contains(m.logs.text(), "bound to another key")
	})
	job, _, w, _ := m.begins()
	m.ends(job, w)
}

// backs takes a backup of the database of a site, and returns the function that puts it back. The
// control plane is stopped for both; the function starts the leader of after.
func (s *site) backs(url string, stop func()) (back func() (stop func())) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "dump")
	s.gate.closed.Store(true)
	stop()
	dbtest.Dump(s.t, url, file)
	s.db.Pool().Reset()
	return func() func() {
		s.t.Helper()
		dbtest.Restore(s.t, url, file)
		s.db.Pool().Reset()
		s.until("the database is back", func() bool { return s.db.Ping(s.t.Context()) == nil })
		s.serves() // the API of before remembers tokens
		return s.leads("after", s.blobs)
	}
}

// A database that is restored from before a machine joined does not know the machine: it waits for an
// admin, and its container is not touched.
func TestF15AMachineThatJoinedAfterTheBackupWaitsForApproval(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	s := newSiteOn(t, url)
	s.lets()
	back := s.backs(url, s.leads("first", s.blobs))
	stop := s.leads("second", s.blobs)
	s.gate.closed.Store(false)
	m := s.machine("m7")
	job, req, _, container := m.begins()
	s.ages(m)

	s.gate.closed.Store(true)
	stop()
	stop = back()
	defer func() { stop() }()
	s.gate.closed.Store(false)
	m.until("it waits for approval", func() bool { return s.machineState("m7") == wire.MachinePending })
	m.until("its session has begun", func() bool {
		var n int
		err := s.db.Pool().QueryRow(t.Context(), `SELECT count(*) FROM machines WHERE id = 'm7' AND cardinality(pending_kills) = 1`).Scan(&n)
		return err == nil && n == 1
	})
	m.untouched(req, container)
	if err := s.db.Machines.Approve(t.Context(), "m7", "", "operator:test"); err != nil {
		t.Fatal(err)
	}
	m.untouched(req, container)
	m.runtime.Exit(berth.ContainerName(job, 0, 1), 0)
	m.until("it takes work", func() bool { return s.machineState("m7") == berth.MachineReady })
	next, _, w, _ := m.begins()
	m.ends(next, w)
}

// The same for a machine that has lost its credential, too: its key and its watermark are the proof.
func TestF15AMachineWithoutItsCredentialWaitsForApproval(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	s := newSiteOn(t, url)
	s.lets()
	back := s.backs(url, s.leads("first", s.blobs))
	stop := s.leads("second", s.blobs)
	s.gate.closed.Store(false)
	m := s.machine("m7")
	_, req, _, container := m.begins()
	s.ages(m)
	s.gate.closed.Store(true)
	stop()
	err := m.stop()
	if err == nil {
		err = os.Remove(m.credentialFile())
	}
	if err != nil {
		t.Fatal(err)
	}
	stop = back()
	defer func() { stop() }()
	s.gate.closed.Store(false)
	m.start()
	m.until("it waits for approval", func() bool { return s.machineState("m7") == wire.MachinePending })
	m.untouched(req, container)
}

// A database that is restored from before the last renewals, or from before the key was bound, takes the
// machine back at once.
func TestF15AMachineWithALaterCredentialComesBack(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	s := newSiteOn(t, url)
	s.lets()
	m, old := s.machine("m1"), s.oldMachine("m2")
	job, req, _, container := m.begins()
	back := s.backs(url, s.leads("first", s.blobs))
	s.gate.closed.Store(false)
	stop := s.leads("second", s.blobs)
	first := map[*machine]string{m: m.stored().Token, old: old.stored().Token}
	s.exec(`UPDATE tokens SET expires_at = now() - interval '1 hour' WHERE machine_id = 'm1'`)
	old.start()
	s.until("the first credentials are gone", func() bool { return s.renewals("m1") > 0 && s.renewals("m2") > 0 })
	for x, token := range first {
		x.until("its renewed credential is stored", func() bool { return x.stored().Token != token })
	}
	s.ages(m, old) // both know that the restored database has lost rows
	was := old.stored()
	s.exec(`DELETE FROM tokens WHERE number = 0 AND role = 'machine'`)

	s.gate.closed.Store(true)
	stop()
	stop = back()
	defer func() { stop() }()
	s.exec(`UPDATE tokens SET expires_at = now() - interval '1 hour' WHERE machine_id = 'm1'`)
	s.gate.closed.Store(false)
	s.until("both have renewed again", func() bool { return s.renewals("m1") > 0 && s.renewals("m2") > 0 })
	// The row is there before the agent has the answer.
	old.until("the machine of the version before has stored another credential", func() bool {
		return old.stored().Token != was.Token
	})
	m.untouched(req, container)
	m.ends(job, m.wait(req))
	for _, x := range []*machine{m, old} {
		x.until("it is ready", func() bool { return s.machineState(x.id) == berth.MachineReady })
	}
}
