package db

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/subtle"
	"errors"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// SlugMachineExists is the stable code for a join under a name in use.
const SlugMachineExists = wire.SlugMachineExists

// Join exchanges a join token for a machine token, returned once, and marks the join token
// used. Earlier tokens of the machine are revoked. A machine name is free if the name is new,
// if the machine is retired or has not registered since it joined, or if the machine is
// silent and no allocation counts on it.
//
// Any other name is refused, also that of a silent machine with allocations. Register takes a
// changed boot id as proof of a reboot, and declares every container of the machine gone. A
// second host under the same name has another boot id as well: the first host would count as
// rebooted while its containers still run.
//
// The machine token has no end, and is bound to no key; see JoinWithKey.
func (d *JoinTokens) Join(
	ctx context.Context, joinToken string, machine berth.MachineID,
) (token, cluster string, err error) {
	return d.join(ctx, joining{token: joinToken, machine: machine})
}

// JoinWithKey is Join for an agent with a key, whose possession the caller has verified. The
// machine token ends after the lifetime of credentials, and the key renews it. A nil key is as in Join. Proven is
// the instance of the launch whose identity the caller has verified, or "": a join token that demands an identity is
// refused without one.
func (d *JoinTokens) JoinWithKey(
	ctx context.Context, joinToken string, machine berth.MachineID, key ed25519.PublicKey, proven string,
) (answer wire.JoinResponse, err error) {
	answer.Token, answer.Cluster, err = d.join(ctx, joining{joinToken, machine, key, proven})
	if key != nil {
		answer.TTLSeconds = seconds(d.credentialTTL)
	}
	return answer, err
}

// joining is one call of Join or JoinWithKey.
type joining struct {
	token   string
	machine berth.MachineID
	key     ed25519.PublicKey // nil: none
	proven  string
}

// join implements Join and JoinWithKey.
func (d *JoinTokens) join(ctx context.Context, j joining) (token, cluster string, err error) {
	machine := j.machine
	joinID, sum, ok := tokenID(joinTokenPrefix, j.token)
	if !ok {
		return "", "", errUnknownToken()
	}
	id, token, hash := mintToken(tokenPrefix)
	var launched bool
	err = d.tx(ctx, func(tx pgx.Tx) error {
		args := namedArgs{"join": joinID, "machine": machine, "id": id,
			"name": "agent:" + string(machine), "hash": hash, "proven": j.proven}
		// A refused name rolls this back, so the token remains usable.
		if err := spendJoinToken(ctx, tx, sum, args); err != nil {
			return err
		}
		if err := takeMachineName(ctx, tx, args); err != nil {
			return err
		}
		if err := bindToToken(ctx, tx, args); err != nil {
			return err
		}
		if err := revokeTokensOf(ctx, tx, machine); err != nil {
			return err
		}
		if err := firstCredential(ctx, tx, j.key, d.credentialTTL, args); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `
			SELECT id, EXISTS (SELECT 1 FROM launches WHERE machine = @machine AND join_token = @join)
			FROM cluster`, args).Scan(&cluster, &launched)
	})
	if err != nil {
		return "", "", mapError(err, "machine "+string(machine))
	}
	d.hub.Publish(TopicQueue, "")
	if launched { // the workflow need not wait for its next look at the instance
		d.hub.Publish(TopicLaunch, string(machine))
	}
	return token, cluster, nil
}

// Check reports for each join token, in order, whether Join would accept the token now.
// Check uses up no token, and a later Join may still refuse.
func (d *JoinTokens) Check(ctx context.Context, tokens []string) ([]bool, error) {
	ids := make([]string, len(tokens))
	for i, t := range tokens {
		ids[i], _, _ = tokenID(joinTokenPrefix, t)
	}
	rows, err := d.pool.Query(ctx, `
		SELECT id, sha256
		FROM join_tokens
		WHERE id = ANY(@ids) AND used_at IS NULL AND expires_at > now()`,
		namedArgs{"ids": ids})
	if err != nil {
		return nil, mapError(err, "join token")
	}
	stored := map[string][]byte{}
	var id string
	var hash []byte
	if _, err := pgx.ForEachRow(rows, []any{&id, &hash}, func() error {
		stored[id] = bytes.Clone(hash)
		return nil
	}); err != nil {
		return nil, mapError(err, "join token")
	}
	good := make([]bool, len(tokens))
	for i, t := range tokens {
		id, sum, ok := tokenID(joinTokenPrefix, t)
		good[i] = ok && subtle.ConstantTimeCompare(stored[id], sum) == 1
	}
	return good, nil
}

// spendJoinToken locks the join token and marks it used: of two concurrent calls, the second
// waits and finds a used token. The hash is compared in constant time, as in Authenticate. An
// unknown, used or expired token and a wrong secret give the same error. A machine whose name the token
// does not admit gets CodeForbidden. So does a join without the proven identity that the token demands; the
// constraint join_tokens_proven refuses such a join of a server of the version before.
func spendJoinToken(ctx context.Context, tx pgx.Tx, sum []byte, args namedArgs) error {
	var stored []byte
	var machines string
	var admitted, proves bool
	err := tx.QueryRow(ctx, `
		SELECT sha256, machines, join_token_admits(machines, @machine), identity = '' OR @proven <> '' AND EXISTS (
			SELECT 1 FROM launches l WHERE l.machine = @machine AND l.join_token = j.id AND l.instance = @proven)
		FROM join_tokens j
		WHERE id = @join AND used_at IS NULL AND expires_at > now()
		FOR UPDATE`, args).Scan(&stored, &machines, &admitted, &proves)
	if errors.Is(err, pgx.ErrNoRows) {
		return errUnknownToken()
	}
	if err != nil {
		return err
	}
	if subtle.ConstantTimeCompare(stored, sum) != 1 {
		return errUnknownToken()
	}
	if !admitted {
		return berth.Errorf(berth.CodeForbidden, "the join token admits machines with names like %s only; "+
			"choose such a name, or create another token", machines)
	}
	if !proves {
		return &berth.Error{Code: berth.CodeForbidden, Slug: wire.SlugIdentityRefused,
			Message: "the join has not proven that the machine is the instance of its launch"}
	}
	_, err = tx.Exec(ctx, `
		UPDATE join_tokens
		SET used_by = @machine, used_at = now(), proven = @proven
		WHERE id = @join`, args)
	return err
}

// takeMachineName creates the machine's row, or resets the row of a free name under lock. The
// empty boot ids and the new epoch end the session of the machine's earlier life. It fails
// with slug machine_exists if the name is in use; see Join.
func takeMachineName(ctx context.Context, tx pgx.Tx, args namedArgs) error {
	// The row is locked first, and everything else read by a second statement: a statement
	// that waits for a lock still reads other tables as of its beginning, and would miss the
	// allocation of a placement that it waited for.
	var free bool
	err := tx.QueryRow(ctx, `
		SELECT state = 'retired' OR host_boot = ''
		FROM machines
		WHERE id = @machine
		FOR NO KEY UPDATE`, args).Scan(&free)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		free = true
	case err != nil:
		return err
	}
	if !free {
		err := tx.QueryRow(ctx, `
			SELECT NOT EXISTS (SELECT 1 FROM allocations a WHERE a.machine_id = @machine AND counts(a.state))
				AND NOT EXISTS (SELECT 1 FROM machine_leases l WHERE l.machine_id = @machine AND l.until > now())`,
			args).Scan(&free)
		if err != nil {
			return err
		}
	}
	if !free {
		return &berth.Error{Code: berth.CodeConflict, Slug: SlugMachineExists,
			Message: "a machine with this name is in service; choose another name, or remove that machine first"}
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO machines (id, pool, labels, joined_pool, joined_labels, state)
		SELECT @machine, pool, labels, pool, labels, 'joining' FROM join_tokens WHERE id = @join
		ON CONFLICT (id) DO UPDATE
		SET pool = excluded.pool,
		    labels = excluded.labels,
		    joined_pool = excluded.joined_pool,
		    joined_labels = excluded.joined_labels,
		    state = 'joining',
		    reason = '',
		    epoch = machines.epoch + 1,
		    host_boot = '',
		    agent_boot = '',
		    drain_reason = NULL,
		    drain_deadline = NULL,
		    pending_kills = '{}'`, args)
	return err
}
