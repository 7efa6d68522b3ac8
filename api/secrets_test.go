package api_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth"
	"berth/api"
	"berth/internal/lib/sealer"
	"berth/spec"
	"berth/wire"
)

// keys returns the keys of a key file, each given by one digit.
func keys(t *testing.T, digits string) *sealer.Keys {
	t.Helper()
	var text string
	for _, d := range digits {
		text += strings.Repeat(string(d), 64) + "\n"
	}
	at := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := sealer.Load(at)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

const canary = "hunter2-canary"

func (s *site) secret(name, of, value string) answer {
	s.t.Helper()
	return s.call(of, "POST", "/v1/secrets", fmt.Sprintf(`{"name":%q,"value":%q}`, name, value))
}

func naming(secrets ...string) func(*spec.Job) {
	return func(j *spec.Job) { j.Secrets = secrets }
}

// The job's own choice counts, and the server's default where the job has made none.
func TestAClaimSaysHowTheContainerReceivesItsSecrets(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(d *api.Deps) { d.SecretsAs = spec.SecretsFile })
	s.secret("TOKEN", "alice", canary)
	for i, c := range []struct{ job, want string }{{"", spec.SecretsFile}, {spec.SecretsEnv, spec.SecretsEnv}} {
		a := s.joinMachine(berth.MachineID(fmt.Sprintf("m%d", i)))
		job := s.submit("alice", func(j *spec.Job) { j.Secrets, j.SecretsAs = []string{"TOKEN"}, c.job })
		if got := a.take(job.ID); got.Spec.SecretsAs != c.want || len(got.Secrets) != 1 {
			t.Errorf("secrets_as %q: the claim has %q, %d secrets", c.job, got.Spec.SecretsAs, len(got.Secrets))
		}
		if shown := s.call("alice", "GET", "/v1/jobs/"+string(job.ID), ""); strings.Contains(shown.body, `"secrets_as":"file"`) {
			t.Errorf("the job file has changed: %s", shown.body)
		}
	}
}

func TestSecretsAreToldToTheMachineThatRunsTheJobAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	if got := s.secret("TOKEN", "alice", canary); got.status != http.StatusCreated || strings.Contains(got.body, canary) {
		t.Fatalf("%d %s", got.status, got.body)
	}
	s.secret("OTHER", "alice", "another")
	s.secret("LOGIN", "alice", "me:pass:word\n")
	if got := s.secret("TOKEN", "bob", "bob's own"); got.status != http.StatusCreated {
		t.Errorf("another tenant's secret of the same name: %d", got.status)
	}
	a := s.joinMachine("m1")
	job := s.submit("alice", func(j *spec.Job) { j.Secrets, j.ImageAuth = []string{"TOKEN"}, "LOGIN" })
	c := a.take(job.ID)
	if len(c.Secrets) != 1 || c.Secrets[0].Name != "TOKEN" || string(c.Secrets[0].Value) != canary || c.Withheld != nil {
		t.Errorf("claimed %+v", c)
	}
	if c.ImageLogin == nil || string(c.ImageLogin.Username) != "me" || string(c.ImageLogin.Password) != "pass:word" {
		t.Errorf("the login is %+v", c.ImageLogin)
	}
	if text := fmt.Sprintf("%v %+v %#v %s", c, c, c.Secrets, c.Secrets[0].Value); strings.Contains(text, canary) {
		t.Errorf("a claim prints its secrets: %s", text)
	}
	again := wire.ClaimRequest{AgentBoot: a.boot, Epoch: a.epoch, Alloc: a.run.Alloc, Job: job.ID, Attempt: 1}
	var second wire.Claim
	a.post("claim", again, &second)
	if len(second.Secrets) != 1 {
		t.Error("an agent that was restarted before it made the container gets none")
	}
	s.exec(`UPDATE allocations SET phase = 'running' WHERE id = $1`, int64(a.run.Alloc))
	if got := a.post("claim", again, nil); strings.Contains(got.body, canary) || got.status != http.StatusOK {
		t.Errorf("a claim of what runs: %d %s", got.status, got.body)
	}
	s.exec(`UPDATE allocations SET phase = 'claimed' WHERE id = $1`, int64(a.run.Alloc))
	b := s.joinMachine("m2")
	for what, req := range map[string]struct {
		who *agent
		wire.ClaimRequest
	}{
		"another machine":  {b, wire.ClaimRequest{AgentBoot: b.boot, Epoch: b.epoch, Alloc: a.run.Alloc, Job: job.ID, Attempt: 1}},
		"an older process": {a, wire.ClaimRequest{AgentBoot: "x", Epoch: a.epoch, Alloc: a.run.Alloc, Job: job.ID, Attempt: 1}},
		"an older epoch":   {a, wire.ClaimRequest{AgentBoot: a.boot, Epoch: a.epoch - 1, Alloc: a.run.Alloc, Job: job.ID, Attempt: 1}},
		"another attempt":  {a, wire.ClaimRequest{AgentBoot: a.boot, Epoch: a.epoch, Alloc: a.run.Alloc, Job: job.ID, Attempt: 2}},
	} {
		if got := req.who.post("claim", req.ClaimRequest, nil); got.status < 400 || strings.Contains(got.body, canary) {
			t.Errorf("%s: %d %s", what, got.status, got.body)
		}
	}
	for _, path := range []string{"/v1/jobs/" + string(job.ID), "/v1/jobs/" + string(job.ID) + "/events", "/v1/secrets", "/v1/jobs/" + string(job.ID) + "/explain"} {
		if got := s.call("alice", "GET", path, ""); strings.Contains(got.body, canary) {
			t.Errorf("%s tells it: %s", path, got.body)
		}
	}
	if strings.Contains(s.log.String(), canary) {
		t.Error("the server's log tells it")
	}
}

func TestSecretsThatAreGoneFailTheClaimClearly(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	for _, name := range []string{"GONE", "BAD", "LOST"} {
		s.secret(name, "alice", canary)
	}
	take := func(machine berth.MachineID, edit func(*spec.Job), spoil string) wire.Claim {
		job := s.submit("alice", edit)
		s.exec(spoil)
		return s.joinMachine(machine).take(job.ID)
	}
	c := take("m1", naming("GONE", "BAD"), `DELETE FROM secrets WHERE name = 'GONE'`)
	if c.Withheld == nil || !c.Withheld.Missing || !strings.Contains(c.Withheld.Message, "GONE was deleted") || len(c.Secrets) > 0 {
		t.Errorf("deleted: %+v", c.Withheld)
	}
	c = take("m2", naming("LOST"), `UPDATE secrets SET key_id = 'x' WHERE name = 'LOST'`)
	if c.Withheld == nil || c.Withheld.Missing || !strings.Contains(c.Withheld.Message, "sealed with key x") {
		t.Errorf("of an unknown key: %+v", c.Withheld)
	}
	c = take("m3", func(j *spec.Job) { j.ImageAuth = "BAD" }, `SELECT 1`)
	if c.Withheld == nil || !c.Withheld.Missing || !strings.Contains(c.Withheld.Message, "USER:PASSWORD") {
		t.Errorf("no login: %+v", c.Withheld)
	}
	// Rows that are swapped do not open.
	c = take("m4", naming("BAD"), `UPDATE secrets SET sealed = (SELECT sealed FROM secrets WHERE name = 'LOST') WHERE name = 'BAD'`)
	if c.Withheld == nil || len(c.Secrets) > 0 {
		t.Errorf("another secret's row: %+v", c)
	}
}

func TestSecretsThatAreNotAllowedAreRefusedWithoutTheirValue(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	for _, body := range []string{
		`{"name":"../x","value":"hunter2-canary"}`, `{"name":"","value":"hunter2-canary"}`, `{"name":"A","value":""}`, `{"name":"A"}`,
		`{"name":"A","value":4711}`, `{"name":"A","value":["hunter2-canary"]}`, `{"name":"A","value":"hunter2-canary\u0000"}`, `{"name":"A","value":"hunter2-canary","x":1}`,
		`{"name":"A","value":"` + strings.Repeat("x", 70_000) + `"}`, `{"name":"A","value":"hunter2-canary`, `hunter2-canary`,
	} {
		got := s.call("alice", "POST", "/v1/secrets", body)
		if got.status != 422 && got.status != 400 || strings.Contains(got.body, canary) || strings.Contains(got.body, "4711") {
			t.Errorf("%.60s: %d %s", body, got.status, got.body)
		}
	}
	if got := s.secret("A", "viewer", "x"); got.status != http.StatusForbidden {
		t.Errorf("a viewer sets one: %d", got.status)
	}
	if strings.Contains(s.log.String(), canary) {
		t.Error("the server's log tells a value")
	}
	for _, who := range []string{"alice", "bob"} {
		s.secret("THEIRS", "alice", canary)
		got := s.call(who, "POST", "/v1/jobs", `{"name":"a","image":"b","secrets":["THEIRS"]}`)
		if want := map[string]int{"alice": 201, "bob": 422}[who]; got.status != want {
			t.Errorf("%s names alice's: %d %s", who, got.status, got.body)
		}
	}
	none := newSite(t, func(d *api.Deps) { d.Vault = nil })
	for _, got := range []answer{none.secret("A", "alice", canary), none.call("alice", "POST", "/v1/jobs", `{"name":"a","image":"b","secrets":["A"]}`)} {
		if got.status != http.StatusConflict || !strings.Contains(got.body, "--secret-key-file") {
			t.Errorf("without a key: %d %s", got.status, got.body)
		}
	}
}
