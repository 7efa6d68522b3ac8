package attacks_test

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"berth"
	"berth/e2e/commands"
	"berth/e2e/rig"
	"berth/internal/control/authority"
	"berth/spec"
	"berth/wire"
)

// thief is a machine whose credential the attacker has. It has joined with a valid token and is too small for any job.
type thief struct {
	*attempt
	name, token, boot string
	epoch             int64
}

// newThief joins a machine with a valid join token and registers it.
func (a *attempt) newThief(name string) *thief {
	a.t.Helper()
	join, err := a.API.CreateJoinToken(a.t.Context(), spec.NewJoinToken{})
	if err != nil {
		a.t.Fatal(err)
	}
	var joined wire.JoinResponse
	body := fmt.Sprintf(`{"machine":%q,"token":""}`, name)
	if err := json.Unmarshal(a.must(join.Secret, "POST", "/agent/v1/join", body), &joined); err != nil {
		a.t.Fatal(err)
	}
	th := &thief{attempt: a, name: name, token: joined.Token, boot: "boot-of-" + name}
	var r wire.RegisterResponse
	body = fmt.Sprintf(`{"host_boot":"h","agent_boot":%q,`+
		`"inventory":{"capacity":{"cpu_milli":1,"memory_mib":1,"disk_mib":1}}}`, th.boot)
	if err := json.Unmarshal(a.must(th.token, "POST", "/agent/v1/register", body), &r); err != nil {
		a.t.Fatal(err)
	}
	th.epoch = r.Epoch
	return th
}

// terms returns the JSON fields that each call of the thief has.
func (th *thief) terms() string { return fmt.Sprintf(`"agent_boot":%q,"epoch":%d`, th.boot, th.epoch) }

// allocation returns the id of a running job's open allocation, and its row as text.
func (a *attempt) allocation(id berth.JobID) (alloc int64, row string) {
	a.t.Helper()
	err := a.DB.QueryRow(a.t.Context(), `SELECT a.id, concat_ws(' ', machine_id, attempt, state, phase, exit)
		FROM allocations a WHERE job = $1 AND state <> 'released'`, id).Scan(&alloc, &row)
	if err != nil {
		a.t.Fatal(err)
	}
	return alloc, row
}

func foreignMachine(a *attempt) {
	th := a.newThief("thief-1")
	id := a.submit(a.victim, map[string]any{"secrets": []string{"hers"}}, "sleep", "10m")
	defer a.cancel(a.victim, id)
	a.running(id)
	alloc, before := a.allocation(id)
	member := fmt.Sprintf(`"alloc":%d,"job":%q,"attempt":1`, alloc, id)
	zero := strings.Repeat("0", 64)
	key := berth.CheckpointKey(victim, id, 1, 0, 5) + "/" + berth.ManifestName
	for _, c := range []struct {
		method, path, body string
		answered           bool // 2xx without an effect, since the call concerns the thief's own members
	}{
		{"POST", "claim", fmt.Sprintf(`{%s,%s}`, th.terms(), member), false},
		{"POST", "sync", fmt.Sprintf(`{%s,"seq":1,"reports":[{%s,"rank":0,"phase":"sealed",`+
			`"exit":{"cause":"exited","code":0}}],"gone":[%d]}`, th.terms(), member, alloc), true},
		{"POST", "checkpoints", fmt.Sprintf(`{%s,%s,"rank":0,"step":5,"of_attempt":1,`+
			`"manifest":%q,"sha256":%q,"bytes":1}`, th.terms(), member, key, zero), false},
		{"POST", "outputs", fmt.Sprintf(`{%s,%s,"rank":0,"output":{"name":"x","path":"x","size":1,"sha256":%q}}`,
			th.terms(), member, zero), false},
		{"POST", "image", fmt.Sprintf(`{%s,%s,"digest":"sha256:%s"}`, th.terms(), member, zero), false},
		{"PUT", fmt.Sprintf("logs/%d?offset=0", alloc), "2026-01-02T03:04:06Z o forged\n", false},
		{"PUT", "objects/" + key, "{}", false},
		{"GET", "objects/" + key, "", false},
		{"POST", "object-access", fmt.Sprintf(`{%s,"key":%q,"method":"GET"}`, th.terms(), key), false},
		{"GET", fmt.Sprintf("uploads/%d/%s", alloc, zero), "", false},
	} {
		got := a.call(th.token, c.method, "/agent/v1/"+c.path, c.body)
		if got.Good() != c.answered || strings.Contains(string(got.Body), a.secret) ||
			strings.Contains(string(got.Body), string(id)) {
			a.breach("%s %s: %d %s", c.method, c.path, got.Status, got.clipped())
		}
	}
	j := a.show(id)
	if _, after := a.allocation(id); j.Status != berth.Running || j.Attempt != 1 || after != before {
		a.breach("the job is %s in attempt %d; its allocation\n%s\nwas\n%s", j.Status, j.Attempt, after, before)
	}
	if strings.Contains(a.log(a.victim, id), "forged") {
		a.breach("the log has a forged line")
	}
	a.saw("10 calls without effect")
}

func replays(a *attempt) {
	th := a.newThief("thief-2")
	sync := func(seq int64, gpus string) answer {
		body := fmt.Sprintf(`{%s,"seq":%d,"brief":true%s}`, th.terms(), seq, gpus)
		return a.call(th.token, "POST", "/agent/v1/sync", body)
	}
	a.refused("in order", sync(5, ""), 200)
	ill := `,"gpus":[{"index":0,"uuid":"GPU-forged","model":"H100","memory_mib":81920,"state":"healthy"}]`
	for _, seq := range []int64{5, 3, 1} {
		got := sync(seq, ill)
		if got.Status >= 500 || got.Status == 0 {
			a.breach("sequence %d: %d %s", seq, got.Status, got.clipped())
		}
	}
	var forged int
	err := a.DB.QueryRow(a.t.Context(), `SELECT count(*) FROM gpu_devices WHERE uuid = 'GPU-forged'`).Scan(&forged)
	if err != nil {
		a.t.Fatal(err)
	}
	if forged > 0 {
		a.breach("an older call changed the machine")
	}
	old := *th
	var r wire.RegisterResponse
	th.boot = "a-later-boot"
	body := fmt.Sprintf(`{"host_boot":"h","agent_boot":%q,"inventory":{}}`, th.boot)
	if err := json.Unmarshal(a.must(th.token, "POST", "/agent/v1/register", body), &r); err != nil {
		a.t.Fatal(err)
	}
	got := a.call(old.token, "POST", "/agent/v1/sync", fmt.Sprintf(`{%s,"seq":99}`, old.terms()))
	a.refused("session before", got, 409)
	a.saw("older sequences change nothing")
}

func joinTokens(a *attempt) {
	join := func(token, machine string) answer {
		body := fmt.Sprintf(`{"machine":%q,"token":""}`, machine)
		return a.callFrom("127.0.0.9", token, "POST", "/agent/v1/join", body)
	}
	joinToken := func(n spec.NewJoinToken) wire.JoinToken {
		made, err := a.API.CreateJoinToken(a.t.Context(), n)
		if err != nil {
			a.t.Fatal(err)
		}
		return made
	}
	used := joinToken(spec.NewJoinToken{})
	a.refused("the first join", join(used.Secret, "thief-3"), 201)
	a.refused("used", join(used.Secret, "thief-4"), 401)
	revoked := joinToken(spec.NewJoinToken{})
	if err := a.API.RevokeJoinToken(a.t.Context(), revoked.ID); err != nil {
		a.t.Fatal(err)
	}
	a.refused("revoked", join(revoked.Secret, "thief-5"), 401)
	last := used.Secret[:len(used.Secret)-8] + "00000000"
	a.refused("forged", join(last, "thief-6"), 401)
	a.refused("another name", join(joinToken(spec.NewJoinToken{Machines: "gpu-*"}).Secret, "thief-7"), 401, 403, 422)
	expired := joinToken(spec.NewJoinToken{})
	if _, err := a.DB.Exec(a.t.Context(),
		`UPDATE join_tokens SET expires_at = now() - interval '1 second' WHERE id = $1`, expired.ID); err != nil {
		a.t.Fatal(err)
	}
	a.refused("expired", join(expired.Secret, "thief-8"), 401)
	th := a.newThief("thief-9")
	if _, err := a.API.Drain(a.t.Context(), "thief-9", wire.DrainRequest{}); err != nil {
		a.t.Fatal(err)
	}
	err := rig.Await(a.t.Context(), rig.Patience, func(ctx context.Context) error {
		return a.API.RemoveMachine(ctx, "thief-9")
	})
	if err != nil {
		a.t.Fatal(err)
	}
	got := a.callFrom("127.0.0.9", th.token, "POST", "/agent/v1/sync",
		fmt.Sprintf(`{%s,"seq":1,"brief":true}`, th.terms()))
	a.refused("removed machine", got, 401, 403, 409)
}

func objectsOfOthers(a *attempt) {
	th := a.newThief("thief-10")
	more := map[string]any{"outputs": []any{map[string]any{"name": "model", "path": "/workspace/model"}}}
	id := a.submit(a.victim, more, "write-file", "/workspace/model", "canary-of-the-output")
	if j := a.ended(id); j.Status != berth.Succeeded {
		a.t.Fatalf("the victim's job is %s", j.Status)
	}
	sum := sha256.Sum256([]byte("x"))
	for _, key := range []string{
		berth.CheckpointKey(victim, id, 1, 0, 1) + "/" + berth.ManifestName,
		"outputs/victim/" + string(id) + "/1/model", "tenants/victim/secrets", "../../etc/passwd",
		"%2e%2e/%2e%2e/etc/passwd",
	} {
		for _, method := range []string{"GET", "PUT"} {
			got := a.call(th.token, method, "/agent/v1/objects/"+key, "x",
				"X-Content-Sha256", hex.EncodeToString(sum[:]))
			if got.Good() || got.Status >= 500 || got.Status == 0 || strings.Contains(string(got.Body), "canary") {
				a.breach("%s %s: %d %s", method, key, got.Status, got.clipped())
			}
			got = a.call(th.token, "POST", "/agent/v1/object-access", fmt.Sprintf(
				`{%s,"key":%q,"method":%q,"bytes":1,"sha256":%q}`, th.terms(), key, method, hex.EncodeToString(sum[:])))
			if got.Good() || got.Status >= 500 || got.Status == 0 {
				a.breach("an address to %s %s: %d %s", method, key, got.Status, got.clipped())
			}
		}
	}
	// The agent's folder has the credential of the machine that ran the job. The open session belongs to the agent,
	// so a thief with the file must open another session, which ends when the agent registers again.
	b, err := os.ReadFile(filepath.Join(a.StateDir(string(a.show(id).Attempts[0].Machines[0])), "credential.json"))
	if err != nil {
		a.t.Fatal(err)
	}
	var c struct {
		Token string `json:"token"`
	}
	if err := json.Unmarshal(b, &c); err != nil || c.Token == "" {
		a.t.Fatalf("credential of the agent: %v", err)
	}
	key := berth.CheckpointKey(victim, id, 1, 0, 1) + "/" + berth.ManifestName
	got := a.call(c.Token, "PUT", "/agent/v1/objects/"+key, "{}")
	if got.Good() {
		a.breach("an object of an attempt that has ended: %d %s", got.Status, got.clipped())
	}
	a.saw("5 keys by GET and PUT, straight and by a signed address; after the end: %d", got.Status)
}

// secured starts a replica of berthd that serves TLS, and returns its address and the root certificates.
func (a *attempt) secured() (address string, roots *x509.CertPool) {
	a.t.Helper()
	dir := a.t.TempDir()
	now := time.Now()
	err := authority.Init(dir, "attacks", now.Add(-time.Hour))
	if err == nil {
		err = authority.Issue(dir, "api", []string{"localhost"}, 30, authority.Access{}, now)
	}
	if err != nil {
		a.t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		a.t.Fatal(err)
	}
	roots = x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		a.t.Fatal("no certificate of the authority")
	}
	if address, err = commands.Address(); err != nil {
		a.t.Fatal(err)
	}
	stop, err := a.StartExtra("tls", "--listen", address, "--role", "api",
		"--tls-cert", filepath.Join(dir, "api.crt"), "--tls-key", filepath.Join(dir, "api.key"))
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(stop)
	err = rig.Await(a.t.Context(), rig.Patience, func(context.Context) error {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	if err != nil {
		a.t.Fatal(err)
	}
	return address, roots
}

// scanFolder returns the files below a folder of the stack that contain a text.
func (f *field) scanFolder(folder, text string) (found []string) {
	f.t.Helper()
	for _, name := range f.scan(text) {
		if strings.HasPrefix(filepath.Join(f.Dir, name), folder+string(filepath.Separator)) {
			found = append(found, name)
		}
	}
	return found
}
