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
func (m Member) args(sums []string) namedArgs {
	return namedArgs{"tenant": string(m.Tenant), "job": m.Job, "attempt": m.Attempt, "rank": m.Rank, "sums": sums}
}

// copyOf returns a copy of a chunk that the member has stored.
func (m Member) copyOf(sum, random string) wire.ChunkCopy {
	return wire.ChunkCopy{Tenant: m.Tenant, Job: m.Job, Attempt: m.Attempt, Rank: m.Rank, SHA256: sum, Random: random}
}

// ChunkObject is the object of a copy of a chunk.
type ChunkObject struct {
	wire.ChunkCopy
	Bytes int64 // of the chunk
}

// withCopies returns the member as arguments of a statement, with some objects.
func (m Member) withCopies(objects []ChunkObject) namedArgs {
	sums, copies, bytes := make([]string, len(objects)), make([]string, len(objects)), make([]int64, len(objects))
	for i, o := range objects {
		sums[i], copies[i], bytes[i] = o.SHA256, o.Random, o.Bytes
	}
	args := m.args(sums)
	args["copies"], args["bytes"] = copies, bytes
	return args
}

// chunkBad is true for a chunk c whose copy is broken or in doubt: the row is older than the last restore of the
// database, and the copy may have been deleted after the backup. No statement tests the two columns in another way.
const chunkBad = `(c.broken OR c.incarnation < (SELECT incarnation FROM cluster))`

// loadInForce is true for a load l that the member has announced after the database was restored last. The copy of an
// earlier one may have been deleted, and a deleted key is never used again.
const loadInForce = `l.incarnation >= (SELECT incarnation FROM cluster)`

// heldChunks begins a statement with the chunks of @sums that the member @job, @attempt, @rank need not send: it has
// sent the content in this attempt, or the chunk is a part of a checkpoint that it may restore. A hash alone
// proves nothing. The hashes that the member has shown are read once, from its own loads and checkpoints: many other
// checkpoints may name the same chunks.
const heldChunks = `
	WITH shown AS MATERIALIZED (
		SELECT l.sha256
		FROM chunk_loads l
		WHERE l.job = @job AND l.attempt = @attempt AND l.rank = @rank AND l.stored AND ` + loadInForce + `
		UNION
		SELECT r.sha256
		FROM checkpoints p
		JOIN chunk_refs r ON r.job = p.job AND r.step = p.step AND r.attempt = p.attempt AND r.rank = @rank
		WHERE p.job = @job AND p.state IN ('partial', 'verified') AND r.tenant = @tenant
		UNION
		SELECT r.sha256
		FROM job_sources o
		JOIN chunk_refs r ON r.job = o.source AND r.step = o.step AND r.attempt = o.attempt
		  AND (r.rank = @rank OR r.rank < o.parts)
		WHERE o.job = @job AND o.array_index = -1 AND r.tenant = @tenant
	), held AS (
		SELECT c.sha256, c.bytes
		FROM chunks c
		WHERE c.tenant = @tenant AND c.sha256 IN ` + asked + ` AND c.sha256 IN (SELECT sha256 FROM shown)
		  AND NOT ` + chunkBad + `
	)`

// asked selects the hashes of @sums.
const asked = `(SELECT decode(s, 'hex') FROM unnest(@sums::text[]) s)`

// Held returns the chunks that the member need not send.
func (d *Chunks) Held(ctx context.Context, m Member, sums []string) (map[string]bool, error) {
	rows, err := d.pool.Query(ctx, heldChunks+`
		SELECT encode(sha256, 'hex') FROM held`, m.args(sums))
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

// Load records that the member is about to store chunks, and returns the copy of each. Only this member writes these
// copies, so an object at the key of one proves that the member has sent the content. A repeated call returns the same
// copies, unless they were stored or the database was restored meanwhile. A chunk that was announced with another
// length is refused: one of the lengths is wrong. The chunks are distinct, and belong to the checkpoint of the step.
func (d *Chunks) Load(
	ctx context.Context, m Member, step int64, chunks []wire.Chunk,
) (map[string]wire.ChunkCopy, error) {
	objects := make([]ChunkObject, len(chunks))
	for i, c := range chunks {
		objects[i] = ChunkObject{m.copyOf(c.SHA256, berth.NewSecret()[:16]), c.Bytes}
	}
	args := m.withCopies(objects)
	args["step"] = step
	rows, err := d.pool.Query(ctx, `
		INSERT INTO chunk_loads AS l (job, attempt, rank, sha256, tenant, bytes, copy, step, incarnation)
		SELECT @job::uuid, @attempt::int, @rank::int, decode(x.sum, 'hex'), @tenant::text, x.bytes, x.copy,
			@step::bigint, (SELECT incarnation FROM cluster)
		FROM unnest(@sums::text[], @bytes::bigint[], @copies::text[]) x (sum, bytes, copy)
		ORDER BY decode(x.sum, 'hex')
		ON CONFLICT (job, attempt, rank, sha256) DO UPDATE
		SET copy = CASE WHEN l.stored OR NOT `+loadInForce+` THEN excluded.copy ELSE l.copy END, bytes = excluded.bytes,
		    stored = false, at = excluded.at, step = excluded.step, incarnation = excluded.incarnation
		WHERE l.stored OR NOT `+loadInForce+` OR l.bytes = excluded.bytes
		RETURNING encode(sha256, 'hex'), copy, bytes`, args)
	loads, err := m.objects(rows, err)
	if err != nil {
		return nil, err
	}
	copies := make(map[string]wire.ChunkCopy, len(loads))
	for _, c := range chunks {
		load, ok := loads[c.SHA256]
		if !ok {
			return nil, berth.Errorf(berth.CodeInvalid, "chunk %s has %d bytes, and was announced with another length",
				c.SHA256, c.Bytes)
		}
		copies[c.SHA256] = load.ChunkCopy
	}
	return copies, nil
}

// Loads returns the objects of chunks that the member stores and that are not compared yet, with the lengths that it
// has announced.
func (d *Chunks) Loads(ctx context.Context, m Member, sums []string) (map[string]ChunkObject, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT encode(sha256, 'hex'), copy, bytes
		FROM chunk_loads l
		WHERE job = @job AND attempt = @attempt AND rank = @rank AND sha256 IN `+asked+` AND NOT stored
		  AND `+loadInForce, m.args(sums))
	return m.objects(rows, err)
}

// objects reads rows of hashes, random parts and lengths.
func (m Member) objects(rows pgx.Rows, err error) (map[string]ChunkObject, error) {
	if err != nil {
		return nil, mapError(err, "chunks")
	}
	objects := map[string]ChunkObject{}
	var sum, random string
	var bytes int64
	_, err = pgx.ForEachRow(rows, []any{&sum, &random, &bytes}, func() error {
		objects[sum] = ChunkObject{m.copyOf(sum, random), bytes}
		return nil
	})
	return objects, mapError(err, "chunks")
}

// InForce returns the objects of the copies that the tenant's checkpoints use, without broken ones and ones in doubt.
func (d *Chunks) InForce(ctx context.Context, tenant berth.TenantID, sums []string) ([]ChunkObject, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT tenant, job::text, attempt, rank, encode(sha256, 'hex'), copy, bytes
		FROM chunks c
		WHERE tenant = @tenant AND sha256 IN `+asked+` AND NOT `+chunkBad, Member{Tenant: tenant}.args(sums))
	if err != nil {
		return nil, mapError(err, "chunks")
	}
	list, err := pgx.CollectRows(rows, rowToObject)
	return list, mapError(err, "chunks")
}

// rowToObject reads a row with the columns of readCopies and the length.
func rowToObject(row pgx.CollectableRow) (o ChunkObject, err error) {
	err = row.Scan(&o.Tenant, &o.Job, &o.Attempt, &o.Rank, &o.SHA256, &o.Random, &o.Bytes)
	return o, err
}

// lateAddress is the time after which no address to write a copy is used any longer: addresses live for five minutes,
// and a request that began in time may last longer.
const lateAddress = 10 * time.Minute

// compared selects the loads that were compared: the copy is the one of the load, and so is its length.
const compared = `
	chunk_loads l
	JOIN unnest(@sums::text[], @copies::text[], @bytes::bigint[]) x (sum, copy, bytes)
	  ON l.sha256 = decode(x.sum, 'hex') AND l.copy = x.copy AND l.bytes = x.bytes
	WHERE l.job = @job AND l.attempt = @attempt AND l.rank = @rank AND NOT l.stored
	  AND ` + loadInForce

// Stored records that the server has compared these objects of the member with their hashes, and measured their
// lengths. Objects that are not the ones of present loads are left out: Loads has changed since. The first copy of a
// chunk is the one of the tenant; others are marked for deletion, and so is a replaced one that was broken or in doubt.
//
// Loads are locked before chunks, and both in the order of hashes, as by a registration.
func (d *Chunks) Stored(ctx context.Context, m Member, objects []ChunkObject) error {
	err := d.tx(ctx, func(tx pgx.Tx) error {
		args := m.withCopies(objects)
		for _, sql := range []string{
			lockLoads,
			// One pass in the order of hashes adds rows and locks the others, broken or not. The update of an unused
			// chunk keeps a collection that runs now from it.
			`INSERT INTO chunks AS c (tenant, sha256, bytes, job, attempt, rank, copy, incarnation)
			SELECT l.tenant, l.sha256, l.bytes, l.job, l.attempt, l.rank, l.copy, l.incarnation
			FROM ` + compared + `
			ORDER BY l.sha256
			ON CONFLICT (tenant, sha256) DO UPDATE SET unused_since = clock_timestamp()`,
		} {
			if _, err := tx.Exec(ctx, sql, args); err != nil {
				return err
			}
		}
		rows, err := tx.Query(ctx, `
			WITH gone AS (
				SELECT tenant, job, attempt, rank, sha256, copy
				FROM chunks c
				WHERE tenant = @tenant AND sha256 IN `+asked+` AND `+chunkBad+`
			), fresh AS (
				SELECT l.* FROM `+compared+`
			)
			UPDATE chunks c
			SET broken = false, job = f.job, attempt = f.attempt, rank = f.rank, copy = f.copy,
			    incarnation = f.incarnation, looked_at = clock_timestamp()
			FROM gone g
			JOIN fresh f ON f.tenant = g.tenant AND f.sha256 = g.sha256
			WHERE c.tenant = g.tenant AND c.sha256 = g.sha256
			RETURNING g.tenant, g.job::text, g.attempt, g.rank, encode(g.sha256, 'hex'), g.copy`, args)
		gone, err := readCopies(rows, err)
		if err != nil {
			return err
		}
		rows, err = tx.Query(ctx, `
			WITH s AS (
				UPDATE chunk_loads k
				SET stored = true, at = clock_timestamp()
				FROM `+compared+` AND k.job = l.job AND k.attempt = l.attempt AND k.rank = l.rank
				  AND k.sha256 = l.sha256
				RETURNING k.tenant, k.job, k.attempt, k.rank, k.sha256, k.copy
			)
			SELECT s.tenant, s.job::text, s.attempt, s.rank, encode(s.sha256, 'hex'), s.copy
			FROM s
			JOIN chunks c ON c.tenant = s.tenant AND c.sha256 = s.sha256
			WHERE c.copy <> s.copy`, args)
		twice, err := readCopies(rows, err)
		if err != nil {
			return err
		}
		return doomCopies(ctx, tx, append(gone, twice...))
	})
	return mapError(err, "chunks")
}

// lockLoads locks the loads of the chunks of a member, which come before the chunks.
const lockLoads = `
	SELECT count(*)
	FROM (
		SELECT 1
		FROM chunk_loads
		WHERE job = @job AND attempt = @attempt AND rank = @rank AND sha256 IN ` + asked + `
		ORDER BY sha256
		FOR UPDATE
	) locked`

// readCopies reads rows with the tenant, job, attempt, rank, hash and random part of copies.
func readCopies(rows pgx.Rows, err error) ([]wire.ChunkCopy, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[wire.ChunkCopy])
}

// doomCopies marks copies of chunks for deletion after lateAddress: until then, an address that has not expired could
// create a deleted copy again.
func doomCopies(ctx context.Context, tx pgx.Tx, copies []wire.ChunkCopy) error {
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
		ON CONFLICT DO NOTHING`, namedArgs{"keys": keys, "after": lateAddress})
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
func (d *Chunks) named(ctx context.Context, also string, args namedArgs) (map[string]wire.ChunkCopy, error) {
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

// Broken records that the object of a copy is missing, or has another content. Checkpoints with the chunk stay verified
// until a restore of them fails, or until a member stores the same content again, which heals all of them. inForce is
// false if the copy is no longer the one that checkpoints use: it was replaced, and nothing is recorded.
func (d *Chunks) Broken(ctx context.Context, c wire.ChunkCopy) (inForce bool, err error) {
	tag, err := d.pool.Exec(ctx, `
		UPDATE chunks
		SET broken = true
		WHERE tenant = @tenant AND sha256 = decode(@sum, 'hex') AND copy = @copy`,
		namedArgs{"tenant": string(c.Tenant), "sum": c.SHA256, "copy": c.Random})
	return tag.RowsAffected() > 0, mapError(err, "chunk")
}

// Announced returns an upper bound of the bytes that NewBytes adds for chunks that the tenant's members have announced.
func (d *Chunks) Announced(ctx context.Context, tenant berth.TenantID) (bytes int64, err error) {
	err = d.pool.QueryRow(ctx, `SELECT coalesce(sum(bytes), 0)::bigint FROM chunk_loads WHERE tenant = @tenant`,
		namedArgs{"tenant": string(tenant)}).Scan(&bytes)
	return bytes, mapError(err, "chunks")
}

// NewBytes returns the bytes that some chunks add to their tenant, and the sum with all chunks that members of the
// tenant have announced, for this step and others: the store may have these chunks, and no quota counts them yet.
// Chunks that a checkpoint of the tenant names add nothing.
func (d *Chunks) NewBytes(
	ctx context.Context, tenant berth.TenantID, chunks []wire.Chunk,
) (fresh, all int64, err error) {
	sums, sizes := make([]string, len(chunks)), make([]int64, len(chunks))
	for i, c := range chunks {
		sums[i], sizes[i] = c.SHA256, c.Bytes
	}
	err = d.pool.QueryRow(ctx, `
		SELECT coalesce(sum(x.bytes) FILTER (WHERE x.fresh), 0)::bigint, coalesce(sum(x.bytes), 0)::bigint
		FROM (
			SELECT decode(s.sum, 'hex') AS sha256, s.bytes, true AS fresh
			FROM unnest(@sums::text[], @bytes::bigint[]) s (sum, bytes)
			UNION ALL
			SELECT sha256, max(bytes), false
			FROM chunk_loads
			WHERE tenant = @tenant AND sha256 NOT IN `+asked+`
			GROUP BY sha256
		) x
		WHERE NOT EXISTS (
			SELECT 1 FROM chunks c WHERE c.tenant = @tenant AND c.sha256 = x.sha256 AND c.refs > 0)`,
		namedArgs{"tenant": string(tenant), "sums": sums, "bytes": sizes}).Scan(&fresh, &all)
	return fresh, all, mapError(err, "chunks")
}

// Refused records that a quota has refused a step: the chunks that the member has announced for the step are given up
// in an hour, and not in a day, so that they do not count longer.
func (d *Chunks) Refused(ctx context.Context, m Member, step int64) error {
	args := m.args(nil)
	args["step"], args["at"] = step, lateLoad-time.Hour
	_, err := d.pool.Exec(ctx, `
		UPDATE chunk_loads
		SET at = least(at, clock_timestamp() - @at::interval)
		WHERE job = @job AND attempt = @attempt AND rank = @rank AND step = @step`, args)
	return mapError(err, "chunks")
}
