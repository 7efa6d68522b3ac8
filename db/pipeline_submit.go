package db

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// PipelineSubmission is a pipeline to be stored.
type PipelineSubmission struct {
	Tenant  berth.TenantID
	Spec    spec.Pipeline // valid, with defaults filled in
	IdemKey string        // "": every call creates a new pipeline
	Actor   string
	RetryOf *berth.JobID // the ended pipeline that this one retries
	Resume  *berth.JobID // the ended pipeline whose unchanged results this one takes over; implies RetryOf

	resumed resumed // of Resume; see resume

	sources map[string]startPoints // of a retry: the checkpoints from which steps start, by path
	digests map[string]keptDigest  // of a retry: the digests that steps run again, by path

	incarnation int64 // of the database, for newJobID
}

// SubmitPipeline stores a pipeline and all its steps in one transaction. Idempotency keys and
// quotas work as in Submit; steps that wait for others count against no quota. created is
// false if a pipeline with the same key exists, which is then returned.
//
// With s.Resume, steps that are unchanged since that run are stored as succeeded, with
// cached_from; see PipelineSubmission.resume. A run that has not ended, or that has a
// successor already, is a conflict.
func (d *Jobs) SubmitPipeline(ctx context.Context, s PipelineSubmission) (job wire.Job, created bool, err error) {
	s.RetryOf = cmp.Or(s.Resume, s.RetryOf)
	if s.incarnation, err = d.incarnations.now(ctx, d.pool); err != nil {
		return wire.Job{}, false, err
	}
	row, err := newPipelineRow(s)
	if err != nil {
		return wire.Job{}, false, err
	}
	err = d.tx(ctx, func(tx pgx.Tx) error {
		if s.Resume != nil {
			if err := s.resume(ctx, tx); err != nil {
				return err
			}
		}
		var err error
		if job, err = row.insertPipeline(ctx, tx, s); err != nil || s.Resume == nil {
			return err
		}
		return linkRetry(ctx, tx, *s.Resume, job.ID, keyResume)
	})
	switch {
	case err == nil:
		if _, err := row.judged(ctx, d, job, nil); err != nil {
			return wire.Job{}, true, err
		}
		d.hub.Publish(TopicSubmit, string(job.ID))
		job, err = d.Get(ctx, s.Tenant, job.ID)
		return job, true, err
	// not_found: the key exists. A repeated submission may also fail earlier, for example on
	// a quota that the first one has used up, or because the first one has resumed the run.
	// Either way the existing job is the answer.
	case s.IdemKey != "" && (berth.CodeOf(err) == berth.CodeNotFound || berth.IsSlug(err, berth.SlugQuota) ||
		berth.IsSlug(err, berth.SlugInvalidSpec) || berth.IsSlug(err, SlugNoCheckpoint) ||
		berth.IsSlug(err, SlugNoJob) ||
		s.Resume != nil && berth.CodeOf(err) == berth.CodeConflict):
		old, found := d.submitted(ctx, s.Tenant, s.IdemKey, row.hash)
		if berth.CodeOf(found) != berth.CodeNotFound {
			return old, false, found
		}
	}
	return wire.Job{}, false, mapError(err, "pipeline")
}

// newPipelineRow returns the row of the parent. Columns for settings of the steps have
// defaults, without effect.
func newPipelineRow(s PipelineSubmission) (submitRow, error) {
	rawSpec, err := json.Marshal(s.Spec)
	if err != nil {
		return submitRow{}, fmt.Errorf("marshal pipeline: %w", err)
	}
	row, err := newSubmitRow(Submission{
		Tenant: s.Tenant, IdemKey: s.IdemKey, Actor: s.Actor, RetryOf: s.RetryOf,
		Spec: spec.Job{Name: s.Spec.Name, Labels: s.Spec.Labels, Notify: s.Spec.Notify}.WithDefaults(),
	})
	if err != nil {
		return row, err
	}
	row.waitFor(s.Spec.Needs, s.Spec.When)
	hashed := rawSpec
	if s.Resume != nil { // the same file without it is another submission
		hashed = append(slices.Clone(rawSpec), "resume "+string(*s.Resume)...)
	}
	sum := sha256.Sum256(hashed)
	row.hash = sum[:]
	row.args["kind"], row.args["total"], row.args["spec"], row.args["idem_hash"] = berth.KindPipeline,
		len(s.Spec.Jobs), rawSpec, sum[:]
	row.args["expanded"] = len(s.Spec.Jobs) // all are rows from the first
	switch branches := s.Spec.Branches(); {
	case s.Spec.OnFailure == spec.FailFast && len(branches) > 0:
		row.args["fail_fast"] = true
	case s.Spec.OnFailure == spec.FailFast:
		row.args["max_failures"] = 0
	}
	return row, nil
}

// insertPipeline stores the parent, the steps of all levels and the needs. Ids ascend in the
// order of the graph, and an outer parent precedes an inner one: to lock by id is to lock
// from the outside in.
func (r *submitRow) insertPipeline(ctx context.Context, tx pgx.Tx, s PipelineSubmission) (wire.Job, error) {
	if err := checkSecrets(ctx, tx, s.Tenant, r.needs); err != nil {
		return wire.Job{}, err
	}
	g := growth{PipelineSubmission: s, ids: map[string]berth.JobID{}, fresh: map[berth.JobID]bool{}}
	ids := newElementIDs(1+s.Spec.Count(), s.incarnation)
	pipeline := ids[0]
	r.args["id"] = pipeline
	var uploads []spec.NamedUpload // of all steps, locked in one order and, as for any job, before the tenant
	for path, step := range s.Spec.All() {
		ids = ids[1:]
		g.ids[path], g.fresh[ids[0]] = ids[0], true
		for _, u := range step.Uploads() {
			uploads = append(uploads, spec.NamedUpload{Field: spec.StepField(path) + "." + u.Field, Address: u.Address})
		}
	}
	if err := g.level("", pipeline, s.Spec); err != nil {
		return wire.Job{}, err
	}
	if err := r.lockNeeded(ctx, tx); err != nil {
		return wire.Job{}, err
	}
	if err := g.chooseSources(ctx, tx); err != nil { // rows of jobs are locked before all others
		return wire.Job{}, err
	}
	if err := bindUploads(ctx, tx, s.Tenant, uploads); err != nil {
		return wire.Job{}, err
	}
	parent, err := r.insert(ctx, tx)
	if err != nil {
		return wire.Job{}, err
	}
	if err := r.insertNeeded(ctx, tx, pipeline); err != nil {
		return wire.Job{}, err
	}
	if err := g.insert(ctx, tx); err != nil {
		return wire.Job{}, err
	}
	if s.Resume == nil {
		return parent, nil
	}
	return parent, g.takeOver(ctx, tx)
}

// growth collects the rows of a pipeline's steps.
type growth struct {
	PipelineSubmission
	ids   map[string]berth.JobID // by path
	fresh map[berth.JobID]bool   // the same
	steps []grown

	deps     edges // needs that must succeed
	jobNeeds edges // needs of steps with a condition
}

// edges are rows of deps or job_needs.
type edges struct{ jobs, needs []berth.JobID }

func (e *edges) add(job, needs berth.JobID) {
	e.jobs, e.needs = append(e.jobs, job), append(e.needs, needs)
}

// addNeeds adds the needs of a step. A step with a condition, or an array whose elements are
// not known yet, needs itself for a replica of the version before; see migration 0049.
func (g *growth) addNeeds(within, at string, step spec.Job) {
	id, list := g.ids[at], &g.deps
	if _, listed := step.Array.ListOf(); spec.Conditional(step) || listed {
		g.deps.add(id, id)
		list = &g.jobNeeds
	}
	for _, need := range step.Needs {
		list.add(id, g.ids[spec.StepPath(within, need)])
	}
}

// grown is one step with its path.
type grown struct {
	path string
	row  submitRow
}

// level adds the steps of one level and, recursively, of nested pipelines. An input that
// refers to a step outside its own level is rewritten to the job of that step. The stored
// spec of a step, also of a nested pipeline, thus refers only to its own level and to jobs.
func (g *growth) level(path string, parent berth.JobID, p spec.Pipeline) error {
	p = p.Bound(func(within, step string) (berth.JobID, bool) {
		top, _, inside := strings.Cut(step, ".")
		if here, _, _ := strings.Cut(within, "."); within == "" && !inside || here == top {
			return "", false
		}
		return g.ids[spec.StepPath(path, step)], true
	})
	branches := p.Branches()
	for _, key := range p.Order() {
		at := spec.StepPath(path, key)
		row, err := g.row(p, key, at)
		if err != nil {
			return err
		}
		// Every step of a nested pipeline waits for the first pass over that pipeline. Cached
		// steps wait for a first pass too, which may reuse an earlier result.
		step := p.Jobs[key]
		_, skipped := g.resumed.Taken[at]
		waits := path != "" || len(step.Needs) > 0 || step.Final || step.Cache || skipped || len(g.Spec.Needs) > 0 ||
			step.Array != nil && step.Array.From != ""
		row.args["id"], row.args["parent"], row.args["step"], row.args["blocked"] = g.ids[at], parent, key, waits
		row.args["uncounted"] = path != "" || len(step.Needs) > 0 || step.Final || skipped
		row.args["run_when"], row.args["final"], row.args["branch"] = spec.ConditionOf(step), step.Final, branches[key]
		if waits {
			row.args["queue_ms"] = 0 // see unblock
		}
		g.steps = append(g.steps, grown{at, row})
		g.addNeeds(path, at, step)
		if step.Nests() {
			if err := g.level(at, g.ids[at], p.Nested(key)); err != nil {
				return err
			}
		}
	}
	return nil
}

// row returns the row of one step: of a nested pipeline, or of a job. A step that is taken
// over starts no container: it keeps its uploads for a later retry, and needs nothing else.
func (g *growth) row(p spec.Pipeline, key, path string) (submitRow, error) {
	if p.Jobs[key].Nests() {
		return newPipelineRow(PipelineSubmission{Tenant: g.Tenant, Spec: p.Nested(key), Actor: g.Actor})
	}
	row, err := newSubmitRow(Submission{Tenant: g.Tenant, Spec: p.Jobs[key], Actor: g.Actor})
	row.needs = row.needs.without(g.fresh) // they have no outputs yet; see bindSteps
	row.startFrom(g.sources[path])
	if kept, ok := g.digests[path]; ok && kept.image == p.Jobs[key].Image {
		row.keepDigest(kept.digest, kept.at)
	}
	if _, skipped := g.resumed.Taken[path]; skipped {
		row.needs = needs{uploads: row.needs.uploads}
		row.args["image"] = ""
	}
	if a := p.Jobs[key].Array; a != nil && a.From == "" {
		if indexes, n := g.resumed.indexes(path, a.Count()); n > 0 {
			row.args["indexes"], row.args["expanded"] = indexes, n
		}
	}
	return row, err
}

// insertBatch is the number of steps inserted in one round trip.
const insertBatch = 500

// insert stores the rows. Every object that a step refers to must exist and is kept for the
// step; otherwise nothing is stored.
func (g *growth) insert(ctx context.Context, tx pgx.Tx) error {
	each := func(f func(submitRow) error) error {
		for _, s := range g.steps {
			if err := under(spec.StepField(s.path)+".", f(s.row)); err != nil {
				return fmt.Errorf("step %s: %w", s.path, err)
			}
		}
		return nil
	}
	if err := each(func(r submitRow) error { return checkSecrets(ctx, tx, g.Tenant, r.needs) }); err != nil {
		return err
	}
	// Before the steps: the quota check of an insert leaves out steps with needs.
	if err := g.insertNeeds(ctx, tx); err != nil {
		return err
	}
	for some := range slices.Chunk(g.steps, insertBatch) {
		batch := &pgx.Batch{}
		for _, s := range some {
			s.row.queue(batch)
		}
		results := tx.SendBatch(ctx, batch)
		for _, s := range some {
			if _, err := s.row.scanInsert(results); err != nil {
				_ = results.Close()
				return fmt.Errorf("step %s: %w", s.path, err)
			}
		}
		if err := results.Close(); err != nil {
			return mapError(err, "submit")
		}
	}
	return each(func(r submitRow) error {
		id := r.args["id"].(berth.JobID)
		if err := bindOutputs(ctx, tx, g.Tenant, id, r.needs.inputs); err != nil {
			return err
		}
		if err := r.recordSources(ctx, tx); err != nil {
			return err
		}
		return holdUploads(ctx, tx, id, r.needs.uploads)
	})
}

// insertNeeds stores the needs of all steps.
func (g *growth) insertNeeds(ctx context.Context, tx pgx.Tx) error {
	for table, list := range map[string]edges{"deps": g.deps, "job_needs": g.jobNeeds} {
		if _, err := tx.Exec(ctx, `
			INSERT INTO `+table+` (job, needs)
			SELECT * FROM unnest(@jobs::uuid[], @needs::uuid[])`,
			namedArgs{"jobs": list.jobs, "needs": list.needs}); err != nil {
			return err
		}
	}
	return nil
}

// queueTimeout decodes a spec's queue_timeout; 0 if the spec has none.
func queueTimeout(raw []byte) (time.Duration, error) {
	var d spec.Duration
	if len(raw) == 0 || string(raw) == "null" {
		return 0, nil
	}
	err := json.Unmarshal(raw, &d)
	return d.Std(), err
}
