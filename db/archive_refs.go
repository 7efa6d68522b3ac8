package db

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// archivedRefs is the number of references to chunks after which a transaction that archives ends no more: 20 GiB of
// content, about.
const archivedRefs = 20_000

// withFewRefs returns the locked jobs that one transaction may archive: their checkpoints name at most archivedRefs
// chunks. more reports that it has left out jobs. If the first of them names more chunks than that, withFewRefs prunes
// some of its checkpoints, which would be deleted with the job: a later transaction finds the rest.
func withFewRefs(ctx context.Context, tx pgx.Tx, ids []string) (some []string, more bool, err error) {
	rows, err := tx.Query(ctx, `
		SELECT x.id
		FROM unnest(@ids::text[]) WITH ORDINALITY x (id, n)
		WHERE EXISTS (SELECT 1 FROM chunk_refs r WHERE r.job = x.id::uuid)
		ORDER BY x.n`, namedArgs{"ids": ids})
	if err != nil {
		return nil, false, err
	}
	sharing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, false, err
	}
	total := 0
	for i, id := range sharing {
		refs := 0
		if err := tx.QueryRow(ctx, `
			SELECT count(*)
			FROM (SELECT 1 FROM chunk_refs WHERE job = @id::uuid LIMIT @most) r`,
			namedArgs{"id": id, "most": archivedRefs + 1}).Scan(&refs); err != nil {
			return nil, false, err
		}
		if total += refs; total <= archivedRefs {
			continue
		}
		if i == 0 {
			err = endRefs(ctx, tx, id)
		}
		left := sharing[i:]
		return slices.DeleteFunc(ids, func(id string) bool { return slices.Contains(left, id) }), true, err
	}
	return ids, false, nil
}

// endRefs prunes the oldest checkpoints of an ended job, until they have named archivedRefs chunks or more. The job is
// archived soon, with the objects of these checkpoints.
func endRefs(ctx context.Context, tx pgx.Tx, id string) error {
	tag, err := tx.Exec(ctx, `
		WITH steps AS (
			SELECT step, attempt, count(*) AS refs
			FROM chunk_refs
			WHERE job = @id::uuid
			GROUP BY step, attempt
		), before AS (
			SELECT step, attempt, sum(refs) OVER (ORDER BY step, attempt) - refs AS refs FROM steps
		)
		UPDATE checkpoints c
		SET state = 'pruned'
		FROM before b
		WHERE c.job = @id::uuid AND c.step = b.step AND c.attempt = b.attempt AND b.refs < @most`,
		namedArgs{"id": id, "most": archivedRefs})
	if err == nil && tag.RowsAffected() == 0 {
		err = fmt.Errorf("job %s has references to chunks and no checkpoint with them", id)
	}
	return err
}
