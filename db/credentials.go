package db

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"berth"
	"berth/wire"
)

// Lifetimes of the credentials of machines.
const (
	// CredentialTTL is the time from the renewal of a credential to its end. Agents renew after half of it.
	CredentialTTL = 24 * time.Hour

	// RenewableFor is the time after the end of a machine's last credential during which its key still
	// renews it: an outage of the control plane may last long, and an operator may be on vacation.
	RenewableFor = 30 * 24 * time.Hour

	// supersededFor is the time from the first use of a credential to the end of the earlier ones. It
	// covers calls that the agent has sent with an earlier credential, and their repeats.
	supersededFor = 10 * time.Minute

	// endedKeptFor is the time from the end of a credential to its deletion. An upload or download under
	// way goes on as long as the row shows that the credential has ended and was not revoked.
	endedKeptFor = 24 * time.Hour

	// endedKept is the number of the latest earlier credentials of a key to which endedKeptFor applies. Older
	// ones are deleted by the first renewal after their end.
	endedKept = 16
)

// errCredentialEnded returns the error for a credential that its machine's key can still renew.
func errCredentialEnded(p Principal) error {
	return &berth.Error{Code: berth.CodeUnauthorized, Slug: wire.SlugCredentialEnded,
		Message: "token " + p.TokenID + " ended at " + p.ExpiresAt.UTC().Format(time.RFC3339) +
			"; the key of machine " + string(p.Machine) + " renews it"}
}

// errUnknownKey returns the error for every key that is not bound to the machine.
func errUnknownKey() error {
	return &berth.Error{Code: berth.CodeUnauthorized, Slug: wire.SlugUnknownKey,
		Message: "the key of this machine is not known to this server"}
}

// errKeyKnown returns the error for a key that belongs to another machine, or is revoked.
func errKeyKnown() error {
	return &berth.Error{Code: berth.CodeConflict, Slug: wire.SlugKeyKnown,
		Message: "the key is bound to a machine already, or was: another key is needed"}
}

// seconds rounds a duration up to seconds.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// revokeTokensOf revokes all tokens of a machine, and with them its keys: see the trigger
// tokens_revoke_key. The rows are locked in the order in which FirstUse locks them.
func revokeTokensOf(ctx context.Context, tx pgx.Tx, machine berth.MachineID) error {
	args := namedArgs{"machine": machine}
	if _, err := tx.Exec(ctx, `
		SELECT 1 FROM tokens WHERE machine_id = @machine ORDER BY id FOR NO KEY UPDATE`, args); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `
		UPDATE tokens SET revoked_at = now()
		WHERE machine_id = @machine AND revoked_at IS NULL`, args)
	return err
}

// firstCredential stores the token of a join. With a key, the token is bound to it and has an end.
func firstCredential(
	ctx context.Context, tx pgx.Tx, key ed25519.PublicKey, ttl time.Duration, args namedArgs,
) error {
	if key == nil {
		_, err := tx.Exec(ctx, `
			INSERT INTO tokens (id, tenant, name, role, machine_id, sha256)
			VALUES (@id, '', @name, 'machine', @machine, @hash)`, args)
		return err
	}
	args["key"], args["ttl"], args["renewable"] = []byte(key), ttl, RenewableFor
	if _, err := tx.Exec(ctx, `
		INSERT INTO machine_keys (key, machine_id, until)
		VALUES (@key, @machine, now() + @ttl::interval + @renewable::interval)`, args); err != nil {
		if IsConstraint(err, "machine_keys_pkey") {
			return errKeyKnown()
		}
		return err
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO tokens (id, tenant, name, role, machine_id, sha256, key, expires_at, used_at)
		VALUES (@id, '', @name, 'machine', @machine, @hash, @key, now() + @ttl::interval, now())`, args)
	return err
}

// KnownKeys reports for each public key, in order, whether it is bound to a machine.
func (d *Tokens) KnownKeys(ctx context.Context, keys []string) ([]bool, error) {
	list := make([][]byte, len(keys))
	for i, k := range keys {
		list[i] = []byte(k)
	}
	rows, err := d.pool.Query(ctx, `SELECT key FROM machine_keys WHERE key = ANY(@keys)`, namedArgs{"keys": list})
	if err != nil {
		return nil, mapError(err, "machine keys")
	}
	stored, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return nil, mapError(err, "machine keys")
	}
	bound := map[string]bool{}
	for _, k := range stored {
		bound[string(k)] = true
	}
	known := make([]bool, len(keys))
	for i, k := range keys {
		known[i] = bound[k]
	}
	return known, nil
}

// BindKey binds the credential of a machine to a key, whose possession the caller has verified. A
// credential of an earlier version has no key and no end, and takes the first key that its holder
// proves; another key is a conflict with slug key_bound, and a key that is revoked or belongs to another
// machine one with slug key_known. A repeat with the same key has no effect.
func (d *Tokens) BindKey(ctx context.Context, of Principal, key ed25519.PublicKey) error {
	err := d.tx(ctx, func(tx pgx.Tx) error {
		args := namedArgs{"id": of.TokenID, "machine": of.Machine, "key": []byte(key)}
		var bound []byte
		err := tx.QueryRow(ctx, `
			SELECT key
			FROM tokens
			WHERE id = @id AND machine_id = @machine AND revoked_at IS NULL
			FOR NO KEY UPDATE`, args).Scan(&bound)
		if errors.Is(err, pgx.ErrNoRows) {
			return errUnknownToken()
		}
		switch {
		case err != nil, bytes.Equal(bound, key):
			return err
		case bound != nil:
			return &berth.Error{Code: berth.CodeConflict, Slug: wire.SlugKeyBound,
				Message: "the credential of machine " + string(of.Machine) + " is bound to another key; if that key " +
					"is not the machine's, revoke the token " + of.TokenID + " and let the machine join again"}
		}
		if _, err := tx.Exec(ctx, `
			INSERT INTO machine_keys (key, machine_id)
			VALUES (@key, @machine)
			ON CONFLICT DO NOTHING`, args); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE tokens SET key = @key, used_at = now() WHERE id = @id`, args)
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "BT017" { // see tokens_keep_key
			return errKeyKnown()
		}
		return err
	})
	return mapError(err, "machine "+string(of.Machine))
}

// Renew makes the chosen token of a renewal a credential of its machine. The caller has verified
// the signature. A repeat of the latest renewal gives the same answer. An earlier renewal is a conflict with slug
// renewal_replayed, and answer.Last is then the number of the latest one. An unknown or revoked key, or one whose
// last credential ended more than RenewableFor ago, is unauthorized. The key of a removed machine gets an
// error of code forbidden.
//
// The earlier credentials stay valid until FirstUse: an agent that never gets the answer continues with them.
func (d *Tokens) Renew(ctx context.Context, r wire.Renewal) (answer wire.RenewResponse, err error) {
	err = d.tx(ctx, func(tx pgx.Tx) error {
		answer = wire.RenewResponse{}
		last, err := lockKey(ctx, tx, r)
		if err != nil {
			return err
		}
		args := renewalArgs(r, d.credentialTTL)
		var left time.Duration
		switch {
		case r.Number == last:
			left, err = repeatedRenewal(ctx, tx, r, args)
		case r.Number < last:
			err = errReplayed(r)
		default:
			left, err = d.credentialTTL, addCredential(ctx, tx, args)
		}
		if err != nil {
			answer.Last = last
			return err
		}
		answer.TTLSeconds = seconds(left)
		return tx.QueryRow(ctx, `SELECT id FROM cluster`).Scan(&answer.Cluster)
	})
	return answer, mapError(err, "machine "+string(r.Machine))
}

// errReplayed returns the error for a renewal that is not the latest one of its key.
func errReplayed(r wire.Renewal) error {
	return &berth.Error{Code: berth.CodeConflict, Slug: wire.SlugRenewalReplayed,
		Message: "the key of machine " + string(r.Machine) + " has made a later renewal; choose another token and a " +
			"higher number"}
}

// lockKey locks the key of a renewal, checks that it may renew, and returns the number of its last
// renewal. The lock serializes renewals with each other and with a revocation of the key.
func lockKey(ctx context.Context, tx pgx.Tx, r wire.Renewal) (last int64, err error) {
	var revoked, over, retired bool
	var until *time.Time
	err = tx.QueryRow(ctx, `
		SELECT k.number, k.revoked_at IS NOT NULL, k.until, coalesce(k.until <= now(), false),
			coalesce((SELECT m.state = 'retired' FROM machines m WHERE m.id = k.machine_id), false)
		FROM machine_keys k
		WHERE k.key = @key AND k.machine_id = @machine
		FOR NO KEY UPDATE`,
		namedArgs{"key": []byte(r.Key), "machine": r.Machine}).Scan(&last, &revoked, &until, &over, &retired)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, errUnknownKey()
	case err != nil:
		return 0, err
	case retired:
		return 0, errRetired(r.Machine)
	case revoked:
		return 0, berth.Errorf(berth.CodeUnauthorized, "the key of machine %s is revoked: join again with a new join "+
			"token", r.Machine)
	case over:
		return 0, berth.Errorf(berth.CodeUnauthorized, "the key of machine %s could renew until %s: join again with a "+
			"new join token", r.Machine, until.UTC().Format(time.RFC3339))
	}
	return last, nil
}

// renewalArgs returns the arguments of the statements of a renewal.
func renewalArgs(r wire.Renewal, ttl time.Duration) namedArgs {
	return namedArgs{"key": []byte(r.Key), "machine": r.Machine, "number": r.Number, "id": r.TokenID,
		"sum": r.TokenSum, "ttl": ttl, "renewable": RenewableFor, "name": AgentActor(r.Machine),
		"kept": endedKeptFor, "most": endedKept}
}

// repeatedRenewal returns the time left of the credential that an equal renewal made before. A
// credential that has ended since, or another token under the same number, is a replay.
func repeatedRenewal(
	ctx context.Context, tx pgx.Tx, r wire.Renewal, args namedArgs,
) (left time.Duration, err error) {
	err = tx.QueryRow(ctx, `
		SELECT expires_at - now()
		FROM tokens
		WHERE id = @id AND sha256 = @sum AND key = @key AND number = @number AND expires_at > now()`, args).Scan(&left)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, errReplayed(r)
	}
	return left, err
}

// addCredential stores the token of a renewal and the new end of the key. Dead credentials of the key
// are deleted, so that a machine keeps a few rows however often it renews. The latest two earlier ones
// stay, since a replica of the previous version does not record the use of the agent's present credential.
// A locked credential is about to be revoked; the next renewal deletes it.
func addCredential(ctx context.Context, tx pgx.Tx, args namedArgs) error {
	for _, sql := range []string{`
		UPDATE machine_keys
		SET number = @number, until = now() + @ttl::interval + @renewable::interval
		WHERE key = @key`, `
		INSERT INTO tokens (id, tenant, name, role, machine_id, sha256, key, number, expires_at)
		VALUES (@id, '', @name, 'machine', @machine, @sum, @key, @number, now() + @ttl::interval)`, `
		WITH earlier AS (
			SELECT id, row_number() OVER (ORDER BY number DESC, id) AS nth
			FROM tokens
			WHERE key = @key AND number < @number
		)
		DELETE FROM tokens
		WHERE id IN (
			SELECT t.id
			FROM tokens t
			JOIN earlier e USING (id)
			WHERE e.nth > 2 AND (t.number > 0 AND t.used_at IS NULL OR t.expires_at <= now() - @kept::interval
				OR t.expires_at <= now() AND e.nth > @most)
			FOR UPDATE OF t SKIP LOCKED)`,
	} {
		if _, err := tx.Exec(ctx, sql, args); err != nil {
			return err
		}
	}
	return nil
}

// FirstUse records the first call with a renewed credential. The call proves that the agent has the
// credential, so the earlier credentials of its key end supersededFor later. Further calls change nothing.
func (d *Tokens) FirstUse(ctx context.Context, id string) error {
	err := d.tx(ctx, func(tx pgx.Tx) error {
		args := namedArgs{"id": id, "for": supersededFor}
		if _, err := tx.Exec(ctx, `
			SELECT 1
			FROM tokens
			WHERE key = (SELECT key FROM tokens WHERE id = @id)
			ORDER BY id
			FOR NO KEY UPDATE`, args); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			UPDATE tokens o
			SET used_at = CASE WHEN o.id = t.id THEN now() ELSE o.used_at END,
			    expires_at = CASE WHEN o.id = t.id THEN o.expires_at
			        ELSE least(o.expires_at, now() + @for::interval) END
			FROM tokens t
			WHERE t.id = @id AND t.used_at IS NULL AND o.key = t.key
			  AND (o.id = t.id OR o.number < t.number AND o.revoked_at IS NULL)`, args)
		return err
	})
	return mapError(err, "token "+id)
}

// The conditions of the credentials of machines, in the order of their urgency.
const (
	CredentialEnded   = "ended"   // the last one has ended; the machine's key may still renew it
	CredentialLate    = "late"    // ends within a quarter of its life, so its renewal is overdue
	CredentialCurrent = "current" // bound to a key and not late
	CredentialKeyless = "keyless" // of an agent without a key; it may have no end
)

// Credentials counts machines in service by the condition of their last credential. A machine whose
// credentials are revoked does not count.
type Credentials struct {
	States  map[string]int // by condition; every condition has a key
	Overdue int            // late machines that are in contact: their agents cannot renew
}

// Credentials returns the conditions of the credentials.
func (d *Tokens) Credentials(ctx context.Context) (Credentials, error) {
	c := Credentials{States: map[string]int{CredentialEnded: 0, CredentialLate: 0, CredentialCurrent: 0,
		CredentialKeyless: 0}}
	rows, err := d.pool.Query(ctx, `
		SELECT CASE
		         WHEN expires_at <= now() THEN @ended
		         WHEN key IS NULL THEN @keyless
		         WHEN expires_at <= now() + @ttl::interval / 4 THEN @late
		         ELSE @current END,
		       count(*), count(*) FILTER (WHERE contact)
		FROM (
			SELECT DISTINCT ON (t.machine_id) t.key, t.expires_at,
				EXISTS (
					SELECT 1 FROM machine_leases l
					WHERE l.machine_id = t.machine_id AND l.until > now()) AS contact
			FROM tokens t
			JOIN machines m ON m.id = t.machine_id AND m.state <> 'retired'
			LEFT JOIN machine_keys k ON k.key = t.key
			WHERE t.revoked_at IS NULL AND k.revoked_at IS NULL
			ORDER BY t.machine_id, t.number DESC, t.created_at DESC
		) last
		GROUP BY 1`, namedArgs{"ttl": d.credentialTTL, "ended": CredentialEnded, "late": CredentialLate,
		"current": CredentialCurrent, "keyless": CredentialKeyless})
	if err != nil {
		return c, mapError(err, "credentials")
	}
	var condition string
	var n, contact int
	_, err = pgx.ForEachRow(rows, []any{&condition, &n, &contact}, func() error {
		c.States[condition] = n
		if condition == CredentialLate {
			c.Overdue = contact
		}
		return nil
	})
	return c, mapError(err, "credentials")
}
