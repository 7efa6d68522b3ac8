package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth/wire"
)

// lateLoad is the time after which a member has given up a checkpoint whose chunks it has begun to store.
const lateLoad = 24 * time.Hour

// endLoads deletes the loads of attempts that have ended, and loads that are too old, and returns unfinished ones.
const endLoads = `
	WITH past AS (
		SELECT job, attempt, rank, sha256
		FROM chunk_loads k
		WHERE at < clock_timestamp() - @late::interval OR NOT EXISTS (
			SELECT 1 FROM attempts t
			WHERE t.job = k.job AND t.attempt = k.attempt
			  AND (t.ended_at IS NULL OR t.ended_at > clock_timestamp() - @age::interval))
		ORDER BY job, attempt, rank, sha256
		LIMIT @limit
		FOR UPDATE SKIP LOCKED
	), ended AS (
		DELETE FROM chunk_loads k
		USING past o
		WHERE k.job = o.job AND k.attempt = o.attempt AND k.rank = o.rank AND k.sha256 = o.sha256
		RETURNING k.tenant, k.job, k.attempt, k.rank, k.sha256, k.copy, k.stored
	)
	SELECT tenant, job::text, attempt, rank, encode(sha256, 'hex'), copy
	FROM ended e
	WHERE NOT stored AND NOT EXISTS (
		SELECT 1 FROM chunks c WHERE c.tenant = e.tenant AND c.sha256 = e.sha256 AND c.copy = e.copy)`

// endChunks deletes unused chunks that no load holds.
const endChunks = `
	WITH unused AS (
		SELECT tenant, sha256
		FROM chunks c
		WHERE refs = 0 AND unused_since < clock_timestamp() - @age::interval AND NOT EXISTS (
			SELECT 1 FROM chunk_loads l
			WHERE l.tenant = c.tenant AND l.sha256 = c.sha256)
		ORDER BY tenant, sha256
		LIMIT @limit
		FOR UPDATE SKIP LOCKED
	)
	DELETE FROM chunks c
	USING unused u
	WHERE c.tenant = u.tenant AND c.sha256 = u.sha256 AND c.refs = 0
	RETURNING c.tenant, c.job::text, c.attempt, c.rank, encode(c.sha256, 'hex'), c.copy`

// Collect gives up chunks that no checkpoint has named for age, at most limit, and marks their objects for deletion. It
// returns the number of chunks. A chunk that a live attempt has stored stays until the attempt has ended for age, or
// for a day: a job may remove checkpoints before all their chunks are stored. A registration locks the same rows, and
// the chunks that it has locked are skipped. While deletions are held back, Collect does nothing.
func (d *Chunks) Collect(ctx context.Context, term Term, age time.Duration, limit int) (int, error) {
	var n int
	err := d.pruneTx(ctx, term, func(tx pgx.Tx) error {
		n = 0
		args := namedArgs{"age": age, "limit": limit, "late": lateLoad}
		rows, err := tx.Query(ctx, endLoads, args)
		unfinished, err := readCopies(rows, err)
		if err != nil {
			return err
		}
		// A statement of its own, whose snapshot lacks the loads that have ended.
		rows, err = tx.Query(ctx, endChunks, args)
		unused, err := readCopies(rows, err)
		if err != nil {
			return err
		}
		n = len(unused)
		return doomCopies(ctx, tx, append(unfinished, unused...))
	})
	return n, mapError(err, "chunks")
}

// Unlisted returns the given copies that no row names. All are of attempts whose members can no longer store chunks.
func (d *Chunks) Unlisted(ctx context.Context, copies []wire.ChunkCopy) ([]wire.ChunkCopy, error) {
	tenants, sums, randoms := make([]string, len(copies)), make([]string, len(copies)), make([]string, len(copies))
	for i, c := range copies {
		tenants[i], sums[i], randoms[i] = string(c.Tenant), c.SHA256, c.Random
	}
	rows, err := d.pool.Query(ctx, `
		SELECT x.n
		FROM unnest(@tenants::text[], @sums::text[], @randoms::text[]) WITH ORDINALITY x (tenant, sum, random, n)
		WHERE NOT EXISTS (
			SELECT 1 FROM chunks c
			WHERE c.tenant = x.tenant AND c.sha256 = decode(x.sum, 'hex') AND c.copy = x.random)
		ORDER BY x.n`, namedArgs{"tenants": tenants, "sums": sums, "randoms": randoms})
	if err != nil {
		return nil, mapError(err, "chunks")
	}
	numbers, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	unlisted := make([]wire.ChunkCopy, len(numbers))
	for i, n := range numbers {
		unlisted[i] = copies[n-1]
	}
	return unlisted, mapError(err, "chunks")
}
