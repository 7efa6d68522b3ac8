package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/wire"
)

// The tests of this file are lines of the table of stolen credentials in docs/operate/machines.md.

// A machine uses its own good credential for the allocation of another machine, on every route of agents.
// The other machine's job, its log and its member stay as they are.
func TestAMachineActsForNoOther(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a, b := s.joinMachine("m1"), s.joinMachine("m2")
	job := s.submit("alice", nil)
	a.take(job.ID)
	a.log(0, "2026-01-02T03:04:05Z o of m1\n")
	for i, phase := range []berth.Phase{berth.PhasePrepared, berth.PhaseRunning} {
		report := wire.RankReport{Alloc: a.run.Alloc, Job: job.ID, Attempt: 1, Phase: phase}
		a.post("sync", wire.SyncRequest{AgentBoot: a.boot, Epoch: a.epoch, Seq: int64(i + 1), Reports: []wire.RankReport{report}}, &wire.SyncResponse{})
	}
	terms := fmt.Sprintf(`"agent_boot":%q,"epoch":%d`, b.boot, b.epoch)
	member := fmt.Sprintf(`"alloc":%d,"job":%q,"attempt":1`, a.run.Alloc, job.ID)
	address := strings.Repeat("0", 64)
	key := berth.CheckpointKey("a", job.ID, 1, 0, 5) + "/" + berth.ManifestName
	attacks := map[string]struct {
		path, body string
		passes     bool // the call itself is answered 2xx, without the other's member
	}{
		"POST /agent/v1/register": {"", fmt.Sprintf(`{"host_boot":"h","agent_boot":%q,"inventory":{},"containers":[{%s,"rank":0,"running":true}]}`, b.boot, member), true},
		"POST /agent/v1/sync": {"", fmt.Sprintf(`{%s,"seq":1,"reports":[{%s,"rank":0,"phase":"sealed","exit":{"cause":"exited","code":0}}],"gone":[%d]}`,
			terms, member, a.run.Alloc), true},
		"POST /agent/v1/claim":       {"", fmt.Sprintf(`{%s,%s}`, terms, member), false},
		"POST /agent/v1/checkpoints": {"", fmt.Sprintf(`{%s,%s,"rank":0,"step":5,"of_attempt":1,"manifest":%q,"sha256":%q,"bytes":1}`, terms, member, key, address), false},
		"POST /agent/v1/outputs": {"", fmt.Sprintf(`{%s,%s,"rank":0,"output":{"name":"x","path":"x","size":1,"sha256":%q}}`,
			terms, member, address), false},
		"POST /agent/v1/stages":                                  {"", fmt.Sprintf(`{%s,"seq":1,"stages":[{"alloc":%d,"stage":{"name":"pulling"}}]}`, terms, a.run.Alloc), true},
		"POST /agent/v1/stall":                                   {"", fmt.Sprintf(`{%s,%s,"seq":1,"quiet":true}`, terms, member), true},
		"POST /agent/v1/image":                                   {"", fmt.Sprintf(`{%s,%s,"digest":"sha256:%s"}`, terms, member, address), false},
		"PUT /agent/v1/logs/:alloc":                              {fmt.Sprintf("/agent/v1/logs/%d?offset=%d", a.run.Alloc, len("2026-01-02T03:04:05Z o of m1\n")), "2026-01-02T03:04:06Z o forged\n", false},
		"PUT /agent/v1/objects/*":                                {"/agent/v1/objects/" + key, "{}", false},
		"GET /agent/v1/objects/*":                                {"/agent/v1/objects/" + key, "", false},
		"GET /agent/v1/uploads/:alloc/:address":                  {fmt.Sprintf("/agent/v1/uploads/%d/%s", a.run.Alloc, address), "", false},
		"POST /agent/v1/object-access":                           {"", fmt.Sprintf(`{%s,"key":%q,"method":"GET"}`, terms, key), false},
		"POST /agent/v1/chunks":                                  {"", fmt.Sprintf(`{%s,"job":%q,"attempt":1,"rank":0,"step":5,"want":"ask","chunks":[{"sha256":%q,"bytes":1}]}`, terms, job.ID, address), false},
		"POST /agent/v1/checkpoints/chunked":                     {"", fmt.Sprintf(`{%s,%s,"rank":0,"step":5,"of_attempt":1,"manifest":%q,"sha256":%q,"bytes":1}`, terms, member, key, address), false},
		"GET /agent/v1/chunks/:job/:attempt/:rank/:step/:sha256": {"/agent/v1/" + wire.ChunkPath(job.ID, 1, 0, 5, address), "", false},
		"GET /agent/v1/sessions/:id":                             {"/agent/v1/sessions/" + s.session("alice", job.ID), "", false},
		"POST /agent/v1/unfinished":                              {"", fmt.Sprintf(`{%s,"lines":[{"alloc":%d,"at":"2026-01-02T03:04:06Z","text":"forged"}]}`, terms, a.run.Alloc), true},
		// These name no allocation: they concern the calling machine alone.
		"POST /agent/v1/use":          {"", fmt.Sprintf(`{%s,"use":{"cpu_milli":1}}`, terms), true},
		"POST /agent/v1/engine":       {"", fmt.Sprintf(`{%s,"facts":{"runtime":"runc"}}`, terms), true},
		"GET /agent/v1/object-access": {"", "", true},
		"POST /agent/v1/hosts":        {"", fmt.Sprintf(`{%s,%s,"host":"example.invalid"}`, terms, member), false},
		"POST /agent/v1/key":          {"", "{}", false},
		"POST /agent/v1/join":         {"", "{}", false},
		"POST /agent/v1/renew":        {"", "{}", false},
	}
	rows := func() (text string) {
		err := s.db.Pool().QueryRow(t.Context(), `SELECT string_agg(a::text, ' ') FROM allocations a WHERE machine_id = 'm1'`).Scan(&text)
		if err != nil {
			t.Fatal(err)
		}
		return s.call("alice", "GET", "/v1/jobs/"+string(job.ID), "").body + text
	}
	before := rows()
	for _, r := range s.server.Routes() {
		if !strings.HasPrefix(r.Path, "/agent/") || strings.HasPrefix(r.Method, "echo_route") {
			continue
		}
		name := r.Method + " " + r.Path
		attack, ok := attacks[name]
		if !ok {
			t.Errorf("%s has no row: write what a machine can do there with the allocation of another one", name)
			continue
		}
		if attack.path == "" {
			attack.path = r.Path
		}
		got := s.call("m2", r.Method, attack.path, attack.body)
		if passes := got.status < 300; passes != attack.passes || passes && strings.Contains(got.body, string(job.ID)) {
			t.Errorf("%s: %d %s", name, got.status, clipped(got.body))
		}
		if after := rows(); after != before {
			t.Fatalf("%s changed the job of m1:\n%s\n%s", name, before, after)
		}
	}
	if log := s.call("alice", "GET", "/v1/jobs/"+string(job.ID)+"/logs", "").body; strings.Contains(log, "forged") || !strings.Contains(log, "of m1") {
		t.Errorf("log: %s", log)
	}
	if got := a.syncs(); got != http.StatusOK {
		t.Errorf("a sync of m1: %d", got)
	}
}

// A copied token opens what its machine may, and no more, until its end. It cannot get another one.
func TestACopiedAgentTokenEnds(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	k := s.joinWithKey("m1")
	s.tokens["thief"] = s.tokens["m1"]
	register := func() answer {
		return s.call("thief", "POST", "/agent/v1/register", `{"host_boot":"h","agent_boot":"of-the-thief","inventory":{}}`)
	}
	// It can take the session; the machine's own agent notices that at once, and takes it back.
	if got := register(); got.status != http.StatusOK {
		t.Fatalf("register: %d %s", got.status, got.body)
	}
	if got := k.syncs(); got != http.StatusConflict {
		t.Errorf("a sync of the agent, whose session was taken: %d", got)
	}
	k.registers()
	for name, got := range map[string]answer{
		"users' routes":  s.call("thief", "GET", "/v1/jobs", ""),
		"admins' routes": s.call("thief", "POST", "/v1/join-tokens", "{}"),
	} {
		if got.status != http.StatusForbidden {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	thief := newKey(t)
	bind := s.call("thief", "POST", "/agent/v1/key", "{}", wire.HeaderMachineKey, wire.ProveKey(thief, "m1", s.tokens["thief"]).String())
	if bind.status != http.StatusConflict {
		t.Errorf("bind of the thief's key: %d %s", bind.status, bind.body)
	}
	r, token := k.next()
	if got := s.renew(r); got.status != http.StatusOK {
		t.Fatal(got.body)
	}
	s.tokens["m1"] = token
	if got := k.syncs(); got != http.StatusOK {
		t.Errorf("sync with the next credential: %d", got)
	}
	var left float64
	err := s.db.Pool().QueryRow(t.Context(), `SELECT extract(epoch FROM expires_at - now()) FROM tokens WHERE id = $1`,
		strings.Split(s.tokens["thief"], "_")[1]).Scan(&left)
	if err != nil || left > 600 {
		t.Errorf("the copied token lives %v s more, %v", left, err)
	}
	s.exec(`UPDATE tokens SET expires_at = now() - interval '1 s' WHERE number = 0 AND machine_id = 'm1'`)
	s.server.AgeMachineTokens(5 * time.Second)
	if got := register(); got.status != http.StatusUnauthorized {
		t.Errorf("register with the ended token: %d", got.status)
	}
	renewal := wire.NewRenewal(thief, "m1", 1<<62, wire.NewMachineToken())
	if got := s.renew(renewal); got.status != http.StatusUnauthorized {
		t.Errorf("renewal by the thief's key: %d", got.status)
	}
}

// A copied join token is good until the machine that it was made for joins, and once.
func TestACopiedJoinTokenIsSpentOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	var made wire.JoinToken
	if err := json.Unmarshal([]byte(s.call("admin", "POST", "/v1/join-tokens", `{"machines":"gpu-*"}`).body), &made); err != nil {
		t.Fatal(err)
	}
	s.tokens["join"] = made.Secret
	key := newKey(t)
	proof := func(name berth.MachineID) string { return wire.ProveKey(key, name, made.Secret).String() }
	join := func(name berth.MachineID, proof string) answer {
		return s.call("join", "POST", "/agent/v1/join", fmt.Sprintf(`{"machine":%q,"token":""}`, name), wire.HeaderMachineKey, proof)
	}
	if got := join("cpu-1", proof("cpu-1")); got.status != http.StatusForbidden {
		t.Errorf("under a name that the token does not admit: %d %s", got.status, got.body)
	}
	if got := join("gpu-1", proof("gpu-2")); got.status != http.StatusBadRequest {
		t.Errorf("with a proof for another name: %d %s", got.status, got.body)
	}
	if got := join("gpu-1", proof("gpu-1")); got.status != http.StatusCreated {
		t.Fatalf("join: %d %s", got.status, got.body)
	}
	for _, name := range []berth.MachineID{"gpu-1", "gpu-2"} {
		if got := join(name, proof(name)); got.status != http.StatusUnauthorized {
			t.Errorf("again as %s: %d %s", name, got.status, got.body)
		}
	}
}
