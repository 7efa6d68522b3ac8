package db_test

import (
	"crypto/ed25519"
	"maps"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// keyed is a machine with a key and the credentials that it has had.
type keyed struct {
	*stage
	id     berth.MachineID
	key    ed25519.PrivateKey
	number int64
	tokens []string
}

func newKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func public(key ed25519.PrivateKey) ed25519.PublicKey { return key.Public().(ed25519.PublicKey) }

// joinsWithKey has a machine join with a key.
func (s *stage) joinsWithKey(id berth.MachineID) *keyed {
	s.t.Helper()
	k := &keyed{stage: s, id: id, key: newKey(s.t)}
	j, err := s.db.JoinTokens.Create(s.t.Context(), spec.NewJoinToken{}, "operator:test")
	if err != nil {
		s.t.Fatal(err)
	}
	answer, err := s.db.JoinTokens.JoinWithKey(s.t.Context(), j.Secret, id, public(k.key), "")
	if err != nil || answer.TTLSeconds != 24*60*60 {
		s.t.Fatalf("join: %+v, %v", answer, err)
	}
	k.tokens = []string{answer.Token}
	return k
}

// next is the machine's next renewal, for a token of its own choice.
func (k *keyed) next() (wire.Renewal, string) {
	k.number++
	token := wire.NewMachineToken()
	return wire.NewRenewal(k.key, k.id, k.number, token), token
}

// renews renews the credential, and returns the token.
func (k *keyed) renews() string {
	k.t.Helper()
	r, token := k.next()
	answer, err := k.db.Tokens.Renew(k.t.Context(), r)
	if err != nil || answer.TTLSeconds != 24*60*60 || answer.Cluster == "" || answer.Returned {
		k.t.Fatalf("renew: %+v, %v", answer, err)
	}
	k.tokens = append(k.tokens, token)
	return token
}

// uses is a call with a token, as the API makes it.
func (k *keyed) uses(token string) error {
	k.t.Helper()
	p, err := k.db.Tokens.Authenticate(k.t.Context(), token)
	if err == nil && p.Unused {
		err = k.db.Tokens.FirstUse(k.t.Context(), p.TokenID)
	}
	return err
}

// passes lets time pass for all credentials and keys.
func (k *keyed) passes(d time.Duration) {
	k.t.Helper()
	mustExec(k.t, k.pool, `UPDATE tokens SET expires_at = expires_at - $1::interval`, d)
	mustExec(k.t, k.pool, `UPDATE machine_keys SET until = until - $1::interval`, d)
}

func tokenIDOf(token string) string { return strings.Split(token, "_")[1] }

func TestACredentialEndsAndItsKeyRenewsIt(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	k := s.joinsWithKey("k1")
	if err := k.uses(k.tokens[0]); err != nil {
		t.Fatal(err)
	}
	k.passes(25 * time.Hour)
	if err := k.uses(k.tokens[0]); !berth.IsSlug(err, wire.SlugCredentialEnded) || berth.CodeOf(err) != berth.CodeUnauthorized {
		t.Errorf("the ended credential: %v", err)
	}
	if live, err := s.db.Tokens.Live(t.Context(), []string{tokenIDOf(k.tokens[0])}); err != nil || len(live) != 0 {
		t.Errorf("an ended credential is live: %v, %v", live, err)
	}
	// A copied token has no key: it renews nothing.
	thief := &keyed{stage: s, id: "k1", key: newKey(t), number: 10}
	r, _ := thief.next()
	if _, err := s.db.Tokens.Renew(t.Context(), r); !berth.IsSlug(err, wire.SlugUnknownKey) {
		t.Errorf("a renewal by another key: %v", err)
	}
	// Nor does the key of another machine, under its own name or another one.
	other := s.joinsWithKey("k2")
	other.id = "k1"
	r, _ = other.next()
	if _, err := s.db.Tokens.Renew(t.Context(), r); !berth.IsSlug(err, wire.SlugUnknownKey) {
		t.Errorf("a renewal of k1 by the key of k2: %v", err)
	}
	// 25 hours without a control plane need no person, and neither do 29 days.
	if err := k.uses(k.renews()); err != nil {
		t.Error(err)
	}
	k.passes(24*time.Hour + 29*24*time.Hour)
	if err := k.uses(k.renews()); err != nil {
		t.Error(err)
	}
	k.passes(24*time.Hour + 31*24*time.Hour)
	r, _ = k.next()
	_, err := s.db.Tokens.Renew(t.Context(), r)
	if berth.CodeOf(err) != berth.CodeUnauthorized || !strings.Contains(err.Error(), "join again") {
		t.Errorf("a renewal 31 days after the end: %v", err)
	}
}

func TestARenewalIsGoodOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	k := s.joinsWithKey("k1")
	r, token := k.next()
	for range 2 { // the answer was lost: the agent repeats the call
		if _, err := s.db.Tokens.Renew(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.uses(token); err != nil {
		t.Error(err)
	}
	// The same number for another token, and an older renewal after a newer one.
	k.number--
	same, _ := k.next()
	if _, err := s.db.Tokens.Renew(t.Context(), same); !berth.IsSlug(err, wire.SlugRenewalReplayed) {
		t.Errorf("another token under the same number: %v", err)
	}
	k.renews()
	if _, err := s.db.Tokens.Renew(t.Context(), r); !berth.IsSlug(err, wire.SlugRenewalReplayed) {
		t.Errorf("a copied renewal, after the next one: %v", err)
	}
	// A copied renewal does not give its token a longer life.
	k.passes(25 * time.Hour)
	k.number--
	r = wire.NewRenewal(k.key, k.id, k.number+1, k.tokens[1])
	if _, err := s.db.Tokens.Renew(t.Context(), r); !berth.IsSlug(err, wire.SlugRenewalReplayed) {
		t.Errorf("a copied renewal, after the end of its token: %v", err)
	}
	k.number += 2
	for range 20 {
		k.renews() // and never uses it
	}
	if n := one[int](s, `SELECT count(*) FROM tokens WHERE machine_id = 'k1'`); n > 4 {
		t.Errorf("a machine that renews in a loop has %d rows", n)
	}
}

func TestEarlierCredentialsEndAfterTheFirstUseOfTheNext(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	k := s.joinsWithKey("k1")
	next := k.renews()
	k.passes(23 * time.Hour)
	if err := k.uses(k.tokens[0]); err != nil {
		t.Errorf("the earlier credential, before the first use of the next: %v", err)
	}
	if err := k.uses(next); err != nil {
		t.Error(err)
	}
	if err := k.uses(k.tokens[0]); err != nil {
		t.Errorf("calls under way when the next came into use: %v", err)
	}
	k.passes(11 * time.Minute)
	if err := k.uses(k.tokens[0]); !berth.IsSlug(err, wire.SlugCredentialEnded) {
		t.Errorf("the earlier credential, 11 minutes after the first use of the next: %v", err)
	}
	// Only a first use writes.
	before := one[string](s, `SELECT string_agg(id || xmin::text, ' ' ORDER BY id) FROM tokens WHERE machine_id = 'k1'`)
	for range 3 {
		if err := k.uses(next); err != nil {
			t.Error(err)
		}
	}
	if err := s.db.Tokens.FirstUse(t.Context(), tokenIDOf(next)); err != nil {
		t.Error(err)
	}
	if after := one[string](s, `SELECT string_agg(id || xmin::text, ' ' ORDER BY id) FROM tokens WHERE machine_id = 'k1'`); before != after {
		t.Errorf("a call wrote: %s, then %s", before, after)
	}
}

// An upload goes on under a credential that has ended, and outlasts the next renewals.
func TestRenewalsKeepAnEndedCredentialForADay(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	k := s.joinsWithKey("k1")
	k.passes(25 * time.Hour)
	for range 3 {
		if err := k.uses(k.renews()); err != nil {
			t.Fatal(err)
		}
		k.passes(time.Hour)
		if err := k.uses(k.tokens[0]); !berth.IsSlug(err, wire.SlugCredentialEnded) {
			t.Errorf("the ended credential: %v", err)
		}
	}
	k.passes(23 * time.Hour)
	k.renews()
	if err := k.uses(k.tokens[0]); berth.IsSlug(err, wire.SlugCredentialEnded) || berth.CodeOf(err) != berth.CodeUnauthorized {
		t.Errorf("a credential that ended more than a day ago: %v", err)
	}
	for range 30 {
		if err := k.uses(k.renews()); err != nil {
			t.Fatal(err)
		}
		k.passes(11 * time.Minute)
	}
	if n := one[int](s, `SELECT count(*) FROM tokens WHERE machine_id = 'k1'`); n > 20 {
		t.Errorf("a machine that renews in a loop has %d rows", n)
	}
}

// Replicas of the previous version do not record the use of a credential.
func TestARenewalKeepsACredentialInUse(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	k := s.joinsWithKey("k1")
	inUse := k.renews()
	k.renews()
	if _, err := s.db.Tokens.Authenticate(t.Context(), inUse); err != nil {
		t.Error(err)
	}
}

// Whoever revokes one credential of a machine ends them all, and the key with them.
func TestARevokedCredentialEndsItsKey(t *testing.T) {
	t.Parallel()
	for name, revoke := range map[string]func(k *keyed) error{
		"the present token": func(k *keyed) error {
			return k.db.Tokens.Revoke(k.t.Context(), tokenIDOf(k.tokens[1]), "operator:test")
		},
		"the earlier token": func(k *keyed) error {
			return k.db.Tokens.Revoke(k.t.Context(), tokenIDOf(k.tokens[0]), "operator:test")
		},
		"by the version before": func(k *keyed) error {
			_, err := k.pool.Exec(k.t.Context(), `UPDATE tokens SET revoked_at = now() WHERE id = $1`, tokenIDOf(k.tokens[0]))
			return err
		},
		"another host joins": func(k *keyed) error {
			j, err := k.db.JoinTokens.Create(k.t.Context(), spec.NewJoinToken{}, "operator:test")
			if err == nil {
				_, _, err = k.db.JoinTokens.Join(k.t.Context(), j.Secret, "k1")
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			k := s.joinsWithKey("k1")
			k.renews()
			if err := k.uses(k.tokens[1]); err != nil {
				t.Fatal(err)
			}
			if err := revoke(k); err != nil {
				t.Fatal(err)
			}
			for i, token := range k.tokens {
				if err := k.uses(token); berth.CodeOf(err) != berth.CodeUnauthorized || !strings.Contains(err.Error(), "revoked") {
					t.Errorf("credential %d: %v", i, err)
				}
			}
			if live, err := s.db.Tokens.Live(t.Context(), []string{tokenIDOf(k.tokens[0]), tokenIDOf(k.tokens[1])}); err != nil || len(live) != 0 {
				t.Errorf("live: %v, %v", live, err)
			}
			r, _ := k.next()
			if _, err := s.db.Tokens.Renew(t.Context(), r); berth.CodeOf(err) != berth.CodeUnauthorized || !strings.Contains(err.Error(), "revoked") {
				t.Errorf("renewal: %v", err)
			}
		})
	}
}

func TestTheKeyOfARemovedMachineStopsItsAgent(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	k := s.joinsWithKey("k1")
	if err := s.db.Machines.Retire(t.Context(), "k1", "operator:test"); err != nil {
		t.Fatal(err)
	}
	mustExec(t, s.pool, `UPDATE tokens SET revoked_at = now() - interval '31 days'`)
	mustExec(t, s.pool, `UPDATE machine_keys SET bound_at = now() - interval '62 days'`)
	if _, err := s.db.Tokens.Prune(t.Context(), s.term(), 30*24*time.Hour, 100); err != nil {
		t.Fatal(err)
	}
	r, _ := k.next()
	if _, err := s.db.Tokens.Renew(t.Context(), r); !berth.IsSlug(err, berth.SlugMachineRetired) {
		t.Errorf("renewal: %v", err)
	}
}

// A renewal that waits for a revocation sees it, and a revocation that waits for a renewal covers it.
func TestARenewalAndARevocationExcludeEachOther(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	k := s.joinsWithKey("k1")
	done := make(chan error, 1)
	tx, err := s.beside().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `UPDATE tokens SET revoked_at = now() WHERE machine_id = 'k1'`); err != nil {
		t.Fatal(err)
	}
	waits, _ := k.next()
	go func() {
		_, err := s.db.Tokens.Renew(t.Context(), waits)
		done <- err
	}()
	s.blocked(1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; berth.CodeOf(err) != berth.CodeUnauthorized {
		t.Errorf("a renewal that waited for a revocation: %v", err)
	}
	other := s.joinsWithKey("k2")
	key := []byte(public(other.key))
	token := wire.NewMachineToken()
	if tx, err = s.beside().Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The statements of a renewal, before its commit.
	if _, err := tx.Exec(t.Context(), `UPDATE machine_keys SET number = 1 WHERE key = $1`, key); err != nil {
		t.Fatal(err)
	}
	r := wire.NewRenewal(other.key, "k2", 1, token)
	if _, err := tx.Exec(t.Context(), `INSERT INTO tokens (id, tenant, name, role, machine_id, sha256, key, number, expires_at)
		VALUES ($1, '', 'agent:k2', 'machine', 'k2', $2, $3, 1, now() + interval '1 day')`, r.TokenID, r.TokenSum, key); err != nil {
		t.Fatal(err)
	}
	go func() { done <- s.db.Tokens.Revoke(t.Context(), tokenIDOf(other.tokens[0]), "operator:test") }()
	s.blocked(1)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := other.uses(token); berth.CodeOf(err) != berth.CodeUnauthorized {
		t.Errorf("the credential of a renewal that a revocation waited for: %v", err)
	}
}

// An agent of an earlier version has a credential without a key and without an end. It binds one key.
func TestACredentialIsBoundToOneKey(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	token := s.joins("old", "")
	k := &keyed{stage: s, id: "old", key: newKey(t)}
	p, err := s.db.Tokens.Authenticate(t.Context(), token)
	if err != nil || p.ExpiresAt != nil || p.Unused {
		t.Fatalf("%+v, %v", p, err)
	}
	for range 2 {
		if err := s.db.Tokens.BindKey(t.Context(), p, public(k.key)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.db.Tokens.BindKey(t.Context(), p, public(newKey(t))); !berth.IsSlug(err, wire.SlugKeyBound) {
		t.Errorf("a second key: %v", err)
	}
	elsewhere := s.joinsWithKey("k1")
	q := p
	q.TokenID = tokenIDOf(s.joins("old2", ""))
	q.Machine = "old2"
	if err := s.db.Tokens.BindKey(t.Context(), q, public(elsewhere.key)); !berth.IsSlug(err, wire.SlugKeyKnown) {
		t.Errorf("the key of another machine: %v", err)
	}
	k.renews()
	k.passes(365 * 24 * time.Hour)
	if err := k.uses(token); err != nil {
		t.Errorf("the credential without an end, before the first use of the next: %v", err)
	}
}

func TestAFormerCredentialEndsOnceItsKeyHasRenewed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	token := s.joins("old", "")
	k := &keyed{stage: s, id: "old", key: newKey(t)}
	p, err := s.db.Tokens.Authenticate(t.Context(), token)
	if err == nil {
		err = s.db.Tokens.BindKey(t.Context(), p, public(k.key))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := k.uses(k.renews()); err != nil {
		t.Fatal(err)
	}
	k.passes(11 * time.Minute)
	if err := k.uses(token); !berth.IsSlug(err, wire.SlugCredentialEnded) {
		t.Errorf("a copy of the credential of before: %v", err)
	}
}

func TestTheDatabaseKeepsKeysApart(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, b := s.joinsWithKey("k1"), s.joinsWithKey("k2")
	keyA, keyB := []byte(public(a.key)), []byte(public(b.key))
	old := tokenIDOf(s.joins("old", ""))
	const insert = `INSERT INTO tokens (id, tenant, name, role, machine_id, sha256, key) VALUES ('x', '', 'x', $1, $2, 'x', $3)`
	refuses(t, s.pool, "BT017", insert, "machine", "k1", keyB)
	refuses(t, s.pool, "BT017", insert, "user", nil, keyB)
	refuses(t, s.pool, "BT017", `UPDATE tokens SET key = $2 WHERE id = $1`, old, keyA)
	refuses(t, s.pool, "BT017", `UPDATE tokens SET key = NULL WHERE machine_id = 'k1'`)
	refuses(t, s.pool, "BT017", `UPDATE machine_keys SET machine_id = 'k1' WHERE key = $1`, keyB)
	mustExec(t, s.pool, `UPDATE machine_keys SET number = 7 WHERE key = $1`, keyA)
	refuses(t, s.pool, "BT017", `UPDATE machine_keys SET number = 6 WHERE key = $1`, keyA)
	mustExec(t, s.pool, `UPDATE tokens SET revoked_at = now() WHERE machine_id = 'k1'`)
	refuses(t, s.pool, "BT017", `UPDATE machine_keys SET revoked_at = NULL WHERE key = $1`, keyA)
	refuses(t, s.pool, "BT017", insert, "machine", "k1", keyA)
	refuses(t, s.pool, "23514", `INSERT INTO machine_keys (key, machine_id) VALUES ('short', 'k1')`)
}

func TestMachinesCountByTheConditionOfTheirCredential(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, id := range []berth.MachineID{"current", "late", "ended", "revoked", "retired"} {
		s.joinsWithKey(id)
	}
	s.joins("keyless", "")
	mustExec(t, s.pool, `UPDATE tokens SET expires_at = now() + interval '5 hours' WHERE machine_id = 'late'`)
	mustExec(t, s.pool, `UPDATE tokens SET expires_at = now() - interval '5 hours' WHERE machine_id = 'ended'`)
	mustExec(t, s.pool, `UPDATE tokens SET revoked_at = now() WHERE machine_id = 'revoked'`)
	mustExec(t, s.pool, `UPDATE machines SET state = 'retired' WHERE id = 'retired'`)
	for overdue, quiet := range []time.Duration{time.Hour, -time.Hour} { // out of contact, and in contact
		for _, id := range []string{"current", "late", "ended", "keyless"} {
			s.quiet(id, quiet)
		}
		got, err := s.db.Tokens.Credentials(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]int{db.CredentialCurrent: 1, db.CredentialLate: 1, db.CredentialEnded: 1, db.CredentialKeyless: 1}
		if !maps.Equal(got.States, want) || got.Overdue != overdue {
			t.Errorf("%+v, want %v and %d overdue", got, want, overdue)
		}
	}
}

// A replica of the version before reads and revokes credentials with these statements.
func TestTheVersionBeforeObeysCredentials(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	k := s.joinsWithKey("k1")
	next := k.renews()
	good := func(token string) bool {
		return one[bool](s, `
			SELECT coalesce(bool_or(t.revoked_at IS NULL AND t.expires_at <= now() IS NOT TRUE AND m.state <> 'retired'), false)
			FROM tokens t
			LEFT JOIN machines m ON m.id = t.machine_id
			WHERE t.id = $1`, tokenIDOf(token))
	}
	if !good(k.tokens[0]) || !good(next) {
		t.Error("a replica of the version before refuses a credential")
	}
	// Another host joins under the name by such a replica: the key ends, too.
	mustExec(t, s.pool, `
		WITH old AS (
			UPDATE tokens SET revoked_at = now()
			WHERE machine_id = 'k1' AND revoked_at IS NULL
		)
		INSERT INTO tokens (id, tenant, name, role, machine_id, sha256)
		VALUES ('000000000000', '', 'agent:k1', 'machine', 'k1', 'x')`)
	r, _ := k.next()
	if _, err := s.db.Tokens.Renew(t.Context(), r); berth.CodeOf(err) != berth.CodeUnauthorized {
		t.Errorf("renewal by the former key: %v", err)
	}
	// Keys without credentials are pruned with them.
	mustExec(t, s.pool, `UPDATE tokens SET revoked_at = now() - interval '31 days' WHERE key IS NOT NULL`)
	mustExec(t, s.pool, `UPDATE machine_keys SET bound_at = now() - interval '31 days'`)
	if _, err := s.db.Tokens.Prune(t.Context(), s.term(), 30*24*time.Hour, 100); err != nil {
		t.Fatal(err)
	}
	if n := one[int](s, `SELECT count(*) FROM machine_keys`); n != 0 {
		t.Errorf("%d keys are left", n)
	}
}
