package db

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// maxReturned bounds the machines that wait for an approval after they returned. Callers of Return
// have proven only that some machine of this cluster was theirs.
const maxReturned = 1000

// returnedHeld is the reason of a machine that waits after its return, before its registration.
const returnedHeld = "the restored database does not know the machine: waits for approval"

// Return takes back a machine with an unknown key, after the database was restored from a backup that is
// older than the machine's join. The machine waits for the approval of an
// admin, gets no work, and keeps its containers. The caller has verified the signature of the renewal.
//
// The machine proves its membership by a watermark that only this database can have signed, and that the
// database did not know at its next leap. A watermark that the database knew proves that nothing was
// lost, as after a failover to a standby that had all rows. Without that proof the key is unknown, as for
// Renew. The name of a machine that the database knows, and that is not retired, is a conflict with slug
// machine_exists.
func (d *Tokens) Return(
	ctx context.Context, r wire.Renewal, seen wire.StoredWatermark, hostBoot string,
) (answer wire.RenewResponse, err error) {
	if answer.Cluster, err = d.lostWith(ctx, seen); err != nil {
		return wire.RenewResponse{}, err
	}
	if hostBoot == "" || len(hostBoot) > 128 {
		return wire.RenewResponse{}, berth.Errorf(berth.CodeInvalid,
			"header %s: allowed is the boot id of the host, of 1 to 128 characters", wire.HeaderHostBoot)
	}
	err = d.tx(ctx, func(tx pgx.Tx) error {
		args := renewalArgs(r, d.credentialTTL)
		args["boot"], args["held"], args["limit"] = hostBoot, returnedHeld, maxReturned
		if err := takeReturned(ctx, tx, args); err != nil {
			return err
		}
		if err := revokeTokensOf(ctx, tx, r.Machine); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO machine_keys (key, machine_id) VALUES (@key, @machine)`,
			namedArgs{"key": args["key"], "machine": r.Machine}); err != nil {
			return err
		}
		return addCredential(ctx, tx, args)
	})
	if err != nil {
		return wire.RenewResponse{}, mapError(err, "machine "+string(r.Machine))
	}
	d.hub.Publish(TopicQueue, "")
	answer.TTLSeconds, answer.Returned = seconds(d.credentialTTL), true
	return answer, nil
}

// lostWith returns the id of the cluster if a watermark proves that its holder belonged to the cluster
// before the database was restored. A watermark that proves the restore itself is handled first.
func (d *Tokens) lostWith(ctx context.Context, seen wire.StoredWatermark) (cluster string, err error) {
	if seen.IsZero() {
		return "", errUnknownKey()
	}
	if _, err := vouch(ctx, d.core, seen); err != nil {
		return "", err
	}
	var m markRead
	var known bool
	err = d.pool.QueryRow(ctx, `
		SELECT EXISTS (
			SELECT 1 FROM watermark_past p WHERE p.branch IN (@mark_branch, '') AND p.granted >= @mark_number
		), `+markColumns+` FROM cluster c`,
		markArgs(namedArgs{}, seen)).Scan(append([]any{&known}, m.dest()...)...)
	if err != nil {
		return "", mapError(err, "watermark")
	}
	if known || seen.Cluster != m.cluster || !m.signed(seen) || seen.Number >= m.leaptTo {
		return "", errUnknownKey()
	}
	return m.cluster, nil
}

// takeReturned creates the row of a returned machine, or takes the row of a retired one. As in a join, an
// empty boot id and a new epoch clear the earlier life; then the row gets the present boot id, so that the
// registration counts as one without a reboot, and leaves containers alone that no row knows.
func takeReturned(ctx context.Context, tx pgx.Tx, args namedArgs) error {
	var state berth.MachineState
	err := tx.QueryRow(ctx, `SELECT state FROM machines WHERE id = @machine FOR NO KEY UPDATE`, args).Scan(&state)
	switch {
	case errors.Is(err, pgx.ErrNoRows), err == nil && state == berth.MachineRetired:
	case err != nil:
		return err
	default:
		return &berth.Error{Code: berth.CodeConflict, Slug: SlugMachineExists,
			Message: "the database was restored and knows a machine with this name and other credentials: remove " +
				"that machine (berth machine remove), then this one waits for approval"}
	}
	var full bool
	if err := tx.QueryRow(ctx, `
		SELECT count(*) >= @limit FROM machines WHERE returned AND approved IS NULL AND state <> 'retired'`,
		args).Scan(&full); err != nil {
		return err
	}
	if full {
		return berth.Errorf(berth.CodeUnavailable, "%d machines that the restored database does not know wait for "+
			"approval already; approve or remove some", maxReturned)
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO machines (id, state)
		VALUES (@machine, 'joining')
		ON CONFLICT (id) DO UPDATE
		SET pool = 'default',
		    labels = '{}',
		    joined_pool = '',
		    joined_labels = '{}',
		    state = 'joining',
		    reason = '',
		    epoch = machines.epoch + 1,
		    host_boot = '',
		    agent_boot = '',
		    drain_reason = NULL,
		    drain_deadline = NULL,
		    pending_kills = '{}'`, args); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		UPDATE machines
		SET host_boot = @boot, returned = true, held = @held, reason = @held
		WHERE id = @machine`, args)
	return err
}
