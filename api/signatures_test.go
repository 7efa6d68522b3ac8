package api_test

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"berth"
	"berth/spec"
	"berth/wire"
)

func TestSignaturesAreDemandedAtTheClaim(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	key := string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	s.secret("TOKEN", "alice", canary)
	job := s.submit("alice", func(j *spec.Job) { j.Secrets = []string{"TOKEN"} })

	for _, rules := range []string{`[]`, `[{"keys": []}]`, `[{"keys": ["x"]}]`, `[{"repositories": ["x"], "keys": []}]`} {
		a := s.call("admin", "PUT", "/v1/quotas/a", `{"image_signatures": `+rules+`}`)
		if a.status != http.StatusUnprocessableEntity || len(a.problem.Errors) == 0 ||
			!strings.HasPrefix(a.problem.Errors[0].Field, "image_signatures") {
			t.Errorf("%s: %d %s", rules, a.status, a.body)
		}
	}
	rule := fmt.Sprintf(`{"image_signatures": [{"repositories": ["docker.io"], "keys": [%q]}]}`, key)
	if a := s.call("admin", "PUT", "/v1/quotas/a", rule); a.status != http.StatusOK ||
		!strings.Contains(a.body, `"image_signatures":[{"repositories":["docker.io"],"keys":["-----BEGIN`) {
		t.Fatalf("%d %s", a.status, a.body)
	}

	// An agent that verifies no signatures gets neither the work nor the secrets. It reports a secret
	// that is unavailable, so that the job moves to another machine.
	m := s.joinMachine("m1")
	c := m.take(job.ID)
	if c.Withheld == nil || c.Withheld.Missing || !strings.Contains(c.Withheld.Message, "upgrade the agent") ||
		len(c.Secrets) > 0 || len(c.Signatures) > 0 {
		t.Errorf("an agent of an earlier version gets %+v", c)
	}
	claim := func() (c wire.Claim) {
		t.Helper()
		body, err := json.Marshal(wire.ClaimRequest{
			AgentBoot: m.boot, Epoch: m.epoch, Alloc: m.run.Alloc, Job: job.ID, Attempt: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		got := s.call("m1", "POST", "/agent/v1/claim", string(body), wire.HeaderSignatures, "1")
		if err := json.Unmarshal([]byte(got.body), &c); err != nil || got.status != http.StatusOK {
			t.Fatalf("%d %s", got.status, got.body)
		}
		return c
	}
	if c = claim(); c.Withheld != nil || len(c.Secrets) != 1 || len(c.Signatures) != 1 ||
		c.Signatures[0].Whose != "tenant a" || c.Signatures[0].Keys[0] != key {
		t.Errorf("an agent that verifies signatures gets %+v", c)
	}

	// A rule does not affect a container that has started.
	s.exec(`UPDATE allocations SET phase = $1 WHERE id = $2`, berth.PhaseRunning, m.run.Alloc)
	if c = claim(); c.Withheld != nil || len(c.Signatures) > 0 {
		t.Errorf("a container that runs gets %+v", c)
	}
	if a := s.call("admin", "PUT", "/v1/quotas/a", `{"image_signatures": null}`); a.status != http.StatusOK ||
		strings.Contains(a.body, "image_signatures") {
		t.Errorf("lifted: %d %s", a.status, a.body)
	}
}
