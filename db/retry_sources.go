package db

import (
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/lifecycle"
	"berth/spec"
	"berth/wire"
)

// chainOf selects the ids of jobs and of the jobs from which they started, directly or through
// others.
const chainOf = `
	WITH RECURSIVE chain (id) AS (
		SELECT unnest(@ids::uuid[])
		UNION
		SELECT o.source
		FROM chain c
		JOIN job_sources o ON o.job = c.id AND o.array_index = -1
	)`

// lockPlainChain locks jobs that are no parents, with the jobs of chainOf. A chain does not
// change after the submit, so that it can be read before the lock.
func lockPlainChain(ctx context.Context, tx pgx.Tx, ids []berth.JobID) error {
	_, err := tx.Exec(ctx, chainOf+`
		SELECT 1
		FROM jobs j
		WHERE j.id IN (SELECT id FROM chain) AND j.kind = 'job'
		ORDER BY j.id
		FOR NO KEY UPDATE`, namedArgs{"ids": ids})
	return err
}

// resume chooses, for each of some ended jobs, the checkpoint from which its successor starts;
// a job that starts from its beginning is left out. The jobs are the old job, or children of
// it. The rows of the jobs and their chains are locked on return.
func (r *retrying) resume(ctx context.Context, ids []berth.JobID) (map[berth.JobID]wire.StartPoint, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	if err := lockPlainChain(ctx, r.tx, ids); err != nil {
		return nil, err
	}
	saved, err := readSaved(ctx, r.tx, ids)
	if err != nil {
		return nil, err
	}
	sources := map[berth.JobID]wire.StartPoint{}
	for _, id := range ids {
		source, lost := lifecycle.Resume(id, saved)
		if lost {
			return nil, berth.Errorf(berth.CodeConflict, "no checkpoint of job %s is left to resume from; start again "+
				"from the beginning with: berth retry --fresh %s", id, r.old.ID)
		}
		if source != nil {
			sources[id] = *source
		}
	}
	return sources, nil
}

// readSaved reads the checkpoints of jobs and of their chains. Of an archived job no
// checkpoint is left; its document shows whether it had one.
func readSaved(ctx context.Context, tx pgx.Tx, ids []berth.JobID) (map[berth.JobID]lifecycle.Saved, error) {
	rows, err := tx.Query(ctx, chainOf+`
		SELECT j.id::text, j.state = 'succeeded', j.has_checkpoint, `+sourceDocument+`, coalesce((
			SELECT jsonb_agg(jsonb_build_object('Step', c.step, 'Attempt', c.attempt, 'Members', c.ranks,
				'Bytes', c.bytes)
				ORDER BY c.passed_over, c.step DESC, c.attempt DESC)
			FROM checkpoints c
			WHERE c.job = j.id AND c.state = 'verified'), '[]')
		FROM jobs j
		WHERE j.id IN (SELECT id FROM chain)
		UNION ALL
		SELECT a.id::text, a.state = 'succeeded', jsonb_path_exists(a.job,
			'$.checkpoints[*] ? (@.state == "verified" || @.state == "bad")'), a.job -> 'started_from', '[]'
		FROM archived_jobs a
		WHERE a.id IN (SELECT id FROM chain)`, namedArgs{"ids": ids})
	if err != nil {
		return nil, err
	}
	all := map[berth.JobID]lifecycle.Saved{}
	var id berth.JobID
	var s lifecycle.Saved
	_, err = pgx.ForEachRow(rows, []any{&id, &s.Succeeded, &s.Had, &s.From, &s.Steps}, func() error {
		all[id] = s
		s = lifecycle.Saved{} // the next row must not write into the slices of this one
		return nil
	})
	return all, err
}

// sources chooses the checkpoints from which the new job starts: for an array, one for each of its
// elements. A spec without checkpoints has nowhere to put one.
func (r *retrying) sources(ctx context.Context, row submitRow) (startPoints, error) {
	if row.args["kind"] == berth.KindArray {
		c := children{"": r.old.ID}
		found, err := r.childSources(ctx, c)
		return found[""], err
	}
	jobSpec := r.old.Spec
	if r.o.Spec != nil {
		jobSpec = r.o.Spec
	}
	if jobSpec.Checkpoint == nil || r.old.Kind == berth.KindArray || r.namesAnother(jobSpec.Checkpoint.From) {
		return startPoints{}, nil
	}
	found, err := r.resume(ctx, []berth.JobID{r.old.ID})
	if err != nil {
		return startPoints{}, err
	}
	if s, ok := found[r.old.ID]; ok {
		return startPoints{source: &s}, nil
	}
	return startPoints{}, nil
}

// namesAnother reports whether the new spec names another checkpoint than the old one: then
// the file decides.
func (r *retrying) namesAnother(from string) bool {
	old := ""
	if c := r.old.Spec.Checkpoint; c != nil {
		old = c.From
	}
	return r.o.Spec != nil && from != "" && from != old
}

// stepSources chooses the checkpoints from which the steps of a repeated pipeline start, by
// path.
func (r *retrying) stepSources(ctx context.Context, p spec.Pipeline) (map[string]startPoints, error) {
	steps, err := readSteps(ctx, r.tx, r.old.ID)
	if err != nil {
		return nil, err
	}
	saves := map[string]bool{}
	for path, step := range p.All() {
		saves[path] = step.Checkpoint != nil
	}
	c := children{}
	for _, s := range steps {
		if saves[s.path] {
			c[s.path] = s.id
		}
	}
	return r.childSources(ctx, c)
}

// children are the ended jobs and arrays whose work is repeated, by a name of the caller.
type children map[string]berth.JobID

// childSources chooses the checkpoints from which the successors of jobs and of the elements
// of arrays start. An element keeps its index; one that saved no step starts as its array
// says. All rows are locked at once, in one order.
func (r *retrying) childSources(ctx context.Context, c children) (map[string]startPoints, error) {
	elements, err := savedElements(ctx, r.tx, slices.Collect(maps.Values(c)))
	if err != nil {
		return nil, err
	}
	ids := slices.Collect(maps.Values(c))
	for array, list := range elements {
		if len(list) > maxTakenElements {
			return nil, berth.Errorf(berth.CodeConflict, "%d elements of array %s have checkpoints to resume from, "+
				"more than %d; start from the beginning with: berth retry --fresh %s", len(list), array,
				maxTakenElements, r.old.ID)
		}
		for _, id := range list {
			ids = append(ids, id)
		}
	}
	found, err := r.resume(ctx, sortedIDs(ids))
	if err != nil {
		return nil, err
	}
	sources := map[string]startPoints{}
	for name, id := range c {
		s := startPoints{elements: map[int]wire.StartPoint{}}
		if source, ok := found[id]; ok {
			s.source = &source
		}
		for index, element := range elements[id] {
			if source, ok := found[element]; ok {
				s.elements[index] = source
			}
		}
		sources[name] = s
	}
	return sources, nil
}

// savedElements returns the elements of arrays that did not succeed and have had a checkpoint,
// by array and index.
func savedElements(ctx context.Context, tx pgx.Tx, arrays []berth.JobID) (map[berth.JobID]map[int]berth.JobID, error) {
	rows, err := tx.Query(ctx, `
		SELECT j.parent::text, j.array_index, j.id::text
		FROM jobs j
		WHERE j.parent = ANY(@arrays::uuid[]) AND j.array_index IS NOT NULL AND j.state <> 'succeeded'
		  AND j.has_checkpoint
		UNION ALL
		SELECT a.parent::text, (a.job ->> 'array_index')::int, a.id::text
		FROM archived_jobs a
		WHERE a.parent = ANY(@arrays::uuid[]) AND a.job ? 'array_index' AND a.state <> 'succeeded'
		  AND (a.job ? 'checkpoints' OR a.job ? 'started_from')`, namedArgs{"arrays": arrays})
	if err != nil {
		return nil, err
	}
	elements := map[berth.JobID]map[int]berth.JobID{}
	var array, id berth.JobID
	var index int
	_, err = pgx.ForEachRow(rows, []any{&array, &index, &id}, func() error {
		if elements[array] == nil {
			elements[array] = map[int]berth.JobID{}
		}
		elements[array][index] = id
		return nil
	})
	return elements, err
}
