package db

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// The source of a job is the checkpoint of another job from which it starts
// (docs/adr/0050-a-retry-resumes.md). It is chosen under the lock of the row of the job that
// saved it, in the transaction that stores the new job. A transaction that prunes, removes or
// archives checkpoints locks the same row first.

// SlugNoCheckpoint is the stable code for a checkpoint that cannot be used as a source.
const SlugNoCheckpoint = "no_checkpoint"

// lockPlainJobs locks rows of jobs that are no parents, in the lock order. Archived jobs have
// no row and are left out.
func lockPlainJobs(ctx context.Context, tx pgx.Tx, ids []berth.JobID) error {
	if len(ids) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, `
		SELECT 1
		FROM jobs
		WHERE id = ANY(@ids::uuid[])
		ORDER BY id
		FOR NO KEY UPDATE`, namedArgs{"ids": ids})
	return err
}

// startPoints are the checkpoints from which a new job starts: one for the job, or for the
// elements of an array.
type startPoints struct {
	source   *wire.StartPoint
	elements map[int]wire.StartPoint
}

// startFrom sets the checkpoints that a retry has chosen. They take the place of
// checkpoint.from in the spec.
func (r *submitRow) startFrom(s startPoints) {
	r.source, r.elements = s.source, s.elements
	r.args["has_source"] = r.source != nil
	if r.source != nil {
		r.needs.source = nil
	}
}

// choose locks the job that checkpoint.from names and chooses its step, unless a retry has
// chosen one. It returns an error if the checkpoint does not fit the job.
func (r *submitRow) choose(ctx context.Context, tx pgx.Tx) error {
	if ref := r.needs.source; ref != nil {
		source, err := findSource(ctx, tx, r.args["tenant"].(berth.TenantID), *ref)
		if err != nil {
			return err
		}
		r.source = &source
		r.args["has_source"] = true
	}
	var points []wire.StartPoint
	if r.source != nil {
		points = append(points, *r.source)
	}
	for _, index := range slices.Sorted(maps.Keys(r.elements)) {
		points = append(points, r.elements[index])
	}
	layouts, err := savedLayouts(ctx, tx, points)
	if err != nil {
		return err
	}
	if r.source != nil {
		if err := r.fit(r.source, layouts); err != nil {
			return err
		}
	}
	for index, p := range r.elements {
		if err := r.fit(&p, layouts); err != nil {
			return err
		}
		r.elements[index] = p
	}
	return nil
}

// fit decides which parts of the checkpoint each member of the job gets. Usually the checkpoint must have a part for
// each member, written by a member of the same group, and the member gets this part. With checkpoint.reshard, members
// of any other job get all parts. fit returns an error if the checkpoint does not fit the job. layouts has the groups
// of the gangs that saved checkpoints.
func (r *submitRow) fit(s *wire.StartPoint, layouts map[berth.JobID]string) error {
	layout := layouts[s.Job]
	const reshard = "checkpoint.reshard: all, which gives each member the parts of all members"
	switch {
	case s.Members == r.needs.members && layout == r.needs.layout:
		return nil
	case r.needs.reshard:
		s.Parts = s.Members
		return r.hasRoom(*s)
	case s.Members != r.needs.members:
		return noSource(berth.CodeInvalid, fmt.Sprintf("step %d of job %s was saved by %s, and this job has %d", s.Step,
			s.Job, plural(s.Members, "member"), r.needs.members),
			fmt.Sprintf("members: %d, %s, or a start from the beginning", s.Members, reshard))
	}
	return noSource(berth.CodeInvalid, fmt.Sprintf("step %d of job %s was saved by a gang with the groups %s, and "+
		"this job has %s", s.Step, s.Job, cmp.Or(layout, "(none)"), cmp.Or(r.needs.layout, "none")),
		fmt.Sprintf("the same groups, %s, or a start from the beginning", reshard))
}

// hasRoom returns an error if all parts of the checkpoint exceed the disk limit of a member.
func (r *submitRow) hasRoom(s wire.StartPoint) error {
	if limit := int64(r.needs.disk) << 20; limit == 0 || s.Bytes <= limit {
		return nil
	}
	need := (s.Bytes + 1<<20 - 1) >> 20
	return &berth.Error{Code: berth.CodeInvalid, Slug: SlugNoCheckpoint,
		Message: fmt.Sprintf("all parts of step %d of job %s do not fit on the disk of a member", s.Step, s.Job),
		Fields: []berth.FieldError{{Field: "checkpoint.reshard",
			Detail: fmt.Sprintf("each member gets the parts of %s of step %d of job %s, which have %s, and may use %s "+
				"of disk", plural(s.Members, "member"), s.Step, s.Job, berth.BytesText(s.Bytes), r.needs.disk),
			Allowed: fmt.Sprintf("resources.disk of more than %dMiB for each member, or members: %d without "+
				"checkpoint.reshard", need, s.Members)}}}
}

// savedLayouts returns the groups of the jobs that saved the checkpoints; see spec.Layout. One query reads them for
// all elements of an array, and none if a checkpoint of a gang is not among them.
func savedLayouts(ctx context.Context, tx pgx.Tx, points []wire.StartPoint) (map[berth.JobID]string, error) {
	var gangs []berth.JobID
	for _, p := range points {
		if p.Members > 1 {
			gangs = append(gangs, p.Job)
		}
	}
	if len(gangs) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT job::text, jsonb_build_object('groups', spec -> 'groups')
		FROM job_specs
		WHERE job = ANY(@jobs::uuid[])`, namedArgs{"jobs": gangs})
	if err != nil {
		return nil, err
	}
	layouts := make(map[berth.JobID]string, len(gangs))
	var job berth.JobID
	var saved spec.Job
	_, err = pgx.ForEachRow(rows, []any{&job, &saved}, func() error {
		layouts[job] = spec.Layout(saved.WithDefaults())
		saved = spec.Job{}
		return nil
	})
	return layouts, err
}

// noSource returns the error for a checkpoint that cannot be used, with its field.
func noSource(code berth.Code, detail, allowed string) error {
	return &berth.Error{Code: code, Slug: SlugNoCheckpoint, Message: detail,
		Fields: []berth.FieldError{{Field: "checkpoint.from", Detail: detail, Allowed: allowed}}}
}

// findSource locks a job of the tenant and returns the verified checkpoint that ref names.
// Another tenant's job gives the same error as one that does not exist.
func findSource(ctx context.Context, tx pgx.Tx, tenant berth.TenantID, ref spec.StepRef) (wire.StartPoint, error) {
	args := namedArgs{"id": ref.Job, "tenant": string(tenant), "step": ref.Step}
	source := wire.StartPoint{Job: ref.Job}
	var kind berth.Kind
	err := tx.QueryRow(ctx, `
		SELECT kind
		FROM jobs
		WHERE id = @id AND tenant = @tenant
		FOR NO KEY UPDATE`, args).Scan(&kind)
	if isNoRows(err) {
		return source, goneSource(ctx, tx, ref, args)
	}
	if err != nil {
		return source, err
	}
	if kind != berth.KindJob && kind != "" {
		return source, noSource(berth.CodeInvalid, fmt.Sprintf("job %s is of kind %s and has no checkpoints of its own",
			ref.Job, kind), "an element of the array, or a step of the pipeline")
	}
	// A statement after the lock: its snapshot shows the rows that the previous holder has pruned.
	err = tx.QueryRow(ctx, `
		SELECT attempt, step, ranks, bytes
		FROM checkpoints
		WHERE job = @id AND state = 'verified' AND (@step::bigint IS NULL OR step = @step)
		ORDER BY passed_over, step DESC, attempt DESC
		LIMIT 1`, args).Scan(&source.Attempt, &source.Step, &source.Members, &source.Bytes)
	if !isNoRows(err) {
		return source, err
	}
	var steps []string
	if err := tx.QueryRow(ctx, `
		SELECT ARRAY(
			SELECT DISTINCT step
			FROM checkpoints
			WHERE job = @id AND state = 'verified'
			ORDER BY step DESC
			LIMIT 8)::text[]`, args).Scan(&steps); err != nil {
		return source, err
	}
	if len(steps) == 0 {
		return source, noSource(berth.CodeInvalid, fmt.Sprintf("job %s has no verified checkpoint", ref.Job),
			"a job with one that berth checkpoints list shows as verified")
	}
	return source, noSource(berth.CodeInvalid, fmt.Sprintf("job %s has no verified checkpoint of step %d", ref.Job,
		*ref.Step), "one of its newest: "+strings.Join(steps, ", "))
}

// goneSource returns the error for a job without a row: it was archived, or the tenant has no
// such job.
func goneSource(ctx context.Context, tx pgx.Tx, ref spec.StepRef, args namedArgs) error {
	var archived bool
	err := tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT 1 FROM archived_jobs WHERE id = @id AND tenant = @tenant)`, args).Scan(&archived)
	if err != nil {
		return err
	}
	if archived {
		return noSource(berth.CodeInvalid,
			fmt.Sprintf("job %s was archived, and its checkpoints were deleted", ref.Job),
			"a job that is not archived; berth checkpoints pin keeps a checkpoint")
	}
	return noSource(berth.CodeNotFound, fmt.Sprintf("no such job %s", ref.Job), "the id of a job of the same tenant")
}

// chooseSources chooses the checkpoints of all steps, after a lock of all jobs that saved one.
func (g *growth) chooseSources(ctx context.Context, tx pgx.Tx) error {
	var jobs []berth.JobID
	for _, s := range g.steps {
		if ref := s.row.needs.source; ref != nil {
			jobs = append(jobs, ref.Job)
		}
	}
	if err := lockPlainJobs(ctx, tx, jobs); err != nil {
		return err
	}
	for i := range g.steps {
		if err := under(spec.StepField(g.steps[i].path)+".", g.steps[i].row.choose(ctx, tx)); err != nil {
			return err
		}
	}
	return nil
}

// recordSources stores the chosen checkpoints of a job that was just inserted, with an event.
// From here on they are kept.
func (r submitRow) recordSources(ctx context.Context, tx pgx.Tx) error {
	id := r.args["id"].(berth.JobID)
	var indexes, attempts []int
	var jobs []berth.JobID
	var steps []int64
	var parts []*int
	add := func(index int, s wire.StartPoint) {
		indexes, jobs = append(indexes, index), append(jobs, s.Job)
		attempts, steps = append(attempts, s.Attempt), append(steps, s.Step)
		if s.Parts > 0 {
			parts = append(parts, &s.Parts)
		} else {
			parts = append(parts, nil)
		}
	}
	if r.source != nil {
		add(-1, *r.source)
	}
	for _, index := range slices.Sorted(maps.Keys(r.elements)) {
		add(index, r.elements[index])
	}
	if len(indexes) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO job_sources (job, array_index, source, attempt, step, parts)
		SELECT @job::uuid, x.*
		FROM unnest(@indexes::int[], @jobs::uuid[], @attempts::int[], @steps::bigint[], @parts::int[]) AS x`,
		namedArgs{"job": id, "indexes": indexes, "jobs": jobs, "attempts": attempts, "steps": steps,
			"parts": parts}); err != nil {
		return err
	}
	e := wire.Event{Kind: wire.EventStartsFrom, Actor: r.args["actor"].(string)}
	if s := r.source; s != nil {
		e.Detail = fmt.Sprintf("starts from step %d of job %s (attempt %d)", s.Step, s.Job, s.Attempt)
		if s.Parts > 0 {
			e.Detail += ": each member gets the parts of " + plural(s.Parts, "member")
		}
		e.Facts = &wire.EventFacts{Step: &s.Step, Job: s.Job}
	} else {
		e.Detail = fmt.Sprintf("elements that resume from a checkpoint of the array before: %d", len(r.elements))
	}
	return addEvent(ctx, tx, id, e)
}
