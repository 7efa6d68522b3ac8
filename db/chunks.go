package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// Member names one member of one attempt of a job.
type Member struct {
	Tenant  berth.TenantID
	Job     berth.JobID
	Attempt int
	Rank    int
}

// args returns the member as arguments of a statement, with the hashes of some chunks.
func (m Member) args(sums []string) pgx.NamedArgs {
	return pgx.NamedArgs{"tenant": string(m.Tenant), "job": m.Job, "attempt": m.Attempt, "rank": m.Rank, "sums": sums}
}

// copyOf returns a copy of a chunk that the member has stored.
func (m Member) copyOf(sum, random string) wire.ChunkCopy {
	return wire.ChunkCopy{Tenant: m.Tenant, Job: m.Job, Attempt: m.Attempt, Rank: m.Rank, SHA256: sum, Random: random}
}

// chunkHeld is true if the member @job, @attempt, @rank need not send chunk c: it has sent the content in this attempt,
// or the chunk is a part of a checkpoint that it may restore. A hash alone is no proof that it has the content.
const chunkHeld = `(
	EXISTS (
		SELECT 1 FROM chunk_loads l
		WHERE l.job = @job AND l.attempt = @attempt AND l.rank = @rank AND l.sha256 = c.sha256 AND l.stored)
	OR EXISTS (
		SELECT 1 FROM chunk_refs r
		WHERE r.tenant = c.tenant AND r.sha256 = c.sha256 AND (r.rank = @rank AND r.job = @job OR EXISTS (
			SELECT 1 FROM job_sources o
			WHERE o.job = @job AND o.array_index = -1 AND o.source = r.job AND o.step = r.step
			  AND o.attempt = r.attempt AND (r.rank = @rank OR r.rank < o.parts)))))`

// asked selects the hashes of @sums.
const asked = `(SELECT decode(s, 'hex') FROM unnest(@sums::text[]) s)`

// Held returns the chunks that the member need not send.
func (d *Chunks) Held(ctx context.Context, m Member, sums []string) (map[string]bool, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT encode(c.sha256, 'hex')
		FROM chunks c
		WHERE c.tenant = @tenant AND c.sha256 IN `+asked+` AND NOT c.broken AND `+chunkHeld, m.args(sums))
	if err != nil {
		return nil, mapError(err, "chunks")
	}
	held := map[string]bool{}
	var sum string
	_, err = pgx.ForEachRow(rows, []any{&sum}, func() error {
		held[sum] = true
		return nil
	})
	return held, mapError(err, "chunks")
}

// Load records that the member is about to store chunks, and returns the copy of each. Nobody else ever writes these
// copies, so an object at the key of one proves that the member has sent the content. A repeated call returns the same
// copies, unless they were stored. The chunks are distinct.
func (d *Chunks) Load(ctx context.Context, m Member, chunks []wire.Chunk) (map[string]wire.ChunkCopy, error) {
	sums, bytes, copies := make([]string, len(chunks)), make([]int64, len(chunks)), make([]string, len(chunks))
	for i, c := range chunks {
		sums[i], bytes[i], copies[i] = c.SHA256, c.Bytes, berth.NewSecret()[:16]
	}
	args := m.args(sums)
	args["bytes"], args["copies"] = bytes, copies
	rows, err := d.pool.Query(ctx, `
		INSERT INTO chunk_loads AS l (job, attempt, rank, sha256, tenant, bytes, copy)
		SELECT @job::uuid, @attempt::int, @rank::int, decode(x.sum, 'hex'), @tenant::text, x.bytes, x.copy
		FROM unnest(@sums::text[], @bytes::bigint[], @copies::text[]) x (sum, bytes, copy)
		ORDER BY decode(x.sum, 'hex')
		ON CONFLICT (job, attempt, rank, sha256) DO UPDATE
		SET copy = CASE WHEN l.stored THEN excluded.copy ELSE l.copy END, bytes = excluded.bytes, stored = false,
		    at = excluded.at
		RETURNING encode(sha256, 'hex'), copy`, args)
	return m.copies(rows, err)
}

// Loads returns the copies of chunks that the member stores and that are not compared yet.
func (d *Chunks) Loads(ctx context.Context, m Member, sums []string) (map[string]wire.ChunkCopy, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT encode(sha256, 'hex'), copy
		FROM chunk_loads
		WHERE job = @job AND attempt = @attempt AND rank = @rank AND sha256 IN `+asked+` AND NOT stored`, m.args(sums))
	return m.copies(rows, err)
}

// copies reads rows of hashes and random parts.
func (m Member) copies(rows pgx.Rows, err error) (map[string]wire.ChunkCopy, error) {
	if err != nil {
		return nil, mapError(err, "chunks")
	}
	copies := map[string]wire.ChunkCopy{}
	var sum, random string
	_, err = pgx.ForEachRow(rows, []any{&sum, &random}, func() error {
		copies[sum] = m.copyOf(sum, random)
		return nil
	})
	return copies, mapError(err, "chunks")
}

// lateAddress is the time after which no address to write a copy is used any longer: addresses live for five minutes,
// and a request that began in time may last longer.
const lateAddress = 10 * time.Minute

// Stored records that the server has compared the member's copies of these chunks with their hashes. The first copy of
// a chunk is the one of the tenant; others are marked for deletion, and so is a broken one that is replaced.
func (d *Chunks) Stored(ctx context.Context, m Member, sums []string) error {
	err := d.tx(ctx, func(tx pgx.Tx) error {
		args := m.args(sums)
		args["late"] = lateAddress
		rows, err := tx.Query(ctx, `
			SELECT tenant, job::text, attempt, rank, encode(sha256, 'hex'), copy
			FROM chunks
			WHERE tenant = @tenant AND sha256 IN `+asked+` AND broken
			ORDER BY sha256
			FOR NO KEY UPDATE`, args)
		gone, err := readCopies(rows, err)
		if err != nil {
			return err
		}
		// The update of an unused chunk keeps a collection that runs now from it, and locks its row.
		if _, err := tx.Exec(ctx, `
			INSERT INTO chunks AS c (tenant, sha256, bytes, job, attempt, rank, copy)
			SELECT tenant, sha256, bytes, job, attempt, rank, copy
			FROM chunk_loads
			WHERE job = @job AND attempt = @attempt AND rank = @rank AND sha256 IN `+asked+` AND NOT stored
			ORDER BY sha256
			ON CONFLICT (tenant, sha256) DO UPDATE
			SET unused_since = clock_timestamp(), broken = false,
			    job = CASE WHEN c.broken THEN excluded.job ELSE c.job END,
			    attempt = CASE WHEN c.broken THEN excluded.attempt ELSE c.attempt END,
			    rank = CASE WHEN c.broken THEN excluded.rank ELSE c.rank END,
			    copy = CASE WHEN c.broken THEN excluded.copy ELSE c.copy END`, args); err != nil {
			return err
		}
		rows, err = tx.Query(ctx, `
			WITH s AS (
				UPDATE chunk_loads
				SET stored = true, at = clock_timestamp()
				WHERE job = @job AND attempt = @attempt AND rank = @rank AND sha256 IN `+asked+` AND NOT stored
				RETURNING tenant, job, attempt, rank, sha256, copy
			)
			SELECT s.tenant, s.job::text, s.attempt, s.rank, encode(s.sha256, 'hex'), s.copy
			FROM s
			JOIN chunks c ON c.tenant = s.tenant AND c.sha256 = s.sha256
			WHERE c.copy <> s.copy`, args)
		twice, err := readCopies(rows, err)
		if err != nil {
			return err
		}
		return doomCopies(ctx, tx, append(gone, twice...), lateAddress)
	})
	return mapError(err, "chunks")
}

// readCopies reads rows with the tenant, job, attempt, rank, hash and random part of copies.
func readCopies(rows pgx.Rows, err error) ([]wire.ChunkCopy, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[wire.ChunkCopy])
}

// doomCopies marks copies of chunks for deletion after a time.
func doomCopies(ctx context.Context, tx pgx.Tx, copies []wire.ChunkCopy, after time.Duration) error {
	if len(copies) == 0 {
		return nil
	}
	keys := make([]string, len(copies))
	for i, c := range copies {
		keys[i] = c.Key()
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO doomed_objects (prefix, since)
		SELECT k, clock_timestamp() + @after::interval
		FROM unnest(@keys::text[]) k
		ORDER BY k
		ON CONFLICT DO NOTHING`, pgx.NamedArgs{"keys": keys, "after": after})
	return err
}

// Readable returns the copies of chunks that a verified checkpoint names, if the machine has a member now that may
// restore the part. The tenant of the part is not used: it follows from the rows. A chunk that the part does not name
// is left out, also if the tenant has it.
func (d *Chunks) Readable(
	ctx context.Context, machine berth.MachineID, part Member, step int64, sums []string,
) (map[string]wire.ChunkCopy, error) {
	args := part.args(sums)
	args["step"], args["machine"] = step, machine
	return d.named(ctx, `
		AND EXISTS (
			SELECT 1
			FROM allocations a
			JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
			WHERE a.machine_id = @machine AND a.state = 'active' AND j.tenant = r.tenant
			  AND (a.rank = @rank AND a.job = @job OR EXISTS (
				SELECT 1 FROM job_sources o
				WHERE o.job = a.job AND o.array_index = -1 AND o.source = @job AND o.step = @step
				  AND o.attempt = @attempt AND (a.rank = @rank OR @rank < o.parts))))`, args)
}

// Named returns the copies of chunks that one member's part of a verified checkpoint names.
func (d *Chunks) Named(ctx context.Context, part Member, step int64, sums []string) (map[string]wire.ChunkCopy, error) {
	args := part.args(sums)
	args["step"] = step
	return d.named(ctx, ``, args)
}

// Has reports whether a part of a checkpoint has chunks.
func (d *Chunks) Has(ctx context.Context, part Member, step int64) (has bool, err error) {
	args := part.args(nil)
	args["step"] = step
	err = d.pool.QueryRow(ctx, `
		SELECT EXISTS (
			SELECT 1 FROM chunk_refs WHERE job = @job AND step = @step AND attempt = @attempt AND rank = @rank)`, args).
		Scan(&has)
	return has, mapError(err, "chunks")
}

// named returns the copies of chunks that a part of a verified checkpoint names, under a further condition.
func (d *Chunks) named(ctx context.Context, also string, args pgx.NamedArgs) (map[string]wire.ChunkCopy, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT c.tenant, c.job::text, c.attempt, c.rank, encode(c.sha256, 'hex'), c.copy
		FROM chunk_refs r
		JOIN checkpoints p ON p.job = r.job AND p.step = r.step AND p.attempt = r.attempt AND p.state = 'verified'
		JOIN chunks c ON c.tenant = r.tenant AND c.sha256 = r.sha256
		WHERE r.job = @job AND r.step = @step AND r.attempt = @attempt AND r.rank = @rank AND r.sha256 IN `+asked+also,
		args)
	list, err := readCopies(rows, err)
	copies := make(map[string]wire.ChunkCopy, len(list))
	for _, c := range list {
		copies[c.SHA256] = c
	}
	return copies, mapError(err, "chunks")
}

// Broken records that the object of a chunk is missing, or has another content. Checkpoints with the chunk stay
// verified until a restore of them fails, or until a member stores the same content again, which heals all of them.
func (d *Chunks) Broken(ctx context.Context, c wire.ChunkCopy) error {
	_, err := d.pool.Exec(ctx, `
		UPDATE chunks
		SET broken = true
		WHERE tenant = @tenant AND sha256 = decode(@sum, 'hex') AND copy = @copy`,
		pgx.NamedArgs{"tenant": string(c.Tenant), "sum": c.SHA256, "copy": c.Random})
	return mapError(err, "chunk")
}
