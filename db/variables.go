package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// addVariables sets Variables of the elements among jobs: the entry of array.each that an
// element's array has for its index. The array's spec is the one source, also for elements
// of older versions, and for archived ones. Elements of an array without each, whose array
// is gone, or that are no elements, keep none.
//
// Each array's spec is read once for all its elements: it has up to spec.MaxSpecBytes.
func addVariables(ctx context.Context, q querier, jobs []wire.Job) error {
	type element struct {
		parent berth.JobID
		index  int
	}
	var parents []string
	var indexes []int
	at := map[element]*wire.Job{}
	for i := range jobs {
		if j := &jobs[i]; j.Parent != nil && j.ArrayIndex != nil {
			parents, indexes = append(parents, string(*j.Parent)), append(indexes, *j.ArrayIndex)
			at[element{*j.Parent, *j.ArrayIndex}] = j
		}
	}
	if len(parents) == 0 {
		return nil
	}
	rows, err := q.Query(ctx, `
		WITH entries AS MATERIALIZED (
			SELECT s.job AS parent, s.spec #> '{array,each}' AS list
			FROM job_specs s
			WHERE s.job = ANY(@parents::uuid[])
			UNION ALL
			SELECT a.id, a.job #> '{spec,array,each}'
			FROM archived_jobs a
			WHERE a.id = ANY(@parents::uuid[])
		)
		SELECT w.parent::text, w.idx, e.list -> w.idx
		FROM unnest(@parents::uuid[], @indexes::int[]) AS w (parent, idx)
		JOIN entries e ON e.parent = w.parent
		WHERE e.list -> w.idx IS NOT NULL`, namedArgs{"parents": parents, "indexes": indexes})
	if err != nil {
		return err
	}
	var e element
	var vars map[string]string
	_, err = pgx.ForEachRow(rows, []any{&e.parent, &e.index, &vars}, func() error {
		at[e].Variables, vars = vars, nil
		return nil
	})
	return err
}
