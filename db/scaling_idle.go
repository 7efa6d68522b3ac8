package db

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/internal/control/cloud"
)

// idleReason is the reason of a drain by the scaler.
const idleReason = "idle: no waiting job needs the machine"

// Drain closes a machine of the scaler to new work, in the term of the leader, if it is ready and
// empty as defined by emptyMachine. It reports whether the machine drains now.
func (d *Scaling) Drain(ctx context.Context, term Term, id berth.MachineID) (done bool, err error) {
	return d.swap(ctx, term, id, `
		UPDATE machines m
		SET state = 'draining', reason = @reason, drain_reason = @reason, drain_deadline = NULL
		FROM launches l, cluster c
		WHERE m.id = @id AND m.state = 'ready' AND l.machine = m.id AND l.state = 'serving' AND `+emptyMachine)
}

// Undrain opens a machine that Drain has closed, unless its termination was requested. It reports
// whether the machine is open now.
func (d *Scaling) Undrain(ctx context.Context, term Term, id berth.MachineID) (done bool, err error) {
	return d.swap(ctx, term, id, openMachine+` AND m.state = 'draining' AND m.drain_actor = @actor AND NOT `+
		insideWindow)
}

// swap runs an update of the machine of a serving launch of the scaler whose end was not requested. The
// launch and the machine are locked before the update reads them.
func (d *Scaling) swap(ctx context.Context, term Term, id berth.MachineID, sql string) (done bool, err error) {
	err = d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		done = false
		r, err := lockFleet(ctx, tx, id)
		if err != nil || r.State != cloud.LaunchServing || !r.StopAt.IsZero() {
			return err
		}
		if err := actAs(ctx, tx, ScalerActor); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, sql, namedArgs{"id": id, "actor": ScalerActor, "reason": idleReason})
		done = tag.RowsAffected() > 0
		return err
	})
	if err != nil {
		return false, mapError(err, "machine "+string(id))
	}
	if done {
		d.hub.Publish(TopicQueue, string(id))
		d.hub.Publish(TopicMachine, string(id))
	}
	return done, nil
}

// lockFleet locks the last launch of a machine of the scaler, and the machine. It returns the zero record if
// the launch belongs to another actor or does not exist.
func lockFleet(ctx context.Context, tx pgx.Tx, id berth.MachineID) (cloud.Record, error) {
	r, err := lockLaunch(ctx, tx, cloud.Ref{Machine: id})
	if errors.Is(err, pgx.ErrNoRows) || err == nil && r.Actor != ScalerActor {
		return cloud.Record{}, nil
	}
	if err != nil {
		return r, err
	}
	_, err = tx.Exec(ctx, `SELECT 1 FROM machines WHERE id = @id FOR NO KEY UPDATE`, namedArgs{"id": id})
	return r, err
}

// Stop requests the end of a machine that Drain has closed, if that drain still holds and the machine is
// empty as defined by emptyMachine. It reports whether the end is requested now.
func (d *Scaling) Stop(ctx context.Context, term Term, id berth.MachineID) (done bool, err error) {
	err = d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		done = false
		r, err := lockFleet(ctx, tx, id)
		if err != nil || r.State != cloud.LaunchServing || !r.StopAt.IsZero() {
			return err
		}
		var now time.Time
		err = tx.QueryRow(ctx, `
			SELECT clock_timestamp()
			FROM machines m, launches l, cluster c
			WHERE m.id = @id AND m.state = 'draining' AND m.drain_actor = @actor
			  AND l.machine = m.id AND l.state = 'serving' AND `+emptyMachine,
			namedArgs{"id": id, "actor": ScalerActor}).Scan(&now)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		if r, err = r.WithStop(cloud.Stop{Actor: ScalerActor, Reason: idleReason}, now); err != nil {
			return err
		}
		done = true
		return storeLaunch(ctx, tx, r)
	})
	if err != nil {
		return false, mapError(err, "launch of machine "+string(id))
	}
	if done {
		d.hub.Publish(TopicLaunch, string(id))
	}
	return done, nil
}
