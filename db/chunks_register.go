package db

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// lockChunks locks the chunks of a shard, and the chunks that the other checkpoints of its job name.
const lockChunks = `
	SELECT 1
	FROM chunks
	WHERE tenant = @tenant AND sha256 IN (
		SELECT decode(s, 'hex') FROM unnest(@sums::text[]) s
		UNION
		SELECT sha256 FROM chunk_refs WHERE job = @job)
	ORDER BY sha256
	FOR NO KEY UPDATE`

// missingChunks selects the chunks of a shard that the tenant does not have, or whose content the member has not shown.
const missingChunks = `
	SELECT x.sum
	FROM unnest(@sums::text[], @bytes::bigint[]) x (sum, bytes)
	WHERE NOT EXISTS (
		SELECT 1 FROM chunks c
		WHERE c.tenant = @tenant AND c.sha256 = decode(x.sum, 'hex') AND c.bytes = x.bytes AND NOT c.broken
		  AND ` + chunkHeld + `)
	ORDER BY x.sum`

// refer records the chunks of a new shard. It first locks their rows, and the rows of all chunks of the job's other
// checkpoints, in the order of hashes: a checkpoint that the same transaction prunes gives up some of these. A
// collection of the same chunk has deleted its row before, or waits and then skips the chunk.
//
// The shard is refused if a chunk has no row, or if the member has not shown that it has the content.
func (c *checkpointing) refer(ctx context.Context) error {
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
	if _, err := c.tx.Exec(ctx, lockChunks, args); err != nil {
		return fmt.Errorf("lock chunks: %w", err)
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
