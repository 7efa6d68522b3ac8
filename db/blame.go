package db

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/failure"
	"berth/lifecycle"
)

// alone is true if allocation a is the only suspect in the death of its machine m. The
// machine was not draining, and no other job's container may have run. Evaluate
// alone when the machine is declared lost or returns after a boot; later the rows no
// longer show which containers were running.
const alone = `(m.drain_reason IS NULL AND NOT EXISTS (
	SELECT 1
	FROM allocations o
	WHERE o.machine_id = a.machine_id AND o.forgotten_at IS NULL AND o.job <> a.job
	  AND o.started_at IS NOT NULL AND o.state IN ('active', 'orphaned')))`

// suspect is true if a member's machine died within ten minutes of the member's start.
// A machine is declared lost up to lost_after later than its death, so the condition adds
// that time. A machine that returned in the same boot had only lost contact, and does not
// count; a machine that reported a reboot does, by freed_by for a member that was given up
// before the report and has no exit. The value is never null.
const suspect = `coalesce(a.alone AND a.started_at IS NOT NULL
	AND (a.state = 'orphaned' OR a.freed_by = 'boot' OR a.exit ->> 'cause' = 'boot')
	AND coalesce(a.orphaned_at, a.exited_at) - a.started_at <= interval '10 minutes'
		+ interval '1 millisecond' * (SELECT j.lost_after_ms FROM jobs j WHERE j.id = a.job), false)`

// keptEarlier is the number of earlier attempts that a verdict considers.
const keptEarlier = 100

// earlier returns the newest keptEarlier attempts before the current one, oldest first.
// A machine that returns in the boot in which contact was lost did not die, and the
// attempt is not marked as died.
func earlier(ctx context.Context, tx pgx.Tx, job lockedJob) ([]failure.EarlierAttempt, error) {
	if job.Attempt <= 1 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT attempt, rule, blamed, last_step, died, no_host
		FROM (
			SELECT t.attempt, coalesce(t.outcome ->> 'rule', '') AS rule, coalesce(t.blamed, '') AS blamed, t.last_step,
				EXISTS (
					SELECT 1
					FROM machine_faults f
					JOIN machines m ON m.id = f.machine_id
					LEFT JOIN machine_leases l ON l.machine_id = m.id
					WHERE f.job = t.job AND f.attempt = t.attempt AND f.died
					  AND (m.host_boot <> f.host_boot OR l.seen_at IS NULL OR l.seen_at <= f.at)) AS died,
				coalesce((
					SELECT a.exit #>> '{unresolved,host}'
					FROM allocations a
					WHERE a.job = t.job AND a.attempt = t.attempt AND a.machine_id = t.blamed AND a.exit ? 'unresolved'
					ORDER BY a.rank
					LIMIT 1), '') AS no_host
			FROM attempts t
			WHERE t.job = @job AND t.attempt < @attempt
			ORDER BY t.attempt DESC
			LIMIT @limit
		) x
		ORDER BY attempt`,
		namedArgs{"job": job.ID, "attempt": job.Attempt, "limit": keptEarlier})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[failure.EarlierAttempt])
}

// queueFaults queues the rows that charge an attempt to machines. A row without host_boot
// stands for a reboot that the machine itself reported: no later contact takes that death
// back.
func queueFaults(batch *pgx.Batch, job lockedJob, f lifecycle.Faults) {
	if len(f.Machines) == 0 {
		return
	}
	batch.Queue(`
		INSERT INTO machine_faults (job, attempt, machine_id, tenant, rule, died, host_boot)
		SELECT j.id, @attempt, m.id, j.tenant, @rule, @died,
			CASE WHEN EXISTS (
				SELECT 1 FROM allocations a
				WHERE a.job = j.id AND a.attempt = @attempt AND a.machine_id = m.id
				  AND (a.freed_by = 'boot' OR a.exit ->> 'cause' = 'boot'))
			THEN '' ELSE m.host_boot END
		FROM jobs j
		JOIN machines m ON m.id = ANY(@machines)
		WHERE j.id = @job
		ON CONFLICT DO NOTHING`,
		namedArgs{"job": job.ID, "attempt": job.Attempt, "machines": f.Machines, "rule": f.Rule, "died": f.Died})
}

// Lemon is a machine that DrainLemons drained for its rate of failures.
type Lemon struct {
	Machine berth.MachineID
	Reason  string
}

// lemonPrefix begins the drain reason of every lemon; DrainLemons counts lemons by prefix.
const lemonPrefix = "lemon: "

// lemons counts the failures of each machine in the last @hours, with their tenants and
// rules. All jobs that one stop of the engine or one reboot ended in the same minute
// count as one failure.
const lemons = `
	SELECT machine_id, count(DISTINCT CASE
			WHEN rule IN ('engine_stopped', 'rebooted') THEN rule || date_trunc('minute', at)
			ELSE job || '/' || attempt
		END) AS faults,
		count(DISTINCT tenant) AS tenants, string_agg(DISTINCT rule, ', ') AS rules
	FROM machine_faults
	WHERE at > now() - interval '1 hour' * @hours AND NOT died AND NOT forgiven
	GROUP BY machine_id`

// DrainLemons drains the machines on which jobs of different teams keep failing, and
// returns the newly drained machines. The thresholds are failure.LemonFaults failures of
// failure.LemonTenants tenants within failure.LemonHours hours. Running jobs continue.
//
// At most a tenth of the machines, and at least one, may be drained as lemons: failures
// everywhere have a common cause, which no drain would remove. Undrain returns a machine
// to service and forgives its failures.
func (d *Machines) DrainLemons(ctx context.Context, term Term) ([]Lemon, error) {
	args := namedArgs{"hours": failure.LemonHours, "faults": failure.LemonFaults, "tenants": failure.LemonTenants,
		"lemon": lemonPrefix + "%"}
	const due = `
		FROM (` + lemons + `) b
		JOIN machines m ON m.id = b.machine_id
		WHERE b.faults >= @faults AND b.tenants >= @tenants AND m.state IN ('joining', 'ready', 'suspect')`
	// Most calls find no lemon; this read spares the common case the leader's transaction.
	var some bool
	if err := d.pool.QueryRow(ctx, `SELECT EXISTS (SELECT 1 `+due+`)`, args).Scan(&some); err != nil || !some {
		return nil, mapError(err, "machines")
	}
	var found []Lemon
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		var room int
		err := tx.QueryRow(ctx, `
			SELECT greatest(1, count(*) / 10) - count(*) FILTER (WHERE drain_reason LIKE @lemon)
			FROM machines
			WHERE state <> 'retired'`, args).Scan(&room)
		if err != nil || room <= 0 {
			return err
		}
		args["room"] = room
		rows, err := tx.Query(ctx, `SELECT m.id, b.faults, b.tenants,
			b.rules `+due+` ORDER BY b.faults DESC, m.id LIMIT @room`, args)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (l Lemon, err error) {
			var faults, tenants int
			var rules string
			err = row.Scan(&l.Machine, &faults, &tenants, &rules)
			l.Reason = fmt.Sprintf("%s%d failures of jobs of %d tenants within %d h (%s); "+
				"undrain it when it is cured", lemonPrefix, faults, tenants, failure.LemonHours, rules)
			return l, err
		})
		if err != nil {
			return err
		}
		ids, reasons := make([]string, len(found)), make([]string, len(found))
		for i, l := range found {
			ids[i], reasons[i] = string(l.Machine), l.Reason
		}
		if err := actAs(ctx, tx, "leader"); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			WITH locked AS (
				SELECT m.id, x.reason
				FROM machines m
				JOIN unnest(@ids::text[], @reasons::text[]) AS x (id, reason) ON x.id = m.id
				ORDER BY m.id
				FOR NO KEY UPDATE OF m
			)
			UPDATE machines m
			SET state = 'draining', reason = l.reason, drain_reason = l.reason, drain_deadline = NULL
			FROM locked l
			WHERE m.id = l.id AND m.state IN ('joining', 'ready', 'suspect')`,
			namedArgs{"ids": ids, "reasons": reasons})
		return err
	})
	if err != nil {
		return nil, mapError(err, "machines")
	}
	for _, l := range found {
		d.hub.Publish(TopicQueue, "")
		d.hub.Publish(TopicMachine, string(l.Machine))
	}
	return found, nil
}
