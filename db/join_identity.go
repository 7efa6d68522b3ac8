package db

import (
	"context"
	"crypto/subtle"
	"errors"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/internal/control/cloud"
	"berth/wire"
)

// demandIdentity stores that a join with the token must prove an identity. A repeated send demands nothing else.
func demandIdentity(ctx context.Context, tx pgx.Tx, id string, source wire.IdentitySource) error {
	if source == "" {
		return nil
	}
	_, err := tx.Exec(ctx, `UPDATE join_tokens SET identity = @source WHERE id = @id AND used_at IS NULL`,
		namedArgs{"id": id, "source": source})
	return err
}

// Demand returns the identity that a join with the token must prove, with the launch that it belongs
// to. Its source is empty if the token demands none. The instance of a launch never changes once it is
// known, so the join may compare with this row. An unknown, used or expired token is CodeUnauthorized.
// It uses up nothing. The comparison of the secret takes the same time for every wrong one.
func (d *JoinTokens) Demand(ctx context.Context, joinToken string, machine berth.MachineID) (cloud.Demand, error) {
	var demand cloud.Demand
	id, sum, ok := tokenID(joinTokenPrefix, joinToken)
	if !ok {
		return demand, errUnknownToken()
	}
	var stored []byte
	var launch *cloud.Record
	err := d.pool.QueryRow(ctx, `
		SELECT j.sha256, j.identity, (
			SELECT `+launchDocument+`
			FROM launches l, cluster c
			WHERE l.machine = @machine AND l.join_token = j.id)
		FROM join_tokens j
		WHERE j.id = @id AND j.used_at IS NULL AND j.expires_at > now()`,
		namedArgs{"id": id, "machine": machine}).Scan(&stored, &demand.Source, &launch)
	if errors.Is(err, pgx.ErrNoRows) {
		return demand, errUnknownToken()
	}
	if err != nil {
		return demand, mapError(err, "join token")
	}
	if subtle.ConstantTimeCompare(stored, sum) != 1 {
		return cloud.Demand{}, errUnknownToken()
	}
	if demand.Source == "" || launch == nil { // the join refuses the name of another machine
		return cloud.Demand{}, nil
	}
	demand.Launch = *launch
	demand.Audience = cloud.Audience(launch.Cluster, launch.Machine, launch.N, joinToken)
	return demand, nil
}

// RefuseJoin records the refusal of a join on its launch, for the reason that lists show. It changes
// nothing else. The latest refusal replaces an earlier one. A launch that has joined or ended stays as
// it is.
func (d *JoinTokens) RefuseJoin(ctx context.Context, r cloud.Record, reason string) error {
	_, err := d.pool.Exec(ctx, `
		UPDATE launches
		SET join_refused =
			to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') || ': ' || @reason
		WHERE machine = @machine AND n = @n AND joined_at IS NULL AND state NOT IN ('gone', 'failed')`,
		namedArgs{"machine": r.Machine, "n": r.N, "reason": reason})
	return mapError(err, "launch of machine "+string(r.Machine))
}
