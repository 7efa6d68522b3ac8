package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// ChunkLook is a look at the object of a chunk in the object store.
type ChunkLook struct {
	ChunkObject
	Broken bool // the row says that the object is missing, damaged or in doubt
	Lost   bool // the look has found it missing or damaged
}

// Unseen returns objects of chunks at which nothing has looked for age, the longest unseen first, at most limit. Before
// them it returns the ones at which nothing has looked since the database was restored last, whatever their age.
func (d *Chunks) Unseen(ctx context.Context, age time.Duration, limit int) ([]ChunkLook, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT tenant, job::text, attempt, rank, encode(sha256, 'hex'), copy, bytes,
			`+chunkBad+`
		FROM chunks c
		WHERE (incarnation, looked_at) < ((SELECT incarnation FROM cluster), now() - @age::interval)
		ORDER BY incarnation, looked_at
		LIMIT @limit`, namedArgs{"age": age, "limit": limit})
	if err != nil {
		return nil, mapError(err, "chunks")
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (l ChunkLook, err error) {
		err = row.Scan(&l.Tenant, &l.Job, &l.Attempt, &l.Rank, &l.SHA256, &l.Random, &l.Bytes, &l.Broken)
		return l, err
	})
	return list, mapError(err, "chunks")
}

// Looked records looks: lost objects are broken from now on, and ones that were found intact are neither broken nor in
// doubt. A row that another transaction has locked, or that names another copy by now, is left out. So is a row that
// was found broken after Unseen: the look may be older. Looked returns the numbers of chunks that it has marked as
// broken and as intact.
func (d *Chunks) Looked(ctx context.Context, term Term, looks []ChunkLook) (broken, intact int, err error) {
	n := len(looks)
	tenants, sums, copies := make([]string, n), make([]string, n), make([]string, n)
	was, lost := make([]bool, n), make([]bool, n)
	for i, l := range looks {
		tenants[i], sums[i], copies[i] = string(l.Tenant), l.SHA256, l.Random
		was[i], lost[i] = l.Broken, l.Lost
	}
	err = d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			WITH seen AS (
				SELECT c.tenant, c.sha256, x.was, x.lost
				FROM unnest(@tenants::text[], @sums::text[], @copies::text[], @was::boolean[], @lost::boolean[])
					x (tenant, sum, copy, was, lost)
				JOIN chunks c ON c.tenant = x.tenant AND c.sha256 = decode(x.sum, 'hex') AND c.copy = x.copy
				WHERE `+chunkBad+` = x.was
				ORDER BY c.tenant, c.sha256
				FOR NO KEY UPDATE OF c SKIP LOCKED
			), marked AS (
				UPDATE chunks c
				SET looked_at = clock_timestamp(), broken = s.lost,
				    incarnation = (SELECT incarnation FROM cluster)
				FROM seen s
				WHERE c.tenant = s.tenant AND c.sha256 = s.sha256
				RETURNING s.was, s.lost
			)
			SELECT count(*) FILTER (WHERE lost AND NOT was), count(*) FILTER (WHERE was AND NOT lost) FROM marked`,
			namedArgs{"tenants": tenants, "sums": sums, "copies": copies, "was": was, "lost": lost}).
			Scan(&broken, &intact)
	})
	return broken, intact, mapError(err, "chunks")
}
