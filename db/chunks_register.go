package db

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// lockChunks locks the chunks of a shard. The shard that completes its step also locks the chunks that the other steps
// of its job name, of all members: the same transaction prunes some of these steps.
const lockChunks = `
	SELECT count(*)
	FROM (
		SELECT 1
		FROM chunks
		WHERE tenant = @tenant AND sha256 IN (
			SELECT decode(s, 'hex') FROM unnest(@sums::text[]) s
			UNION
			SELECT sha256
			FROM chunk_refs
			WHERE @completes AND job = @job AND (step, attempt) <> (@step, @attempt))
		ORDER BY sha256
		FOR NO KEY UPDATE
	) locked`

// missingChunks selects the chunks of a shard that the tenant does not have, or whose content the member has not shown.
const missingChunks = heldChunks + `
	SELECT x.sum
	FROM unnest(@sums::text[], @bytes::bigint[]) x (sum, bytes)
	WHERE NOT EXISTS (SELECT 1 FROM held h WHERE h.sha256 = decode(x.sum, 'hex') AND h.bytes = x.bytes)
	ORDER BY x.sum`

// refer records the chunks of a new shard. It first locks their rows in the order of hashes, together with the rows of
// all chunks that the same transaction may give up: the shard that completes its step prunes other steps. A collection
// of the same chunk has deleted its row before, or skips the chunk.
//
// The shard is refused if a chunk has no row, or if the member has not shown that it has the content.
func (c *checkpointing) refer(ctx context.Context) (err error) {
	p := c.report
	if len(p.Chunks) == 0 {
		return nil
	}
	sums, bytes := make([]string, len(p.Chunks)), make([]int64, len(p.Chunks))
	for i, chunk := range p.Chunks {
		sums[i], bytes[i] = chunk.SHA256, chunk.Bytes
	}
	args := Member{Tenant: c.tenant, Job: p.Job, Attempt: p.Attempt, Rank: p.Rank}.args(sums)
	args["step"], args["bytes"], args["chunked"], args["all"] = p.Step, bytes, p.Chunked, p.Bytes
	if args["completes"], err = c.completes(ctx); err != nil {
		return err
	}
	for _, sql := range []string{lockLoads, lockChunks} {
		if _, err := c.tx.Exec(ctx, sql, args); err != nil {
			return fmt.Errorf("lock chunks: %w", err)
		}
	}
	rows, err := c.tx.Query(ctx, missingChunks, args)
	if err != nil {
		return err
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return errChunksMissing(p.Step, missing)
	}
	for _, sql := range []string{
		`UPDATE checkpoint_shards
		SET chunked_bytes = @chunked::bigint, stored_bytes = @all::bigint - @chunked::bigint + (
			SELECT coalesce(sum(bytes), 0)
			FROM chunks
			WHERE tenant = @tenant AND sha256 IN ` + asked + ` AND refs = 0)
		WHERE job = @job AND step = @step AND attempt = @attempt AND rank = @rank`,
		`INSERT INTO chunk_refs (job, step, attempt, rank, tenant, sha256)
		SELECT @job::uuid, @step::bigint, @attempt::int, @rank::int, @tenant::text, decode(s, 'hex')
		FROM unnest(@sums::text[]) s`,
		`DELETE FROM chunk_loads
		WHERE job = @job AND attempt = @attempt AND rank = @rank AND sha256 IN ` + asked,
	} {
		if _, err := c.tx.Exec(ctx, sql, args); err != nil {
			return err
		}
	}
	return nil
}

// completes reports whether the step has the shards of all members now. The lock of the job's row keeps others from
// adding one.
func (c *checkpointing) completes(ctx context.Context) (all bool, err error) {
	p := c.report
	err = c.tx.QueryRow(ctx, `
		SELECT count(*) = @ranks
		FROM checkpoint_shards
		WHERE job = @job AND step = @step AND attempt = @attempt`,
		namedArgs{"job": p.Job, "step": p.Step, "attempt": p.Attempt, "ranks": c.ranks}).Scan(&all)
	return all, err
}

// errChunksMissing refuses a shard, with some of the hashes that the member must send.
func errChunksMissing(step int64, missing []string) error {
	const most = 10
	names := strings.Join(missing[:min(most, len(missing))], ", ")
	if len(missing) > most {
		names += ", ..."
	}
	return &berth.Error{Code: berth.CodeConflict, Slug: wire.SlugObjectMissing,
		Message: fmt.Sprintf("step %d: send %s again: %s", step, plural(len(missing), "chunk"), names)}
}
