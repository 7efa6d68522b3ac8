package db

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/lifecycle"
	"berth/spec"
	"berth/wire"
)

// hold is a failed attempt that a settlement hands to a debug job; see docs/adr/0112.
type hold struct {
	debug      berth.JobID
	row        submitRow
	scope      berth.JobID // the failed job, or its array
	job        berth.JobID
	attempt    int
	member     lifecycle.Member
	digest     string // of the image that the attempt ran
	time       spec.Duration
	checkpoint string // folder of checkpoints in the container; "": none
}

// settleAndHold stores a settlement. If the spec asks for it, and a member failed by itself, it hands the failed
// attempt to a debug job. An attempt whose debug job the database rejects is settled without one: the verdict of a
// job must not depend on its hold.
func (d *core) settleAndHold(
	ctx context.Context, tx pgx.Tx, job lockedJob, s lifecycle.Settlement, incarnation int64,
) (hints touched, held *hold, err error) {
	member, ok := lifecycle.Held(job.Job, s)
	if !job.Holds || !ok {
		hints, err = settle(ctx, tx, job, s)
		return hints, nil, err
	}
	err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) (err error) {
		// A job that has ended gets no further events, so the hold's event comes before the verdict.
		if held, err = newHold(ctx, tx, job, member, incarnation); err != nil {
			return err
		}
		if hints, err = settle(ctx, tx, job, s); err == nil && held != nil {
			err = held.store(ctx, tx)
		}
		return err
	})
	_, unread := errors.AsType[pgx.ScanArgError](err)
	if !unread && !IsDataError(err) {
		return hints, held, err
	}
	d.log.Warn("cannot hold a failed attempt, settles it without a hold", "job_id", job.ID, "attempt", job.Attempt,
		"err", err)
	hints, err = settle(ctx, tx, job, s)
	return hints, nil, err
}

// newHold prepares the hold of a failed member, and adds the event of it. nil: the job or its array is held already.
// The caller holds the locks of the job and its members.
func newHold(
	ctx context.Context, tx pgx.Tx, job lockedJob, member lifecycle.Member, incarnation int64,
) (*hold, error) {
	h := &hold{job: job.ID, attempt: job.Attempt, member: member}
	var failed spec.Job
	var alternative int
	submission := Submission{incarnation: incarnation}
	err := tx.QueryRow(ctx, `
		SELECT s.spec, j.tenant, j.alternative, `+claimedImage+`, coalesce(j.submitted_by, j.actor),
			coalesce(CASE WHEN j.array_index IS NOT NULL THEN j.parent END, j.id)::text
		FROM jobs j
		JOIN job_specs s ON s.job = j.id
		WHERE j.id = $1`, job.ID).
		Scan(&failed, &submission.Tenant, &alternative, &h.digest, &submission.Actor, &h.scope)
	if err != nil {
		return nil, fmt.Errorf("read the job to hold: %w", err)
	}
	// The settlements of an array take turns, so that the second one sees the hold of the first.
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('berth.hold ' || $1, 0))`,
		string(h.scope)); err != nil {
		return nil, err
	}
	var held bool
	err = tx.QueryRow(ctx, `
		SELECT EXISTS (
			SELECT 1
			FROM holds h
			JOIN jobs d ON d.id = h.debug
			WHERE h.scope = $1 AND d.state NOT IN ('succeeded', 'failed', 'canceled'))`, h.scope).Scan(&held)
	if err != nil || held {
		return nil, err
	}
	failed = failed.WithDefaults()
	h.time = failed.HoldOnFailure
	if failed.Checkpoint != nil {
		h.checkpoint = failed.Checkpoint.Path
	}
	submission.Spec = spec.DebugJob(failed, member.Rank, alternative, member.Machine)
	if h.row, err = newSubmitRow(submission); err != nil {
		return nil, err
	}
	h.row.args["uncounted"] = true // users did not queue it
	h.row.args["image"] = ""       // the digest is the one of the failed attempt
	h.debug = h.row.args["id"].(berth.JobID)
	return h, h.event(ctx, tx)
}

// event adds the event of the hold to the failed job.
func (h *hold) event(ctx context.Context, tx pgx.Tx) error {
	return addEvent(ctx, tx, h.job, wire.Event{
		Kind: wire.EventHoldBegins, Attempt: h.attempt, Actor: "workflow",
		Detail: fmt.Sprintf("job %s keeps the files of member %d on %s, and a shell in its image, for %s", h.debug,
			h.member.Rank, h.member.Machine, h.time),
		Facts: &wire.EventFacts{Rank: &h.member.Rank, Machine: h.member.Machine, Job: h.debug},
	})
}

// store inserts the debug job, and lets the machine keep the folder of the failed member. It follows the write of the
// settlement, which has ordered the machine to forget the member.
func (h *hold) store(ctx context.Context, tx pgx.Tx) error {
	if _, err := h.row.insert(ctx, tx); err != nil {
		return fmt.Errorf("insert the debug job: %w", err)
	}
	batch := &pgx.Batch{}
	args := namedArgs{
		"debug": h.debug, "scope": h.scope, "job": h.job, "attempt": h.attempt, "rank": h.member.Rank,
		"alloc": int64(h.member.ID), "machine": h.member.Machine, "ms": h.time.Std().Milliseconds(),
		"checkpoint": h.checkpoint, "digest": h.digest, "orders": berth.Orders{Forget: true, Keep: true},
	}
	batch.Queue(`UPDATE jobs SET debug = true, image_digest = @digest WHERE id = @debug`, args)
	batch.Queue(`
		INSERT INTO holds (debug, scope, job, attempt, rank, alloc, machine_id, hold_ms, checkpoint)
		VALUES (@debug, @scope, @job, @attempt, @rank, @alloc, @machine, @ms, @checkpoint)`, args)
	batch.Queue(`UPDATE allocations SET orders = orders || @orders WHERE id = @alloc`, args)
	return tx.SendBatch(ctx, batch).Close()
}

// holdEnded is the reason of a debug job that ends before its time.
func holdEnded(message string) *berth.Reason {
	return &berth.Reason{Code: wire.ReasonHoldEnded, Message: message}
}

// HoldEnd names a debug job that must end so that a quota admits another job.
type HoldEnd struct {
	Debug berth.JobID
	Quota berth.TenantID // with the quota
}

// dueHolds lists the debug jobs that must end before their time, with the reason. A replica of the version before may
// have settled one as to be retried.
const dueHolds = `
	SELECT d.id::text, CASE
			WHEN d.state = 'retrying' THEN 'a hold does not run twice'
			WHEN m.state = 'draining' THEN 'machine ' || m.id || ' is draining'
			ELSE 'a job of tenant ' || q.quota || ', or of one below it, waits for a quota alone, and a quota of '
				|| 'tenant ' || q.quota || ' counts this hold' END
	FROM holds h
	JOIN jobs d ON d.id = h.debug
	JOIN machines m ON m.id = h.machine_id
	LEFT JOIN unnest(@debugs::uuid[], @quotas::text[]) AS q (debug, quota) ON q.debug = h.debug
	WHERE d.state = 'retrying' OR d.state IN ('submitted', 'queued', 'scheduled', 'running')
		AND (m.state = 'draining' OR d.state IN ('scheduled', 'running') AND q.quota IS NOT NULL)
	ORDER BY d.id
	LIMIT @limit`

// EndDue cancels the debug jobs on draining machines, and the given ones, whose end lets a quota admit another job: a
// hold must not delay any work. At most limit end in a call. EndDue returns them, and the caller pokes their
// workflows. A hold whose data the database rejects does not keep the others: EndDue goes on, and returns a data error
// at the end.
func (d *Holds) EndDue(ctx context.Context, term Term, ends []HoldEnd, limit int) ([]berth.JobID, error) {
	debugs, quotas := make([]berth.JobID, len(ends)), make([]berth.TenantID, len(ends))
	for i, end := range ends {
		debugs[i], quotas[i] = end.Debug, end.Quota
	}
	rows, err := d.pool.Query(ctx, dueHolds, namedArgs{"debugs": debugs, "quotas": quotas, "limit": limit})
	if err != nil {
		return nil, mapError(err, "holds")
	}
	type due struct {
		ID  berth.JobID
		Why string
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[due])
	if err != nil {
		return nil, mapError(err, "holds")
	}
	var ended []berth.JobID
	var faults []error
	for _, x := range list {
		err := d.end(ctx, term, x.ID, x.Why)
		switch {
		case err == nil:
			ended = append(ended, x.ID)
		case IsDataError(err) && ctx.Err() == nil:
			faults = append(faults, err)
		default:
			return ended, err
		}
	}
	return ended, errors.Join(faults...)
}

// orphaned is true for a hold h whose debug job has no row. The settlement that inserts a hold inserts its debug job in
// the same transaction.
const orphaned = `NOT EXISTS (SELECT 1 FROM jobs d WHERE d.id = h.debug)`

// Sweep deletes the rows of holds whose debug job has no row: a berthd of a version without holds has archived it. It
// returns their number. Usually there is none, and Sweep writes nothing.
func (d *Holds) Sweep(ctx context.Context, term Term) (swept int, err error) {
	var some bool
	err = d.pool.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM holds h WHERE `+orphaned+`)`).Scan(&some)
	if err != nil || !some {
		return 0, mapError(err, "holds")
	}
	err = d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `DELETE FROM holds h WHERE `+orphaned)
		swept = int(tag.RowsAffected())
		return err
	})
	return swept, mapError(err, "holds")
}

// end cancels a debug job for the leader.
func (d *Holds) end(ctx context.Context, term Term, debug berth.JobID, why string) error {
	var c cancellation
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) (err error) {
		c, err = cancelJob(ctx, tx, "", debug, "leader", holdEnded(why), false)
		return err
	})
	if err == nil {
		_, err = afterCancel(ctx, d.core, c)
	}
	return mapError(err, "job "+string(debug))
}

// Release cancels the debug job that holds an attempt of an ended job, or of an ended element of an array. It
// returns "" if there is none.
func (d *Holds) Release(
	ctx context.Context, tenant berth.TenantID, job berth.JobID, actor string,
) (debug berth.JobID, err error) {
	err = d.pool.QueryRow(ctx, `
		SELECT d.id::text
		FROM holds h
		JOIN jobs d ON d.id = h.debug
		JOIN jobs j ON j.id = h.job
		WHERE (h.job = @job OR h.scope = @job) AND (@tenant = '' OR d.tenant = @tenant)
		  AND d.state NOT IN ('succeeded', 'failed', 'canceled') AND j.state IN ('succeeded', 'failed', 'canceled')
		ORDER BY d.id
		LIMIT 1`, namedArgs{"job": job, "tenant": string(tenant)}).Scan(&debug)
	if isNoRows(err) {
		return "", nil
	}
	if err != nil {
		return "", mapError(err, "job "+string(job))
	}
	_, err = requestCancel(ctx, d.core, tenant, debug, actor,
		&berth.Reason{Code: berth.ReasonCanceledByUser, Message: "released by " + actor}, false)
	return debug, err
}
