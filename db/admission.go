package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// SetAdmission pauses or resumes the start of new work in the whole cluster, and
// records the actor and the reason. A call that asks for the state already in force
// writes nothing and returns the change that set that state. A quarantined cluster cannot be resumed; a pause
// outlasts the quarantine.
func (d *Cluster) SetAdmission(ctx context.Context, paused bool, reason, actor string) (wire.Admission, error) {
	var a wire.Admission
	err := d.tx(ctx, func(tx pgx.Tx) error {
		// The lock serializes two operators: the second reads the first one's change, and
		// the table gets no two rows for the same state in succession.
		if _, err := tx.Exec(ctx, `LOCK TABLE admission_changes IN SHARE ROW EXCLUSIVE MODE`); err != nil {
			return err
		}
		var err error
		if a, err = readAdmission(ctx, tx); err != nil {
			return err
		}
		if a.Quarantined && !paused {
			return berth.Errorf(berth.CodeConflict, "admission cannot be resumed: %s", a.Reason)
		}
		var was bool // without the quarantine
		err = tx.QueryRow(ctx,
			`SELECT coalesce((SELECT paused FROM admission_changes ORDER BY id DESC LIMIT 1), false)`).Scan(&was)
		if err != nil || was == paused {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO admission_changes (paused, reason, actor)
			VALUES (@paused, @reason, @actor)`,
			namedArgs{"paused": paused, "reason": reason, "actor": actor})
		if err != nil {
			return err
		}
		a, err = readAdmission(ctx, tx)
		return err
	})
	if err != nil {
		return wire.Admission{}, mapError(err, "admission")
	}
	d.hub.Publish(TopicAdmission, "")
	return a, nil
}

// Admission returns the newest change of admission. The zero value means that
// admission was never changed: new work may start, and Since is nil.
func (d *Cluster) Admission(ctx context.Context) (wire.Admission, error) {
	a, err := readAdmission(ctx, d.pool)
	return a, mapError(err, "admission")
}

// readAdmission returns the newest row of admission_changes, or the zero value if the
// table is empty. A quarantined cluster is always paused.
func readAdmission(ctx context.Context, q querier) (wire.Admission, error) {
	rows, err := q.Query(ctx, `
		SELECT paused, reason, actor, at, quarantined
		FROM (
			SELECT true AS paused, 'the cluster was restored from a backup and waits for berthd backup adopt' AS reason,
				'restore' AS actor, quarantined_at AS at, true AS quarantined, NULL::bigint AS id
			FROM cluster
			WHERE quarantined_at IS NOT NULL
			UNION ALL
			SELECT * FROM (
				SELECT paused, reason, actor, at, false, id FROM admission_changes ORDER BY id DESC LIMIT 1
			) newest
		) c
		ORDER BY quarantined DESC
		LIMIT 1`)
	if err != nil {
		return wire.Admission{}, err
	}
	var a wire.Admission
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&a.Paused, &a.Reason, &a.Actor, &at, &a.Quarantined}, func() error {
		a.Since = &at
		return nil
	})
	return a, err
}

// Pressure is the load on settlement, by which the dispatcher holds back new starts.
type Pressure struct {
	Paused bool // an operator paused admission

	// Unsettled is the number of jobs whose members have all been sealed while the job's
	// state still says that it holds capacity. It is at most maxUnsettled.
	Unsettled int
}

// maxUnsettled bounds the count of unsettled jobs, and so the cost of counting.
const maxUnsettled = 1000

// Pressure counts the unsettled jobs whose last member was sealed between from and to
// ago, and reads whether admission is paused. A gang counts only after all its members
// have ended.
func (d *Cluster) Pressure(ctx context.Context, from, to time.Duration) (Pressure, error) {
	var p Pressure
	err := d.pool.QueryRow(ctx, `
		SELECT coalesce((SELECT paused FROM admission_changes ORDER BY id DESC LIMIT 1), false),
			(SELECT count(*) FROM (
				SELECT 1
				FROM allocations a
				JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
				WHERE a.state = 'exited' AND a.sealed_at IS NOT NULL
				  AND a.sealed_at > now() - @to::interval AND a.sealed_at < now() - @from::interval
				  AND j.state IN ('scheduled', 'running', 'preempting', 'canceling')
				  AND NOT EXISTS (
					SELECT 1 FROM allocations o
					WHERE o.job = a.job AND o.attempt = a.attempt
					  AND (o.state IN ('reserved', 'active') OR o.state = 'exited'
					    AND (o.sealed_at IS NULL OR (o.sealed_at, o.id) > (a.sealed_at, a.id))))
				LIMIT @most) x)`,
		namedArgs{"from": from, "to": to, "most": maxUnsettled}).Scan(&p.Paused, &p.Unsettled)
	return p, mapError(err, "unsettled attempts")
}
