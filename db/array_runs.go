package db

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// maxArrayRuns bounds the retries of one array that are merged.
const maxArrayRuns = 100

// arrayRun is an array among its retries.
type arrayRun struct {
	wire.Job
	array   spec.Array
	indexes map[int]bool // of its elements
}

// Runs merges an array with the arrays that retry it and that it retries: the result of an
// index is the result of the latest array that has or will have the element. It returns nil
// for an array that is no retry and was not retried. Arrays with other elements, by number
// or variables, are not merged. The caller may see the array, and so its retries.
func (d *Retries) Runs(ctx context.Context, array berth.JobID) (*wire.ArrayRuns, error) {
	runs, err := readArrayRuns(ctx, d.pool, array)
	if err != nil || len(runs) < 2 {
		return nil, mapError(err, "retries of array "+string(array))
	}
	out := &wire.ArrayRuns{Tally: wire.Tally{ByStatus: map[berth.State]int{}}}
	all := map[int]bool{}
	for i, r := range runs {
		if r.ID == array {
			out.Run = i + 1
		}
		for index := range r.indexes {
			all[index] = true
		}
		out.Runs = append(out.Runs, wire.ArrayRun{Job: r.ID, Handle: r.Handle, Status: r.Status, Indexes: r.Indexes})
	}
	out.Tally.Total, out.Tally.Unmade = len(all), len(all)
	sql, args := latestElements(runs)
	rows, err := d.pool.Query(ctx, `
		SELECT run, state, count(*)
		FROM (`+sql+`) latest
		GROUP BY run, state`, args)
	if err != nil {
		return nil, mapError(err, "retries of array "+string(array))
	}
	var run, n int
	var state berth.State
	_, err = pgx.ForEachRow(rows, []any{&run, &state, &n}, func() error {
		out.Runs[run-1].Results += n
		out.Tally.ByStatus[state] += n
		out.Tally.Unmade -= n
		return nil
	})
	return out, mapError(err, "retries of array "+string(array))
}

// readArrayRuns returns the array with its retries and the arrays that it retries, the
// first one first.
func readArrayRuns(ctx context.Context, q querier, id berth.JobID) ([]arrayRun, error) {
	start, err := readArrayRun(ctx, q, id)
	if isNoRows(err) {
		return nil, nil // it is no array
	}
	if err != nil {
		return nil, err
	}
	runs := []arrayRun{start}
	// From the array to its origin, and then to its latest retry. A link that names no
	// array with the same elements ends the walk.
	for _, walk := range []struct {
		next func() *berth.JobID
		add  func(arrayRun)
	}{
		{func() *berth.JobID { return runs[0].RetryOf }, func(r arrayRun) { runs = append([]arrayRun{r}, runs...) }},
		{func() *berth.JobID { return runs[len(runs)-1].RetriedBy }, func(r arrayRun) { runs = append(runs, r) }},
	} {
		for next := walk.next(); next != nil && len(runs) < maxArrayRuns; next = walk.next() {
			r, err := readArrayRun(ctx, q, *next)
			if isNoRows(err) || err == nil && !sameElements(r.array, start.array) {
				break
			}
			if err != nil {
				return nil, err
			}
			walk.add(r)
		}
	}
	return runs, nil
}

// readArrayRun reads an array, live or archived; no rows for another kind of job.
func readArrayRun(ctx context.Context, q querier, id berth.JobID) (r arrayRun, err error) {
	rows, err := q.Query(ctx, `
		SELECT `+jobDocument+` || jsonb_build_object('handle', `+handleOf("j.id")+`), s.spec -> 'array'
		FROM jobs j
		JOIN job_specs s ON s.job = j.id
		WHERE j.id = @id AND j.kind = 'array'
		UNION ALL
		SELECT job || jsonb_build_object('handle', `+handleOf("archived_jobs.id")+`), job #> '{spec,array}'
		FROM archived_jobs
		WHERE id = @id AND job ->> 'kind' = 'array'
		LIMIT 1`, namedArgs{"id": id})
	if err != nil {
		return r, err
	}
	r, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (r arrayRun, err error) {
		return r, row.Scan(&r.Job, &r.array)
	})
	if err != nil {
		return r, err
	}
	r.indexes = map[int]bool{}
	if r.Indexes == "" {
		for i := range r.array.Count() {
			r.indexes[i] = true
		}
	}
	for _, i := range indexesOf(r.Job) {
		r.indexes[i] = true
	}
	return r, nil
}

// sameElements reports whether two arrays have the same elements, as far as the indexes and
// variables show.
func sameElements(a, b spec.Array) bool {
	if a.Count() != b.Count() || len(a.Each) != len(b.Each) {
		return false
	}
	for i := range a.Each {
		if !maps.Equal(a.Each[i], b.Each[i]) {
			return false
		}
	}
	return true
}

// latestElements selects the latest element of each index among the runs, live or archived,
// with the columns that a filter reads. run counts from 1. An index that the last run has
// still to create has no element: its earlier result is not its latest.
func latestElements(runs []arrayRun) (string, namedArgs) {
	ids := make([]string, len(runs))
	for i, r := range runs {
		ids[i] = string(r.ID)
	}
	last := runs[len(runs)-1]
	pending := []int{}
	if !last.Status.Terminal() {
		pending = slices.Sorted(maps.Keys(last.indexes))
	}
	return `
			SELECT DISTINCT ON (array_index) *
			FROM (
				SELECT r.run, j.tenant, j.name, j.labels, j.state, j.submitted_at, j.id, j.array_index,
					j.dead_letter, j.submitted_by, NULL::jsonb AS job
				FROM unnest(@runs::uuid[]) WITH ORDINALITY AS r (id, run)
				JOIN jobs j ON j.parent = r.id
				UNION ALL
				SELECT r.run, a.tenant, a.name, a.labels, a.state, a.submitted_at, a.id,
					(a.job ->> 'array_index')::int,
					coalesce((a.job ->> 'dead_letter')::boolean, false), a.job ->> 'submitted_by', a.job
				FROM unnest(@runs::uuid[]) WITH ORDINALITY AS r (id, run)
				JOIN archived_jobs a ON a.parent = r.id
			) elements
			WHERE run = cardinality(@runs::uuid[]) OR NOT array_index = ANY(@pending::int[])
			ORDER BY array_index, run DESC`, namedArgs{"runs": ids, "pending": pending}
}

// merged returns the statement that selects the elements of f among the runs of its array,
// without an order, and its arguments.
func (f JobFilter) merged(runs []arrayRun, after *jobCursor) (string, namedArgs) {
	sql, args := latestElements(runs)
	conditions := append([]string{"true"}, f.facts(args)...)
	if len(f.Status) > 0 {
		conditions, args["status"] = append(conditions, "state = ANY(@status)"), f.Status
	}
	if after != nil && after.Index != nil {
		conditions, args["after_index"] = append(conditions, "array_index > @after_index::int"), *after.Index
	}
	args["limit"] = f.Limit + 1
	return `
		SELECT *
		FROM (` + sql + `
		) latest
		WHERE ` + strings.Join(conditions, " AND "), args
}

// mergedQuery returns the statement for one page of f among the runs of its array.
func (f JobFilter) mergedQuery(runs []arrayRun, after *jobCursor) (string, namedArgs) {
	sql, args := f.merged(runs, after)
	return `
		SELECT coalesce(
			page.job - '{spec,attempts,checkpoints,progress}'::text[],
			(SELECT ` + jobDocument + ` FROM jobs j WHERE j.id = page.id)) ||
			jsonb_build_object('handle', ` + handleOf("page.id") + `, 'run', page.run)
		FROM (` + sql + `
			ORDER BY array_index
			LIMIT @limit
		) page
		ORDER BY array_index`, args
}
