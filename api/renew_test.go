package api_test

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/api"
	"berth/db"
	"berth/wire"
)

// keyed is an agent with a key.
type keyed struct {
	*agent
	key    ed25519.PrivateKey
	number int64
}

func newKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// joinWithKey joins and registers a machine with a key.
func (s *site) joinWithKey(name berth.MachineID) *keyed {
	s.t.Helper()
	k := &keyed{agent: &agent{site: s, machine: name, boot: "boot-of-" + string(name)}, key: newKey(s.t)}
	join := s.joinToken()
	s.tokens["join"] = join
	a := s.call("join", "POST", "/agent/v1/join", fmt.Sprintf(`{"machine":%q,"token":""}`, name),
		wire.HeaderMachineKey, wire.ProveKey(k.key, name, join).String())
	var j wire.JoinResponse
	if err := json.Unmarshal([]byte(a.body), &j); err != nil || a.status != http.StatusCreated || j.TTLSeconds != 24*60*60 {
		s.t.Fatalf("join: %d %s", a.status, a.body)
	}
	s.tokens[string(name)] = j.Token
	k.registers()
	return k
}

func (k *keyed) registers() {
	k.t.Helper()
	var r wire.RegisterResponse
	k.post("register", wire.RegisterRequest{
		HostBoot: "h", AgentBoot: k.boot,
		Inventory: wire.Inventory{Capacity: berth.Capacity{CPUMilli: 4000, MemoryMiB: 8192, DiskMiB: 1000}},
	}, &r)
	k.epoch = r.Epoch
}

// next is the machine's next renewal.
func (k *keyed) next() (wire.Renewal, string) {
	k.number++
	token := wire.NewMachineToken()
	return wire.NewRenewal(k.key, k.machine, k.number, token), token
}

func (s *site) renew(r wire.Renewal) answer {
	s.t.Helper()
	return s.call("", "POST", "/agent/v1/renew", "", wire.HeaderRenewal, r.String())
}

func TestAgentsRenewTheirCredentialByTheirKey(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	k := s.joinWithKey("m1")
	first := s.tokens["m1"]
	s.exec(`UPDATE tokens SET expires_at = now() - interval '1 hour' WHERE machine_id = 'm1'`)
	s.server.AgeMachineTokens(5 * time.Second)
	if a := s.call("m1", "POST", "/agent/v1/claim", "{}"); a.status != http.StatusUnauthorized || a.problem.Code != wire.SlugCredentialEnded {
		t.Errorf("a call with an ended credential: %d %s", a.status, a.body)
	}
	r, token := k.next()
	a := s.renew(r)
	if a.status != http.StatusOK || strings.Contains(a.body, token) {
		t.Fatalf("renewal: %d %s", a.status, a.body)
	}
	s.tokens["m1"] = token
	k.registers()
	if got := k.syncs(); got != http.StatusOK {
		t.Errorf("a sync with the next credential: %d", got)
	}
	if a := s.renew(r); a.status != http.StatusOK { // a lost answer
		t.Errorf("the same renewal again: %d %s", a.status, a.body)
	}
	s.tokens["m1"] = first
	eventually(t, "the refusal of a sync with the ended credential", func() bool { return k.syncs() == http.StatusUnauthorized })
}

func TestRenewalsByOthersAreRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.server.StopRates()
	k := s.joinWithKey("m1")
	other := s.joinWithKey("m2")
	for _, text := range []string{"", "m1", "m1 a 1 b c d", strings.Repeat("x", 2000)} {
		if a := s.call("", "POST", "/agent/v1/renew", "", wire.HeaderRenewal, text); a.status != http.StatusBadRequest {
			t.Errorf("renewal %.20q: %d %s", text, a.status, a.body)
		}
	}
	r, _ := k.next()
	edited := r
	edited.TokenSum = make([]byte, 32) // the caller's own token, under a copied signature
	stranger := &keyed{agent: k.agent, key: newKey(t)}
	unknown, _ := stranger.next()
	wrong, _ := (&keyed{agent: k.agent, key: other.key}).next()
	for name, r := range map[string]wire.Renewal{"another token": edited, "an unknown key": unknown, "the key of m2": wrong} {
		if a := s.renew(r); a.status != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	if a := s.renew(r); a.status != http.StatusOK {
		t.Errorf("the machine's own: %d %s", a.status, a.body)
	}
	// Refusals are charged to the address, as wrong tokens are.
	limited := false
	for range 150 {
		limited = limited || s.renew(unknown).status == http.StatusTooManyRequests
	}
	if !limited {
		t.Error("150 renewals by an unknown key were all answered 401")
	}
	r, _ = k.next()
	if a := s.renew(r); a.status != http.StatusOK {
		t.Errorf("a good renewal from an address that guesses: %d %s", a.status, a.body)
	}
}

func TestAKeyIsProvenAndBoundOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.joinMachine("m1") // as an agent of the version before
	bind := func(key ed25519.PrivateKey, machine berth.MachineID, token string) answer {
		return s.call("m1", "POST", "/agent/v1/key", "{}", wire.HeaderMachineKey, wire.ProveKey(key, machine, token).String())
	}
	key, token := newKey(t), s.tokens["m1"]
	for name, got := range map[string]answer{
		"no key":                      s.call("m1", "POST", "/agent/v1/key", "{}"),
		"a proof for another machine": bind(key, "m2", token),
		"a proof for another token":   bind(key, "m1", wire.NewMachineToken()),
	} {
		if got.status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	if got := bind(key, "m1", token); got.status != http.StatusNoContent {
		t.Fatalf("bind: %d %s", got.status, got.body)
	}
	if got := bind(newKey(t), "m1", token); got.status != http.StatusConflict || got.problem.Code != wire.SlugKeyBound {
		t.Errorf("another key: %d %s", got.status, got.body)
	}
	k := &keyed{agent: a, key: key}
	r, next := k.next()
	if got := s.renew(r); got.status != http.StatusOK {
		t.Fatalf("renew: %d %s", got.status, got.body)
	}
	s.tokens["m1"] = next
	if got := a.syncs(); got != http.StatusOK {
		t.Errorf("sync: %d", got)
	}
	s.tokens["join"] = s.joinToken()
	got := s.call("join", "POST", "/agent/v1/join", `{"machine":"m3","token":""}`, wire.HeaderMachineKey, wire.ProveKey(key, "m3", "other").String())
	if got.status != http.StatusBadRequest {
		t.Errorf("a join with a proof for another join token: %d %s", got.status, got.body)
	}
}

// A revocation reaches a renewed credential that is cached, and its successor, on every replica.
func TestRevocationReachesRenewedCredentials(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	k := s.joinWithKey("m1")
	first := strings.Split(s.tokens["m1"], "_")[1]
	r, token := k.next()
	if a := s.renew(r); a.status != http.StatusOK {
		t.Fatal(a.body)
	}
	s.tokens["m1"] = token
	if got := k.syncs(); got != http.StatusOK {
		t.Fatalf("sync: %d", got)
	}
	s.exec(`UPDATE tokens SET revoked_at = now() WHERE id = $1`, first) // the one that an operator saw, by another replica
	s.server.AgeMachineTokens(5 * time.Second)
	eventually(t, "the refusal of a sync after the revocation", func() bool { return k.syncs() == http.StatusUnauthorized })
	r, _ = k.next()
	if a := s.renew(r); a.status != http.StatusUnauthorized {
		t.Errorf("a renewal after the revocation: %d %s", a.status, a.body)
	}
}

// Calls with a cached credential write nothing and read no token.
func TestRenewedCredentialsCostNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	k := s.joinWithKey("m1")
	r, token := k.next()
	if a := s.renew(r); a.status != http.StatusOK {
		t.Fatal(a.body)
	}
	s.tokens["m1"] = token
	if got := k.syncs(); got != http.StatusOK {
		t.Fatalf("sync: %d", got)
	}
	s.server.AgeMachineTokens(3 * time.Second)
	k.syncs() // confirms the credential
	s.locked("tokens, machine_keys", func() {
		if got := k.syncs(); got != http.StatusOK {
			t.Errorf("a sync with the tables of credentials locked: %d", got)
		}
	})
}

// An upload of a machine outlives the end of its credential, and not its revocation.
func TestATransferOutlivesItsCredential(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(d *api.Deps) {
		d.Transfers = api.TransferLimits{Recheck: 20 * time.Millisecond, Stall: time.Hour, UploadWindow: time.Hour}
	})
	machines := map[berth.MachineID]*keyed{}
	uploads := func(name berth.MachineID) (conn net.Conn, token string) {
		k := s.joinWithKey(name)
		machines[name] = k
		s.sessions[string(name)] = db.Session{AgentBoot: k.boot, Epoch: k.epoch}
		job := s.submit("alice", nil)
		k.take(job.ID)
		conn = s.half(fmt.Sprintf("PUT /agent/v1/objects/%s/file-000000 HTTP/1.1\r\nConnection: close\r\nContent-Length: 10\r\nAuthorization: Bearer %s\r\n%s: %s\r\n%s: %d",
			berth.CheckpointKey("a", job.ID, 1, 0, 5), s.tokens[string(name)], wire.HeaderAgentBoot, k.boot, wire.HeaderEpoch, k.epoch), "12345")
		token = strings.Split(s.tokens[string(name)], "_")[1]
		eventually(t, "the upload", func() bool { return s.server.TransfersOf(token) == 1 })
		return conn, token
	}
	ended, endedToken := uploads("m1")
	_, revokedToken := uploads("m2")
	s.exec(`UPDATE tokens SET expires_at = now() - interval '1 hour' WHERE id = $1`, endedToken)
	for range 2 { // renewals may take long to succeed, and an upload long to end
		r, _ := machines["m1"].next()
		if a := s.renew(r); a.status != http.StatusOK {
			t.Fatal(a.body)
		}
	}
	s.server.AgeMachineTokens(5 * time.Second)
	s.exec(`UPDATE tokens SET revoked_at = now() WHERE id = $1`, revokedToken)
	eventually(t, "the cut of the revoked machine's upload", func() bool { return s.server.TransfersOf(revokedToken) == 0 })
	if _, err := io.WriteString(ended, "67890"); err != nil {
		t.Fatal(err)
	}
	if code, _ := status(t, ended); code != http.StatusNoContent {
		t.Errorf("the upload under an ended credential: %d", code)
	}
}
