package db

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/lifecycle"
	"berth/spec"
	"berth/wire"
)

// maxResumed bounds the earlier runs of a pipeline that a resume reads, the newest first. A
// step that is in none of them is new.
const maxResumed = 20

// maxTakenElements is the greatest number of elements of one array that a resume takes over:
// a larger array runs again as a whole. The rows are written by the submit, whose
// transaction they prolong.
const maxTakenElements = lifecycle.ArrayWindow

// taken is a job that is not run, since an earlier one has its result.
type taken struct {
	job, source berth.JobID
	attempt     int         // of source: the one with the outputs
	from        berth.JobID // the job that ran, if source was itself taken over; "" for source
}

// earlierStep is a step of an earlier run, as its row shows it.
type earlierStep struct {
	path    string
	id      berth.JobID
	state   berth.State
	attempt int
	from    *berth.JobID // the job that ran, if this step was itself taken over
	digest  string       // of the image, "" if unknown
	started *time.Time
	outputs []string // names of the outputs of its last attempt that are stored
}

// outputsGone is the reason for which a step or an element without all its outputs runs.
const outputsGone = "its outputs are no longer stored"

// stored reports whether all declared outputs of the step are still stored.
func (s earlierStep) stored(jobSpec spec.Job) bool {
	gone := func(o spec.Output) bool { return !slices.Contains(s.outputs, o.Name) }
	return !slices.ContainsFunc(jobSpec.Outputs, gone)
}

// resumed is the part of an earlier run that a resumed pipeline takes over, with its rows.
type resumed struct {
	spec.Resumption
	steps    map[berth.JobID]earlierStep
	elements map[berth.JobID]map[int]earlierStep // succeeded elements with their outputs, by array and index
}

// resume reads the run that s resumes, under lock, and decides which steps are taken over.
// The run must have ended, and must not have been retried or resumed: each run has at most
// one successor, so that its results are taken over along one line.
//
// holdOutputs keeps the outputs that are found here until the commit. The rows of the run
// may move to the archive meanwhile: each statement sees a row in one of the two tables, and
// a terminal row does not change.
func (s *PipelineSubmission) resume(ctx context.Context, tx pgx.Tx) error {
	old, err := lockForRetry(ctx, tx, s.Tenant, *s.Resume)
	switch {
	case err != nil:
		return err
	case old.Kind != berth.KindPipeline:
		return berth.Errorf(berth.CodeInvalid, "job %s is not a pipeline; only pipelines can be resumed", old.ID)
	case old.Parent != nil:
		return berth.Errorf(berth.CodeInvalid, "pipeline %s is a step of pipeline %s; resume that one", old.ID,
			*old.Parent)
	case old.RetriedBy != nil:
		return berth.Errorf(berth.CodeConflict, "pipeline %s was already retried or resumed as %s; resume that one",
			old.ID, *old.RetriedBy)
	}
	if err := holdOutputs(ctx, tx); err != nil {
		return err
	}
	r := resumed{steps: map[berth.JobID]earlierStep{}, elements: map[berth.JobID]map[int]earlierStep{}}
	earlier, err := r.read(ctx, tx, old)
	if err != nil {
		return err
	}
	if err := r.readElements(ctx, tx, earlier); err != nil {
		return err
	}
	if err := r.findMoved(ctx, tx, s.Tenant, earlier); err != nil {
		return err
	}
	r.Resumption = s.Spec.Resume(earlier)
	if len(r.Runs) == 0 {
		return berth.Errorf(berth.CodeConflict,
			"nothing to run: every step of the file is unchanged and succeeded in pipeline %s; "+
				"run all steps with: berth retry %[1]s", old.ID)
	}
	s.resumed = r
	return nil
}

// read returns the steps of a run, and the steps of the runs before it that it did not have: a
// retry of failed steps leaves the succeeded ones out.
func (r *resumed) read(ctx context.Context, tx pgx.Tx, run wire.Job) (map[string]spec.Earlier, error) {
	earlier := map[string]spec.Earlier{}
	for range maxResumed {
		steps, err := readSteps(ctx, tx, run.ID)
		if err != nil {
			return nil, err
		}
		ids := map[string]berth.JobID{}
		for _, s := range steps {
			r.steps[s.id], ids[s.path] = s, s.id
		}
		bound := run.Pipeline.WithDefaults().Bound(func(_, path string) (berth.JobID, bool) {
			return ids[path], ids[path] != ""
		})
		for path, jobSpec := range bound.All() {
			row, ok := r.steps[ids[path]]
			if _, newer := earlier[path]; newer || !ok {
				continue
			}
			e := spec.Earlier{Job: row.id, Spec: jobSpec, Succeeded: row.state == berth.Succeeded}
			if jobSpec.Array == nil && !row.stored(jobSpec) {
				e.Lacks = outputsGone
			}
			earlier[path] = e
		}
		if run.RetryOf == nil {
			break
		}
		if run, err = readRun(ctx, tx, *run.RetryOf); isNoRows(err) {
			break // it is gone, or was no pipeline
		}
		if err != nil {
			return nil, err
		}
	}
	return earlier, nil
}

// readRun reads the spec of a pipeline and the pipeline that it retried, live or archived.
func readRun(ctx context.Context, tx pgx.Tx, id berth.JobID) (wire.Job, error) {
	run := wire.Job{ID: id}
	var raw []byte
	err := tx.QueryRow(ctx, `
		SELECT j.retry_of::text, s.spec
		FROM jobs j
		JOIN job_specs s ON s.job = j.id
		WHERE j.id = @id AND j.kind = 'pipeline'
		UNION ALL
		SELECT job ->> 'retry_of', job -> 'pipeline'
		FROM archived_jobs
		WHERE id = @id AND job ->> 'kind' = 'pipeline'`, namedArgs{"id": id}).Scan(&run.RetryOf, &raw)
	if err != nil {
		return run, err
	}
	run.Pipeline = &spec.Pipeline{}
	if err := json.Unmarshal(raw, run.Pipeline); err != nil {
		return run, fmt.Errorf("read spec of pipeline %s: %w", id, err)
	}
	return run, nil
}

// stepColumns are the columns of an earlierStep after its path, of a row j of jobs; and of
// a row a of archived_jobs.
const (
	stepColumns = `j.id::text, j.state, j.attempt, j.cached_from::text, coalesce(j.image_digest, ''), j.started_at,
				ARRAY(SELECT o.name FROM outputs o WHERE o.job = j.id AND o.attempt = j.attempt)`
	stepArchived = `a.id::text, a.state, (a.job ->> 'attempt')::int, a.job ->> 'cached_from',
				coalesce(a.job ->> 'image_digest', ''), (a.job ->> 'started_at')::timestamptz,
				ARRAY(SELECT o.name FROM outputs o WHERE o.job = a.id AND o.attempt = (a.job ->> 'attempt')::int)`
)

// readSteps reads the steps of a pipeline at every depth, live and archived.
func readSteps(ctx context.Context, tx pgx.Tx, id berth.JobID) ([]earlierStep, error) {
	rows, err := tx.Query(ctx, `
		WITH RECURSIVE inside (id, path) AS (
			SELECT @id::uuid, ''
			UNION ALL
			SELECT s.id, CASE i.path WHEN '' THEN s.step ELSE i.path || '.' || s.step END
			FROM inside i
			CROSS JOIN LATERAL (
				SELECT j.id, j.step
				FROM jobs j
				WHERE j.parent = i.id AND j.step IS NOT NULL
				UNION ALL
				SELECT a.id, a.job ->> 'step'
				FROM archived_jobs a
				WHERE a.parent = i.id AND a.job ->> 'step' IS NOT NULL
			) s
		)
		SELECT i.path, `+stepColumns+`
		FROM inside i
		JOIN jobs j ON j.id = i.id
		WHERE i.path <> ''
		UNION ALL
		SELECT i.path, `+stepArchived+`
		FROM inside i
		JOIN archived_jobs a ON a.id = i.id
		WHERE i.path <> ''`, namedArgs{"id": id})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanStep)
}

// scanStep reads a row of a path and stepColumns.
func scanStep(row pgx.CollectableRow) (s earlierStep, err error) {
	err = row.Scan(&s.path, &s.id, &s.state, &s.attempt, &s.from, &s.digest, &s.started, &s.outputs)
	return s, err
}

// findMoved marks the steps whose image has another digest by now, as far as a cached step of
// the tenant has found out; see reuse. A step that was taken over has no digest.
func (r *resumed) findMoved(ctx context.Context, tx pgx.Tx, tenant berth.TenantID,
	earlier map[string]spec.Earlier) error {
	var images []string
	for _, e := range earlier {
		if e.Spec.Image != "" && !spec.PinnedImage(e.Spec.Image) && r.steps[e.Job].digest != "" {
			images = append(images, e.Spec.Image)
		}
	}
	if len(images) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, `
		SELECT i.image, n.digest, n.found_at
		FROM (SELECT DISTINCT image FROM unnest(@images::text[]) AS x (image)) i
		JOIN LATERAL (
			SELECT digest, found_at
			FROM step_results
			WHERE tenant = @tenant AND image = i.image AND image <> '' AND digest <> ''
			ORDER BY found_at DESC
			LIMIT 1) n ON true`, namedArgs{"tenant": tenant, "images": images})
	if err != nil {
		return err
	}
	type found struct {
		digest string
		at     time.Time
	}
	newest := map[string]found{}
	var image string
	var f found
	if _, err := pgx.ForEachRow(rows, []any{&image, &f.digest, &f.at}, func() error {
		newest[image] = f
		return nil
	}); err != nil {
		return err
	}
	for path, e := range earlier {
		n, known := newest[e.Spec.Image]
		row := r.steps[e.Job]
		if known && e.Lacks == "" && row.digest != "" && row.digest != n.digest && row.started != nil &&
			n.at.After(*row.started) {
			e.Lacks = fmt.Sprintf("its image %.200s stands for another digest by now", e.Spec.Image)
			earlier[path] = e
		}
	}
	return nil
}

// readElements reads the succeeded elements of the arrays, live and archived. An element
// without all its outputs runs again, and so does an array with too many elements.
func (r *resumed) readElements(ctx context.Context, tx pgx.Tx, earlier map[string]spec.Earlier) error {
	for path, e := range earlier {
		if e.Spec.Array == nil {
			continue
		}
		if e.Spec.Array.From != "" {
			e.Lacks = "its elements come from an output, which is read again"
			earlier[path] = e
			continue
		}
		if n := e.Spec.Array.Count(); n > maxTakenElements {
			e.Lacks = fmt.Sprintf("it has %d elements; at most %d are taken over", n, maxTakenElements)
			earlier[path] = e
			continue
		}
		rows, err := tx.Query(ctx, `
			SELECT j.array_index::text, `+stepColumns+`
			FROM jobs j
			WHERE j.parent = @id AND j.state = 'succeeded' AND j.array_index IS NOT NULL
			UNION ALL
			SELECT a.job ->> 'array_index', `+stepArchived+`
			FROM archived_jobs a
			WHERE a.parent = @id AND a.state = 'succeeded' AND a.job ->> 'array_index' IS NOT NULL`,
			namedArgs{"id": e.Job})
		if err != nil {
			return err
		}
		list, err := pgx.CollectRows(rows, scanStep)
		if err != nil {
			return err
		}
		elements := make(map[int]earlierStep, len(list))
		for _, element := range list {
			index, err := strconv.Atoi(element.path)
			if err != nil {
				return fmt.Errorf("index of element %s: %w", element.id, err)
			}
			if element.stored(e.Spec) {
				elements[index] = element
			}
		}
		if e.Succeeded && len(elements) < e.Spec.Array.Count() {
			e.Lacks = outputsGone
			earlier[path] = e
		}
		r.elements[e.Job] = elements
	}
	return nil
}

// indexes returns the indexes of an array's elements that are taken over and, after them,
// the others, in the order in which an array creates its elements; and the number of elements
// taken over. The indexes are nil if they are all of one kind.
func (r *resumed) indexes(path string, count int) (indexes []int, n int) {
	elements := r.elements[r.Arrays[path]]
	if len(elements) == 0 || len(elements) == count {
		return nil, len(elements)
	}
	var others []int
	for i := range count {
		if _, ok := elements[i]; ok {
			indexes = append(indexes, i)
		} else {
			others = append(others, i)
		}
	}
	return append(indexes, others...), len(indexes)
}

// takeOver ends the jobs and elements of a new pipeline that are not run, in the transaction
// that stores the pipeline, and records for each other step why it runs.
func (g *growth) takeOver(ctx context.Context, tx pgx.Tx) error {
	var list []taken
	source := func(id berth.JobID, e earlierStep) taken {
		t := taken{job: id, source: e.id, attempt: e.attempt}
		if e.from != nil {
			t.from = *e.from
		}
		return t
	}
	for _, path := range slices.Sorted(maps.Keys(g.resumed.Taken)) {
		list = append(list, source(g.ids[path], g.resumed.steps[g.resumed.Taken[path]]))
	}
	for _, path := range slices.Sorted(maps.Keys(g.resumed.Arrays)) {
		elements := g.resumed.elements[g.resumed.Arrays[path]]
		if len(elements) == 0 {
			continue
		}
		ids, err := makeBlocked(ctx, tx, g.ids[path], slices.Sorted(maps.Keys(elements)), g.Actor)
		if err != nil {
			return err
		}
		for index, e := range elements {
			list = append(list, source(ids[index], e))
		}
	}
	slices.SortFunc(list, func(a, b taken) int { return strings.Compare(string(a.job), string(b.job)) })
	for some := range slices.Chunk(list, expandBatch) {
		if err := takeAll(ctx, tx, some, g.Actor, *g.Resume); err != nil {
			return err
		}
	}
	if err := g.skipSteps(ctx, tx); err != nil {
		return err
	}
	if err := g.endTaken(ctx, tx); err != nil {
		return err
	}
	for _, path := range slices.Sorted(maps.Keys(g.resumed.Runs)) {
		if err := addEvent(ctx, tx, g.ids[path], wire.Event{Kind: wire.EventUpdated, Actor: g.Actor,
			Detail: "runs in the resume of " + string(*g.Resume) + ": " + g.resumed.Runs[path]}); err != nil {
			return err
		}
	}
	return nil
}

// skipSteps ends the steps whose condition is known not to hold.
func (g *growth) skipSteps(ctx context.Context, tx pgx.Tx) error {
	var ids []berth.JobID
	for path := range g.resumed.Skipped {
		ids = append(ids, g.ids[path])
	}
	_, err := tx.Exec(ctx, `
		UPDATE jobs
		SET state = 'canceled', version = version + 1, actor = @actor,
			reason = jsonb_build_object('code', @code::text, 'message', 'all steps before it were taken over')
		WHERE id = ANY(@ids::uuid[])`,
		namedArgs{"ids": sortedIDs(ids), "actor": g.Actor, "code": wire.ReasonSkipped})
	return err
}

// endTaken ends the arrays and nested pipelines of which everything was taken over, the inner
// ones first. They end here and not by a later pass: a cancel in between would end them as
// canceled although all their children have succeeded.
func (g *growth) endTaken(ctx context.Context, tx pgx.Tx) error {
	var parents []string
	for path, s := range g.Spec.All() {
		if _, runs := g.resumed.Runs[path]; !runs && !g.resumed.Skipped[path] && (s.Nests() || s.Array != nil) {
			parents = append(parents, string(g.ids[path]))
		}
	}
	for _, id := range slices.Backward(parents) {
		for _, sql := range []string{`
			UPDATE jobs
			SET state = 'queued', blocked = false, version = version + 1, actor = @actor
			WHERE id = @id`, `
			UPDATE jobs j
			SET state = 'succeeded', version = version + 1, actor = @actor, tally = ` + liveTally + `
			WHERE id = @id`} {
			if _, err := tx.Exec(ctx, sql, namedArgs{"id": id, "actor": g.Actor}); err != nil {
				return err
			}
		}
	}
	return nil
}

// makeBlocked creates elements of a new array that do not start, and returns their ids by
// index.
func makeBlocked(ctx context.Context, tx pgx.Tx, array berth.JobID, indexes []int,
	actor string) (map[int]berth.JobID, error) {
	p := lockedParent{Parent: lifecycle.Parent{ID: array}}
	for some := range slices.Chunk(indexes, expandBatch) {
		if _, err := p.make(ctx, tx, some, actor); err != nil {
			return nil, err
		}
	}
	rows, err := tx.Query(ctx, `
		UPDATE jobs
		SET blocked = true
		WHERE parent = @parent
		RETURNING array_index, id::text`, namedArgs{"parent": array})
	if err != nil {
		return nil, err
	}
	ids := make(map[int]berth.JobID, len(indexes))
	var index int
	var id berth.JobID
	_, err = pgx.ForEachRow(rows, []any{&index, &id}, func() error {
		ids[index] = id
		return nil
	})
	return ids, err
}

// takeAll ends jobs as succeeded that never ran, with rows of their own for the outputs of
// their sources: as skip does for cached steps, and in the same form.
func takeAll(ctx context.Context, tx pgx.Tx, list []taken, actor string, run berth.JobID) error {
	var jobs, sources, from []string
	var attempts []int
	for _, t := range list {
		jobs, sources, attempts = append(jobs, string(t.job)), append(sources, string(t.source)),
			append(attempts, t.attempt)
		from = append(from, string(cmp.Or(t.from, t.source)))
	}
	args := namedArgs{"jobs": jobs, "sources": sources, "from": from, "attempts": attempts, "actor": actor,
		"run": string(run)}
	for _, sql := range []string{`
		INSERT INTO outputs (job, attempt, rank, name, address, files, bytes, stored_bytes, sha256, object, created_at)
		SELECT x.job, 0, o.rank, o.name, o.address, o.files, o.bytes, o.stored_bytes, o.sha256, o.object, o.created_at
		FROM unnest(@jobs::uuid[], @sources::uuid[], @attempts::int[]) AS x (job, source, attempt)
		JOIN outputs o ON o.job = x.source AND o.attempt = x.attempt`, `
		WITH bumped AS (
			UPDATE jobs j
			SET event_seq = j.event_seq + 1
			FROM unnest(@jobs::uuid[], @from::uuid[]) AS x (job, source)
			WHERE j.id = x.job
			RETURNING j.id, j.event_seq, x.source
		)
		INSERT INTO job_events (job, seq, at, kind, attempt, actor, detail)
		SELECT id, event_seq, clock_timestamp(), 'cached', 0, @actor,
			'not run: unchanged since run ' || @run || ', with the outputs of job ' || source
		FROM bumped`, `
		UPDATE jobs j
		SET state = 'succeeded', blocked = false, cached_from = x.source, version = j.version + 1, actor = @actor
		FROM unnest(@jobs::uuid[], @from::uuid[]) AS x (job, source)
		WHERE j.id = x.job`} {
		if _, err := tx.Exec(ctx, sql, args); err != nil {
			return err
		}
	}
	return nil
}
