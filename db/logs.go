package db

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// LogPlace is the position and the owner of a member's log.
type LogPlace struct {
	Tenant  berth.TenantID
	Job     berth.JobID
	Attempt int
	Rank    int
	End     int64 // stored bytes; the next chunk starts here
	Cut     bool  // a storage quota ended the log: later chunks are dropped

	machine berth.MachineID // the machine that appends
	session Session
}

// LogChunk is a stored object with a part of a member's log.
type LogChunk struct {
	Offset  int64
	Bytes   int
	Lines   int
	FirstAt time.Time // of the first line
	LastAt  time.Time
	Cut     bool // a storage quota ends the log with this chunk
}

// Place returns the position of an allocation's log, for the machine that runs it, in the
// machine's current session. The log takes chunks until the member is sealed; after that, and
// for an attempt that is no longer current, Place fails with stale_attempt.
func (d *Logs) Place(ctx context.Context, machine berth.MachineID, at Session,
	alloc berth.AllocationID) (LogPlace, error) {
	p := LogPlace{session: at, machine: machine}
	err := d.pool.QueryRow(ctx, `
		SELECT j.tenant, a.job::text, a.attempt, a.rank, a.log_bytes, a.log_cut
		FROM allocations a
		JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
		JOIN machines m ON m.id = a.machine_id AND m.agent_boot = @boot AND m.epoch = @epoch
		WHERE a.id = @alloc AND a.machine_id = @machine
		  AND (a.state = 'active' OR a.state = 'exited' AND a.sealed_at IS NULL)`,
		namedArgs{"alloc": int64(alloc), "machine": machine, "boot": at.AgentBoot, "epoch": at.Epoch}).
		Scan(&p.Tenant, &p.Job, &p.Attempt, &p.Rank, &p.End, &p.Cut)
	if errors.Is(err, pgx.ErrNoRows) {
		if err := d.checkSession(ctx, machine, at); err != nil {
			return p, err
		}
		return p, errStaleAttempt(alloc)
	}
	return p, mapError(err, fmt.Sprintf("log of allocation %d", alloc))
}

// Append adds a stored object to the log, if the log still ends at the chunk's offset, and
// returns the log's end. The end shows the caller if another call appended first, for example
// an earlier try of its own. A log that a storage quota has cut takes no more.
func (d *Logs) Append(ctx context.Context, alloc berth.AllocationID, p LogPlace, c LogChunk) (end int64, err error) {
	err = d.pool.QueryRow(ctx, appendLog, p.appendArgs(alloc, c)).Scan(&end)
	if err != nil {
		return 0, mapError(err, fmt.Sprintf("log of allocation %d", alloc))
	}
	d.hub.Publish(TopicJob, string(p.Job))
	return end, nil
}

// appendLog advances the log and inserts the chunk in one statement, or does neither. The
// condition on log_bytes makes a repeated call harmless.
const appendLog = `
		WITH appended AS (
			UPDATE allocations
			SET log_bytes = log_bytes + @bytes, log_cut = @cut
			WHERE id = @alloc AND machine_id = @machine AND attempt = @attempt AND log_bytes = @off AND NOT log_cut
			  AND (state = 'active' OR state = 'exited' AND sealed_at IS NULL)
			  AND EXISTS (SELECT 1 FROM machines m WHERE m.id = @machine AND m.agent_boot = @boot AND m.epoch = @epoch)
			RETURNING log_bytes
		), chunk AS (
			INSERT INTO log_chunks (job, attempt, rank, off, bytes, lines, first_at, last_at)
			SELECT @job, @attempt, @rank, @off, @bytes, @lines, @first, @last
			FROM appended
		)
		SELECT coalesce((SELECT log_bytes FROM appended), (SELECT log_bytes FROM allocations WHERE id = @alloc), 0)`

// appendArgs returns the arguments of appendLog.
func (p LogPlace) appendArgs(alloc berth.AllocationID, c LogChunk) namedArgs {
	return namedArgs{
		"alloc": int64(alloc), "machine": p.machine, "boot": p.session.AgentBoot, "epoch": p.session.Epoch,
		"job": p.Job, "attempt": p.Attempt, "rank": p.Rank,
		"off": c.Offset, "bytes": c.Bytes, "lines": c.Lines, "first": c.FirstAt, "last": c.LastAt, "cut": c.Cut,
	}
}

// MaxLogChunk is the greatest size of one object of a log, in bytes.
const MaxLogChunk = 1 << 20

// Chunks returns at most limit chunks of a member's log that end after offset, in order, and
// the offset at which the log ends now. Tenant "" means any; a log that does not exist has no
// chunks. The returned tenant is the job's owner, which is part of the object keys.
func (d *Logs) Chunks(ctx context.Context, log berth.LogRef, after int64,
	limit int) (owner berth.TenantID, chunks []LogChunk, end int64, err error) {
	// A chunk that ends after @after starts less than the greatest length of a chunk before
	// it, so only these chunks are read.
	rows, err := d.pool.Query(ctx, `
		SELECT o.tenant, c.off, c.bytes, c.lines, coalesce(c.first_at, 'epoch'), coalesce(c.last_at, 'epoch'), last.ends
		FROM (
			SELECT id, tenant FROM jobs WHERE id = @job
			UNION ALL
			SELECT id, tenant FROM archived_jobs WHERE id = @job
		) o
		CROSS JOIN (
			SELECT off + bytes AS ends
			FROM log_chunks
			WHERE job = @job AND attempt = @attempt AND rank = @rank
			ORDER BY off DESC
			LIMIT 1
		) last
		CROSS JOIN LATERAL (
			SELECT off, bytes, lines, first_at, last_at
			FROM log_chunks
			WHERE job = @job AND attempt = @attempt AND rank = @rank AND off > @after::bigint - @longest::bigint
				AND off + bytes > @after
			ORDER BY off
			LIMIT @limit
		) c
		WHERE @tenant = '' OR o.tenant = @tenant
		ORDER BY c.off`,
		namedArgs{"job": log.Job, "attempt": log.Attempt, "rank": log.Rank, "after": after,
			"longest": MaxLogChunk, "tenant": string(log.Tenant), "limit": limit})
	if err != nil {
		return "", nil, 0, mapError(err, "log of job "+string(log.Job))
	}
	chunks, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (LogChunk, error) {
		var c LogChunk
		err := row.Scan(&owner, &c.Offset, &c.Bytes, &c.Lines, &c.FirstAt, &c.LastAt, &end)
		return c, err
	})
	return owner, chunks, end, mapError(err, "log of job "+string(log.Job))
}

// LogJob is the part of a job that a reader of its logs needs.
type LogJob struct {
	Tenant  berth.TenantID
	Attempt int // the latest
	Members int // 0: unknown, as for a pipeline
}

// Job returns the data that a reader of logs needs, of a live or archived job, at a fraction
// of the cost of Jobs.Get. Tenant "" means any.
func (d *Logs) Job(ctx context.Context, tenant berth.TenantID, id berth.JobID) (j LogJob, err error) {
	err = d.pool.QueryRow(ctx, `
		SELECT j.tenant, j.attempt, CASE WHEN j.kind = 'pipeline' THEN 0 ELSE coalesce((
			SELECT (s.spec ->> 'members')::integer FROM job_specs s WHERE s.job = j.id), 0) END
		FROM jobs j
		WHERE j.id = @id AND (@tenant = '' OR j.tenant = @tenant)
		UNION ALL
		SELECT tenant, (job ->> 'attempt')::integer, coalesce((job -> 'spec' ->> 'members')::integer, 0)
		FROM archived_jobs
		WHERE id = @id AND (@tenant = '' OR tenant = @tenant)
		LIMIT 1`,
		namedArgs{"id": id, "tenant": string(tenant)}).Scan(&j.Tenant, &j.Attempt, &j.Members)
	return j, mapError(err, "job "+string(id))
}

// Cut appends the last line of a log that exceeds a storage quota, a stored object as
// in Append, and adds an event, once per attempt. Later pieces of the log are
// dropped; see LogPlace.Cut.
func (d *Logs) Cut(
	ctx context.Context, alloc berth.AllocationID, p LogPlace, c LogChunk, why error,
) (end int64, err error) {
	c.Cut = true
	err = d.tx(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT 1 FROM jobs WHERE id = @job FOR NO KEY UPDATE`, namedArgs{"job": p.Job})
		if err != nil {
			return err
		}
		if err := addEventOnce(ctx, tx, p.Job, wire.EventLogCut, p.Attempt, AgentActor(p.machine),
			fmt.Sprintf("the rest of the log of member %d is not stored: %v", p.Rank, why)); err != nil {
			return err
		}
		return tx.QueryRow(ctx, appendLog, p.appendArgs(alloc, c)).Scan(&end)
	})
	if err == nil {
		d.hub.Publish(TopicJob, string(p.Job))
	}
	return end, mapError(err, fmt.Sprintf("log of allocation %d", alloc))
}
