package db

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// followLease is how long the agent of a followed member reads its unfinished line after the last renewal. FollowRenew
// is the time between two renewals by a replica.
const (
	followLease = 15 * time.Second
	FollowRenew = 5 * time.Second
)

// lineSilence is the age of a machine's last sign of life from which the lines of its members are not shown: they may
// be old ones. An agent calls at least every berth.SyncWait.
const lineSilence = 5 * berth.SyncWait

// heardLine is the unfinished line of the row f of a machine with the lease l.
const heardLine = `CASE WHEN ` + silentFor + ` < @silence::interval THEN coalesce(f.line, '') ELSE '' END`

// followUnfinished renews the lease of a followed member and reads its line.
//
// A lease that is not old yet is left alone, so that many replicas write no more than one. An expired row
// belongs to earlier followers, and its line may be of long ago. The statement locks the row of the member alone, so
// that followers never wait for each other in a circle; PruneFollowed removes expired rows.
const followUnfinished = `
	WITH target AS (
		SELECT a.id, a.job, a.attempt, a.rank, a.machine_id,
			EXISTS (SELECT 1 FROM followed_members f WHERE f.alloc = a.id AND f.until > now()) AS known
		FROM jobs j
		JOIN allocations a ON a.job = j.id AND a.attempt = j.attempt AND a.rank = @rank
		WHERE j.id = @job AND a.state = 'active'
	), renewed AS (
		INSERT INTO followed_members AS f (alloc, job, attempt, rank, machine_id, until)
		SELECT id, job, attempt, rank, machine_id, now() + @lease::interval
		FROM target
		ON CONFLICT (alloc) DO UPDATE
		SET until = excluded.until, job = excluded.job, attempt = excluded.attempt, rank = excluded.rank,
			machine_id = excluded.machine_id,
			at = CASE WHEN f.until > now() THEN f.at END,
			stderr = f.until > now() AND f.stderr,
			line = CASE WHEN f.until > now() THEN f.line ELSE '' END
		WHERE f.until < now() + @fresh::interval
	)
	SELECT t.machine_id, t.known, t.attempt, coalesce(f.at, now()), coalesce(f.stderr, false), ` + heardLine + `
	FROM target t
	LEFT JOIN machine_leases l USING (machine_id)
	LEFT JOIN followed_members f ON t.known AND f.alloc = t.id`

// FollowUnfinished orders the agent of a member to read the member's unfinished line for followLease from now on, and
// returns the line that the agent has sent last: an empty one while the machine is silent. ok is false while the member
// holds no machine. The member is the one of the latest attempt of the job.
func (d *Logs) FollowUnfinished(
	ctx context.Context, job berth.JobID, rank int,
) (l wire.LogLine, ok bool, err error) {
	rows, err := d.pool.Query(ctx, followUnfinished,
		namedArgs{"job": job, "rank": rank, "lease": followLease, "fresh": followLease - FollowRenew + time.Second,
			"silence": lineSilence})
	if err != nil {
		return l, false, mapError(err, "followed member of job "+string(job))
	}
	var machine berth.MachineID
	var known, stderr bool
	l = wire.LogLine{Member: rank}
	_, err = pgx.ForEachRow(rows, []any{&machine, &known, &l.Attempt, &l.At, &stderr, &l.Text}, func() error {
		ok = true
		return nil
	})
	if ok && !known {
		d.hub.Publish(TopicMachine, string(machine))
	}
	l.Stream = streamName(stderr)
	return l, ok, mapError(err, "followed member of job "+string(job))
}

// Unfinished returns the unfinished line that the agent of a member has sent last: an empty one while the machine is
// silent. ok is false without followers of the member, and while the member holds no machine.
func (d *Logs) Unfinished(ctx context.Context, job berth.JobID, rank int) (l wire.LogLine, ok bool, err error) {
	var stderr bool
	l = wire.LogLine{Member: rank}
	err = d.pool.QueryRow(ctx, `
		SELECT f.attempt, coalesce(f.at, now()), f.stderr, `+heardLine+`
		FROM jobs j
		JOIN allocations a ON a.job = j.id AND a.attempt = j.attempt AND a.rank = @rank AND a.state = 'active'
		JOIN followed_members f ON f.alloc = a.id AND f.job = a.job AND f.until > now()
		LEFT JOIN machine_leases l ON l.machine_id = a.machine_id
		WHERE j.id = @job`,
		namedArgs{"job": job, "rank": rank, "silence": lineSilence}).Scan(&l.Attempt, &l.At, &stderr, &l.Text)
	l.Stream = streamName(stderr)
	if isNoRows(err) {
		return l, false, nil
	}
	return l, err == nil, mapError(err, "unfinished line of job "+string(job))
}

// UnfinishedHints subscribes to hints that the unfinished line of a member has changed. The caller must close the
// subscription.
func (d *Logs) UnfinishedHints(job berth.JobID, rank int) *Subscription {
	return d.hub.Subscribe(TopicUnfinished, unfinishedKey(string(job), rank))
}

// unfinishedKey is the key of a member in TopicUnfinished.
func unfinishedKey(job string, rank int) string { return job + "/" + strconv.Itoa(rank) }

// PruneFollowed deletes at most limit leases of followers, with their lines, that expired longer than age ago, and
// returns the number of deleted rows. Rows that a follower has locked are left to the next call.
func (d *Logs) PruneFollowed(ctx context.Context, term Term, age time.Duration, limit int) (int, error) {
	var n int
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			WITH expired AS (
				SELECT alloc
				FROM followed_members
				WHERE until < now() - @age::interval
				ORDER BY alloc
				LIMIT @limit
				FOR UPDATE SKIP LOCKED
			)
			DELETE FROM followed_members f
			USING expired e
			WHERE f.alloc = e.alloc`,
			namedArgs{"age": age, "limit": limit})
		n = int(tag.RowsAffected())
		return err
	})
	return n, mapError(err, "followed members")
}

// streamName names a stream of a container as wire.LogLine does.
func streamName(stderr bool) string {
	if stderr {
		return "stderr"
	}
	return "stdout"
}
