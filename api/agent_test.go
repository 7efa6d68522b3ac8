package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"berth"
	"berth/api"
	"berth/db"
	"berth/failure"
	"berth/internal/lib/enginesilence"
	"berth/spec"
	"berth/wire"
)

// agent is one machine's agent, played by hand.
type agent struct {
	*site
	machine berth.MachineID
	boot    string
	epoch   int64
	seq     int64
	run     wire.RunRequest
}

// joinMachine joins and registers a machine over HTTP.
func (s *site) joinMachine(name berth.MachineID) *agent {
	s.t.Helper()
	made := s.call("admin", "POST", "/v1/join-tokens", "{}")
	var token wire.JoinToken
	if err := json.Unmarshal([]byte(made.body), &token); err != nil || made.status != http.StatusCreated {
		s.t.Fatalf("join token: %d %s", made.status, made.body)
	}
	joined := s.call("", "POST", "/agent/v1/join", fmt.Sprintf(`{"token":%q,"machine":%q}`, token.Secret, name))
	var j wire.JoinResponse
	if err := json.Unmarshal([]byte(joined.body), &j); err != nil || joined.status != http.StatusCreated {
		s.t.Fatalf("join: %d %s", joined.status, joined.body)
	}
	s.tokens[string(name)] = j.Token
	a := &agent{site: s, machine: name, boot: "boot-of-" + string(name)}
	var r wire.RegisterResponse
	a.post("register", wire.RegisterRequest{
		HostBoot: "h", AgentBoot: a.boot,
		Inventory: wire.Inventory{Capacity: berth.Capacity{CPUMilli: 4000, MemoryMiB: 8192, DiskMiB: 1000}},
	}, &r)
	a.epoch = r.Epoch
	s.sessions[string(name)] = db.Session{AgentBoot: a.boot, Epoch: a.epoch}
	return a
}

func (a *agent) post(path string, in, out any) answer {
	a.t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		a.t.Fatal(err)
	}
	got := a.call(string(a.machine), "POST", "/agent/v1/"+path, string(body))
	if out != nil {
		if err := json.Unmarshal([]byte(got.body), out); err != nil || got.status != http.StatusOK {
			a.t.Fatalf("%s: %d %s", path, got.status, got.body)
		}
	}
	return got
}

// take places a job there and claims it.
func (a *agent) take(id berth.JobID) wire.Claim {
	a.t.Helper()
	if _, err := a.db.Jobs.Load(a.t.Context(), id); err != nil {
		a.t.Fatal(err)
	}
	a.exec(`UPDATE jobs SET state = 'scheduled', version = version + 1, attempt = attempt + 1, actor = 'leader' WHERE id = $1`, id)
	a.exec(`INSERT INTO attempts (job, attempt, leader_epoch) VALUES ($1, 1, 1)`, id)
	a.exec(`INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli) VALUES ($1, 1, 0, $2, $3, 10, 10, 0, 0)`, id, a.machine, a.epoch)
	v, err := a.db.Jobs.Load(a.t.Context(), id)
	if err != nil {
		a.t.Fatal(err)
	}
	a.run = wire.RunRequest{Job: id, Attempt: 1, Alloc: v.Slots[0].Alloc}
	var c wire.Claim
	a.post("claim", wire.ClaimRequest{AgentBoot: a.boot, Epoch: a.epoch, Alloc: a.run.Alloc, Job: id, Attempt: 1}, &c)
	return c
}

func (a *agent) log(offset int, text string) answer {
	a.t.Helper()
	return a.call(string(a.machine), "PUT", fmt.Sprintf("/agent/v1/logs/%d?offset=%d", a.run.Alloc, offset), text)
}

func TestAgentsWayFromJoinToEnd(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.joinMachine("m1")
	job := s.submit("alice", nil)
	c := a.take(job.ID)
	if c.Tenant != "a" || c.Spec.Image != "busybox" {
		t.Errorf("claim is %+v", c)
	}
	report := func(p wire.RankReport) (r wire.SyncResponse) {
		p.Alloc, p.Job, p.Attempt = a.run.Alloc, job.ID, 1
		a.seq++
		a.post("sync", wire.SyncRequest{AgentBoot: a.boot, Epoch: a.epoch, Seq: a.seq, Reports: []wire.RankReport{p}}, &r)
		return r
	}
	if r := report(wire.RankReport{Phase: berth.PhasePrepared}); !r.Assignments[0].Orders.Start {
		t.Errorf("prepared is answered %+v", r)
	}
	line := "2026-01-02T03:04:05Z o hello\n"
	if got := a.log(0, line); got.status != http.StatusOK || got.body != fmt.Sprintf("{\"end\":%d}\n", len(line)) {
		t.Errorf("log: %d %s", got.status, got.body)
	}
	report(wire.RankReport{Phase: berth.PhaseSealed, Exit: &failure.Exit{Cause: failure.CauseExited, StartedAt: job.SubmittedAt}})
	if got := a.log(len(line), line); got.status != http.StatusConflict {
		t.Errorf("log after the seal: %d %s", got.status, got.body)
	}
	if got := s.call("alice", "GET", "/v1/jobs/"+string(job.ID)+"/logs", ""); !strings.Contains(got.body, "hello") {
		t.Errorf("the user reads %q", got.body)
	}
}

func TestAgentRoutesAreForMachinesAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.joinMachine("m1")
	for _, path := range []string{"register", "sync", "claim", "checkpoints"} {
		for name, want := range map[string]int{"admin": 403, "alice": 403, "": 401} {
			if got := s.call(name, "POST", "/agent/v1/"+path, "{}"); got.status != want {
				t.Errorf("%s as %q: %d, want %d", path, name, got.status, want)
			}
		}
	}
	if got := s.call("m1", "GET", "/v1/jobs", ""); got.status != http.StatusForbidden {
		t.Errorf("a machine lists jobs: %d", got.status)
	}
	if got := s.call("", "POST", "/agent/v1/join", `{"token":"berthjoin_aaaaaaaaaaaa_`+strings.Repeat("0", 64)+`","machine":"m2"}`); got.status != http.StatusUnauthorized {
		t.Errorf("a forged join token: %d", got.status)
	}
	for body, want := range map[string]int{`{"agent_boot":"x","surprise":1}`: 400, `{`: 400, `[]`: 400, `{"agent_boot":"x","epoch":1}{}`: 400, `{"agent_boot":"other","epoch":1}`: 409} {
		if got := s.call("m1", "POST", "/agent/v1/sync", body); got.status != want {
			t.Errorf("%s: %d, want %d", body, got.status, want)
		}
	}
	if got := s.call("m1", "POST", "/agent/v1/sync", `{"agent_boot":"other","epoch":1}`); got.problem.Code != berth.SlugStaleEpoch {
		t.Errorf("another process's sync: %+v", got.problem)
	}
	if got := a.post("sync", map[string]string{"digest": strings.Repeat("x", 17<<20)}, nil); got.status != http.StatusRequestEntityTooLarge {
		t.Errorf("a body of 17 MiB: %d", got.status)
	}
}

func TestMachineReachesOnlyItsOwnObjects(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a, b := s.joinMachine("m1"), s.joinMachine("m2")
	mine, theirs := s.submit("alice", nil), s.submit("bob", nil)
	a.take(mine.ID)
	b.take(theirs.ID)
	key := func(tenant berth.TenantID, id berth.JobID, attempt, rank int) string {
		return "/agent/v1/objects/" + berth.CheckpointKey(tenant, id, attempt, rank, 5) + "/file-000000"
	}
	own := key("a", mine.ID, 1, 0)
	if got := s.call("m1", "PUT", own, "weights"); got.status != http.StatusNoContent {
		t.Fatalf("put: %d %s", got.status, got.body)
	}
	if got := s.call("m1", "GET", own, ""); got.body != "weights" || got.header.Get("Content-Length") != "7" {
		t.Errorf("get: %d %q", got.status, got.body)
	}
	for name, path := range map[string]string{
		"another tenant's job":        key("b", theirs.ID, 1, 0),
		"its job as another tenant's": key("b", mine.ID, 1, 0),
		"another attempt":             key("a", mine.ID, 2, 0),
		"another rank":                key("a", mine.ID, 1, 1),
	} {
		if got := s.call("m1", "PUT", path, "x"); got.status != http.StatusNotFound {
			t.Errorf("put to %s: %d %s", name, got.status, got.body)
		}
	}
	if got := s.call("m2", "GET", own, ""); got.status != http.StatusNotFound {
		t.Errorf("another machine reads: %d", got.status)
	}
	for _, path := range []string{"x", "../secret", "%2e%2e/secret", "tenants/a/jobs/" + string(mine.ID) + "/attempt-1/rank-0/..%2f..%2fx", "tenants/a/jobs/" + string(mine.ID) + "/attempt-1/rank-0/a%00b"} {
		if got := s.call("m1", "PUT", "/agent/v1/objects/"+path, "x"); got.status != http.StatusBadRequest && got.status != http.StatusNotFound {
			t.Errorf("put to %s: %d %s", path, got.status, got.body)
		}
	}
	if got := s.call("m1", "GET", key("a", mine.ID, 1, 0)+"9", ""); got.status != http.StatusNotFound {
		t.Errorf("a missing object: %d", got.status)
	}
}

// A database that was restored gives the number of a lost attempt again. The lost
// attempt's log in the store is not the log of the new one.
func TestTheLogOfALostAttemptIsNoneOfItsSuccessor(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.joinMachine("m1")
	job := s.submit("alice", nil)
	a.take(job.ID)
	lost, one, two := "2026-01-02T03:04:04Z o lost\n", "2026-01-02T03:04:05Z o one\n", "2026-01-02T03:04:06Z o two\n"
	for _, at := range []int{0, len(one)} {
		if err := s.blobs.Create(t.Context(), berth.LogChunkKey("a", job.ID, 1, 0, int64(at)), []byte(lost)); err != nil {
			t.Fatal(err)
		}
	}
	if got := a.log(0, one); got.body != fmt.Sprintf("{\"end\":%d}\n", len(one)) {
		t.Errorf("append: %d %s", got.status, got.body)
	}
	if got := a.log(len(one), two); got.body != fmt.Sprintf("{\"end\":%d}\n", len(one+two)) {
		t.Errorf("append: %d %s", got.status, got.body)
	}
	got := s.call("alice", "GET", "/v1/jobs/"+string(job.ID)+"/logs", "")
	if strings.Contains(got.body, "lost") || !strings.Contains(got.body, "one") || !strings.Contains(got.body, "two") {
		t.Errorf("log: %d %s", got.status, got.body)
	}
}

// A piece whose object was stored and whose row was not is not lost, and does
// not stand in the way.
func TestLogPieceThatWasCutOffIsTakenUp(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.joinMachine("m1")
	job := s.submit("alice", nil)
	a.take(job.ID)
	one, two := "2026-01-02T03:04:05Z o one\n", "2026-01-02T03:04:06Z o two\n"
	if err := s.blobs.Create(t.Context(), berth.LogChunkKey("a", job.ID, 1, 0, 0), []byte(one)); err != nil {
		t.Fatal(err)
	}
	if got := a.log(0, one+two); got.body != fmt.Sprintf("{\"end\":%d}\n", len(one)) {
		t.Errorf("append: %d %s", got.status, got.body)
	}
	if got := a.log(len(one), two); got.body != fmt.Sprintf("{\"end\":%d}\n", len(one+two)) {
		t.Errorf("append: %d %s", got.status, got.body)
	}
	if got := a.log(0, two); got.body != fmt.Sprintf("{\"end\":%d}\n", len(one+two)) {
		t.Errorf("a repeat: %d %s", got.status, got.body)
	}
	for _, offset := range []int{0, len(one + two), len(one+two) + 1} { // an empty piece only asks
		if got := a.log(offset, ""); got.body != fmt.Sprintf("{\"end\":%d}\n", len(one+two)) {
			t.Errorf("an empty piece at %d: %d %s", offset, got.status, got.body)
		}
	}
	for _, bad := range []string{"no stamp\n", "2026-01-02T03:04:05Z o no newline"} {
		if got := a.log(len(one+two), bad); got.status != http.StatusBadRequest {
			t.Errorf("%q: %d", bad, got.status)
		}
	}
	if got := s.call("alice", "GET", "/v1/jobs/"+string(job.ID)+"/logs", ""); !strings.Contains(got.body, "one") || strings.Count(got.body, "two") != 1 {
		t.Errorf("the user reads %q", got.body)
	}
}

func TestPrunedCheckpointsAreDeleted(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.joinMachine("m1")
	job := s.submit("alice", func(j *spec.Job) { j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint", Keep: 1} })
	a.take(job.ID)
	for step := int64(1); step <= 2; step++ {
		key := berth.CheckpointKey("a", job.ID, 1, 0, step) + "/" + berth.ManifestName
		if got := s.call("m1", "PUT", "/agent/v1/objects/"+key, "{}"); got.status != http.StatusNoContent {
			t.Fatalf("put: %d %s", got.status, got.body)
		}
		got := a.post("checkpoints", wire.CheckpointReport{AgentBoot: a.boot, Epoch: a.epoch, Alloc: a.run.Alloc, Job: job.ID, Attempt: 1, OfAttempt: 1,
			Step: step, Manifest: key, SHA256: "x", Bytes: 2}, nil)
		if got.status != http.StatusNoContent {
			t.Fatalf("register: %d %s", got.status, got.body)
		}
	}
	for step, want := range map[int64]berth.Code{1: berth.CodeNotFound, 2: ""} {
		_, err := s.blobs.ReadAll(t.Context(), berth.CheckpointKey("a", job.ID, 1, 0, step)+"/"+berth.ManifestName, 100)
		if berth.CodeOf(err) != want {
			t.Errorf("step %d: %v", step, err)
		}
	}
}

// pokes are the jobs whose workflows were poked.
type pokes chan berth.JobID

func (p pokes) Poke(ids ...berth.JobID) {
	for _, id := range ids {
		p <- id
	}
}

// Agents of the version before report that no activity waits for an end on their machine,
// and agents of this version say so of every end, for servers of the version before.
// Here the dispatcher decides whether an end needs a poke, so the call itself sends
// none: otherwise every job would cost its workflow a signal.
func TestAnUnwaitedEndIsTakenAndPokesNobodyAtOnce(t *testing.T) {
	t.Parallel()
	poked := make(pokes, 10)
	s := newSite(t, func(d *api.Deps) { d.Poker = poked })
	a := s.joinMachine("m1")
	job := s.submit("alice", nil)
	a.take(job.ID)
	ends := s.db.Hub().EndHints(db.Here)
	defer ends.Close()
	a.seq++
	got := a.post("sync", wire.SyncRequest{AgentBoot: a.boot, Epoch: a.epoch, Seq: a.seq, Reports: []wire.RankReport{{
		Alloc: a.run.Alloc, Job: job.ID, Attempt: 1, Phase: berth.PhaseSealed, Unwaited: true,
		Exit: &failure.Exit{Cause: failure.CauseExited, StartedAt: job.SubmittedAt},
	}}}, nil)
	if got.status != http.StatusOK {
		t.Fatalf("sync: %d %s", got.status, got.body)
	}
	<-ends.News()
	if list, _ := ends.Take(); len(list) != 1 || list[0] != a.run.Alloc {
		t.Errorf("the end is hinted at as %v", list)
	}
	if len(poked) > 0 {
		t.Errorf("%d jobs were poked", len(poked))
	}
}

func TestSyncTakesHowLongAnEngineIsSilent(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.joinMachine("m1")
	sync := func(value string) int {
		t.Helper()
		body := fmt.Sprintf(`{"agent_boot":%q,"epoch":%d,"seq":0}`, a.boot, a.epoch)
		return s.call("m1", "POST", "/agent/v1/sync", body, enginesilence.Header, value).status
	}
	silent := func() bool {
		t.Helper()
		m, err := s.as("admin").Machine(t.Context(), "m1")
		if err != nil {
			t.Fatal(err)
		}
		return m.EngineSilentSince != nil
	}
	for _, wrong := range []string{"0", "-1", "1.5", "soon", "31536001", "99999999999999999999"} {
		if status := sync(wrong); status != http.StatusBadRequest && status != http.StatusUnprocessableEntity || silent() {
			t.Errorf("%q: status %d, silent %v", wrong, status, silent())
		}
	}
	if status := sync("40"); status != http.StatusOK || !silent() {
		t.Errorf("silent for 40 s: status %d, silent %v", status, silent())
	}
	if status := sync(""); status != http.StatusOK || silent() {
		t.Errorf("no longer silent: status %d, silent %v", status, silent())
	}
}
