package db

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// LogPlace is where a rank's log stands and whose it is.
type LogPlace struct {
	Tenant  berth.TenantID
	Job     berth.JobID
	Attempt int
	Rank    int
	End     int64 // bytes stored

	machine berth.MachineID // who appends
	session Session
}

// LogChunk is an object that holds a part of a rank's log.
type LogChunk struct {
	Offset  int64
	Bytes   int
	Lines   int
	FirstAt time.Time // of its first line
	LastAt  time.Time
}

// LogPlace returns where the log of an allocation stands, if this machine may
// append to it in this session: until the rank is sealed.
func (d *DB) LogPlace(ctx context.Context, machine berth.MachineID, at Session, alloc berth.AllocationID) (LogPlace, error) {
	p := LogPlace{session: at, machine: machine}
	err := d.pool.QueryRow(ctx, `
		SELECT j.tenant, a.job::text, a.attempt, a.rank, a.log_bytes
		FROM allocations a
		JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
		JOIN machines m ON m.id = a.machine_id AND m.agent_boot = @boot AND m.epoch = @epoch
		WHERE a.id = @alloc AND a.machine_id = @machine
		  AND (a.state = 'active' OR a.state = 'exited' AND a.sealed_at IS NULL)`,
		pgx.NamedArgs{"alloc": int64(alloc), "machine": machine, "boot": at.AgentBoot, "epoch": at.Epoch}).
		Scan(&p.Tenant, &p.Job, &p.Attempt, &p.Rank, &p.End)
	if errors.Is(err, pgx.ErrNoRows) {
		if err := d.checkSession(ctx, machine, at); err != nil {
			return p, err
		}
		return p, errStaleAttempt(alloc)
	}
	return p, mapError(err, fmt.Sprintf("log of allocation %d", alloc))
}

// checkSession refuses a caller whose session is not the machine's current one.
func (d *DB) checkSession(ctx context.Context, machine berth.MachineID, at Session) error {
	s, err := d.session(ctx, machine)
	if err != nil {
		return err
	}
	return s.check(machine, at.AgentBoot, at.Epoch)
}

// AppendLog makes a stored object part of the log, if the log still ends where
// it begins. It returns the log's end, whoever moved it there.
func (d *DB) AppendLog(ctx context.Context, alloc berth.AllocationID, p LogPlace, c LogChunk) (end int64, err error) {
	err = d.pool.QueryRow(ctx, `
		WITH appended AS (
			UPDATE allocations
			SET log_bytes = log_bytes + @bytes
			WHERE id = @alloc AND machine_id = @machine AND attempt = @attempt AND log_bytes = @off
			  AND (state = 'active' OR state = 'exited' AND sealed_at IS NULL)
			  AND EXISTS (SELECT 1 FROM machines m WHERE m.id = @machine AND m.agent_boot = @boot AND m.epoch = @epoch)
			RETURNING log_bytes
		), chunk AS (
			INSERT INTO log_chunks (job, attempt, rank, off, bytes, lines, first_at, last_at)
			SELECT @job, @attempt, @rank, @off, @bytes, @lines, @first, @last
			FROM appended
		)
		SELECT coalesce((SELECT log_bytes FROM appended), (SELECT log_bytes FROM allocations WHERE id = @alloc), 0)`,
		pgx.NamedArgs{
			"alloc": int64(alloc), "machine": p.machine, "boot": p.session.AgentBoot, "epoch": p.session.Epoch, "job": p.Job, "attempt": p.Attempt, "rank": p.Rank,
			"off": c.Offset, "bytes": c.Bytes, "lines": c.Lines, "first": c.FirstAt, "last": c.LastAt,
		}).Scan(&end)
	if err != nil {
		return 0, mapError(err, fmt.Sprintf("log of allocation %d", alloc))
	}
	d.hub.Publish(TopicJob, string(p.Job))
	return end, nil
}

// LogChunks returns the chunks of a rank's log that end after offset, in order.
// Tenant "" means any; a log that does not exist has no chunks. The tenant
// returned is the owner's: object keys name it.
func (d *DB) LogChunks(ctx context.Context, tenant berth.TenantID, job berth.JobID, attempt, rank int, after int64) (berth.TenantID, []LogChunk, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT o.tenant, c.off, c.bytes, c.lines, coalesce(c.first_at, 'epoch'), coalesce(c.last_at, 'epoch')
		FROM log_chunks c
		JOIN (
			SELECT id, tenant FROM jobs WHERE id = @job
			UNION ALL
			SELECT id, tenant FROM archived_jobs WHERE id = @job
		) o ON o.id = c.job
		WHERE c.job = @job AND c.attempt = @attempt AND c.rank = @rank AND c.off + c.bytes > @after
		  AND (@tenant = '' OR o.tenant = @tenant)
		ORDER BY c.off`,
		pgx.NamedArgs{"job": job, "attempt": attempt, "rank": rank, "after": after, "tenant": string(tenant)})
	if err != nil {
		return "", nil, mapError(err, "log of job "+string(job))
	}
	var owner berth.TenantID
	chunks, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (LogChunk, error) {
		var c LogChunk
		err := row.Scan(&owner, &c.Offset, &c.Bytes, &c.Lines, &c.FirstAt, &c.LastAt)
		return c, err
	})
	return owner, chunks, mapError(err, "log of job "+string(job))
}
