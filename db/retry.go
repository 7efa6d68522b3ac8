package db

import (
	"bytes"
	"context"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// RetryOptions say how an ended job is submitted again. The zero value repeats it as a whole,
// from its newest checkpoint.
type RetryOptions struct {
	Failed bool // of an array or a pipeline: only the parts that did not succeed
	Fresh  bool // start as the file says, and not from a checkpoint of the old job

	// FreshImage resolves the names of images again. Without it, and without Spec, the new job runs the digest that the
	// control plane found at the submit of the old one.
	FreshImage bool

	// Spec is run in place of the old one. It is valid, has its defaults, and is the result of
	// AsJob; nil repeats the old spec.
	Spec *spec.Job
}

// key identifies a retry among the retries of one job: equal options give one successor. hash is
// of Spec.
func (o RetryOptions) key(hash []byte) string {
	var parts []string
	if o.Failed {
		parts = append(parts, "failed")
	}
	if o.Fresh {
		parts = append(parts, "fresh")
	}
	if o.FreshImage {
		parts = append(parts, "fresh-image")
	}
	if o.Spec != nil {
		parts = append(parts, specKey+hex.EncodeToString(hash))
	}
	return strings.Join(parts, ",")
}

const (
	specKey   = "spec:"  // begins the part of a key that is the hash of a spec
	keyResume = "resume" // of a pipeline that was resumed by a file; see SubmitPipeline
)

// Retry submits an ended job as a new job, and links both jobs. The new job resumes from the
// newest checkpoint of the old one; see lifecycle.Resume. It runs the digest of the old job's
// image if that was found at the submit. A job that was retried with the same options before
// has its successor returned as it is now, with created false. Other options create another
// successor, except that a second Spec is a conflict. A job that has not ended is a conflict.
//
// A retried element or step becomes a job without a parent, with the environment that it had.
// With Failed, an array runs its failed elements again, and those given up because others had
// failed, under their indexes; a pipeline runs the steps that did not succeed, at every depth.
// Any other kind of job is then invalid.
func (d *Retries) Retry(ctx context.Context, tenant berth.TenantID, id berth.JobID, o RetryOptions,
	actor string) (job wire.Job, created bool, err error) {
	incarnation, err := d.incarnations.now(ctx, d.pool)
	if err != nil {
		return wire.Job{}, false, err
	}
	err = d.tx(ctx, func(tx pgx.Tx) error {
		job, created = wire.Job{}, false
		r := retrying{tx: tx, o: o, actor: actor, incarnation: incarnation}
		if err := r.lock(ctx, tenant, id); err != nil {
			return err
		}
		if err := r.allowed(ctx); err != nil {
			return err
		}
		hash, err := r.hash()
		if err != nil {
			return err
		}
		key := o.key(hash)
		// The row's lock makes the second of two concurrent retries see the link of the first.
		successor, err := r.successor(ctx, key, hash)
		if err != nil || successor != "" {
			job.ID = successor
			return err
		}
		if job, err = r.submit(ctx); err != nil {
			return err
		}
		created = true
		return linkRetry(ctx, tx, id, job.ID, key)
	})
	if err != nil {
		return wire.Job{}, false, mapError(err, "retry job "+string(id))
	}
	if !created {
		job, err = getJob(ctx, d.core, tenant, job.ID)
		return job, false, err
	}
	d.hub.Publish(TopicSubmit, string(job.ID))
	d.hub.Publish(TopicJob, string(id))
	return job, true, nil
}

// retrying is one call of Retry in its transaction.
type retrying struct {
	tx          pgx.Tx
	o           RetryOptions
	actor       string
	incarnation int64

	old wire.Job // with its row locked
}

// lock locks the old job and the jobs from which it started. A parent comes before its
// children, which the choice of their checkpoints locks.
func (r *retrying) lock(ctx context.Context, tenant berth.TenantID, id berth.JobID) (err error) {
	if !r.o.Fresh {
		// Without a look at the tenant: the lock is brief, and the next statement refuses others.
		if err := lockPlainChain(ctx, r.tx, []berth.JobID{id}); err != nil {
			return err
		}
	}
	r.old, err = lockForRetry(ctx, r.tx, tenant, id)
	return err
}

// allowed returns an error if the kind of the job does not allow the options, or if it is a debug job.
func (r *retrying) allowed(ctx context.Context) error {
	var of berth.JobID
	err := r.tx.QueryRow(ctx, `SELECT job::text FROM holds WHERE debug = $1`, r.old.ID).Scan(&of)
	if err == nil {
		return berth.Errorf(berth.CodeConflict, "job %s held an attempt of job %s and cannot run again; retry that one",
			r.old.ID, of)
	}
	if !isNoRows(err) {
		return err
	}
	switch {
	case r.o.Failed && r.old.Kind != berth.KindArray && r.old.Kind != berth.KindPipeline:
		return berth.Errorf(berth.CodeInvalid, "job %s is neither an array nor a pipeline; retry it without --failed",
			r.old.ID)
	case r.o.Spec != nil && r.old.Kind == berth.KindPipeline:
		return berth.Errorf(berth.CodeConflict, "job %s is a pipeline; resume it with a file", r.old.ID)
	}
	return nil
}

// hash returns the hash of the new spec, nil if the old one is repeated.
func (r *retrying) hash() ([]byte, error) {
	if r.o.Spec == nil {
		return nil, nil
	}
	row, err := r.row(nil)
	return row.hash, err
}

// successor returns the job that an equal retry created, or "". It returns a conflict for a
// new spec if the job was retried with another one.
func (r *retrying) successor(ctx context.Context, key string, hash []byte) (berth.JobID, error) {
	links := map[string]berth.JobID{}
	rows, err := r.tx.Query(ctx, `SELECT options, successor::text FROM job_retries WHERE job = @id`,
		namedArgs{"id": r.old.ID})
	if err != nil {
		return "", err
	}
	var options string
	var id berth.JobID
	if _, err := pgx.ForEachRow(rows, []any{&options, &id}, func() error {
		links[options] = id
		return nil
	}); err != nil {
		return "", err
	}
	if id, ok := links[key]; ok {
		return id, nil
	}
	if id, ok := links[keyResume]; ok && !r.o.Fresh && !r.o.FreshImage {
		return id, nil // it runs the remaining steps
	}
	latest := r.old.RetriedBy
	if latest == nil {
		return "", nil
	}
	// Versions before this table linked by retried_by alone, and had one retry of each job.
	linked := slices.Contains(slices.Collect(maps.Values(links)), *latest)
	if r.o.Spec == nil {
		if linked || r.o.Fresh || r.o.FreshImage {
			return "", nil
		}
		return *latest, nil
	}
	for options := range links {
		if strings.HasSuffix(options, specKey+hex.EncodeToString(hash)) {
			return "", nil // the same spec, with other options
		}
	}
	if linked {
		return "", retriedBefore(r.old.ID, *latest)
	}
	return *latest, sameSpec(ctx, r.tx, r.old.ID, *latest, hash)
}

// retriedBefore is the conflict for a new spec of a job that has a successor.
func retriedBefore(id, successor berth.JobID) error {
	return berth.Errorf(berth.CodeConflict, "job %s was already retried as %s; retry that one", id, successor)
}

// sameSpec returns a conflict unless the successor of a job was submitted with a spec of the
// given hash. The spec of an archived successor is not compared.
func sameSpec(ctx context.Context, tx pgx.Tx, id, successor berth.JobID, hash []byte) error {
	var stored []byte
	err := tx.QueryRow(ctx, `SELECT idem_hash FROM jobs WHERE id = $1`, successor).Scan(&stored)
	if err != nil && !isNoRows(err) {
		return err
	}
	if !bytes.Equal(stored, hash) {
		return retriedBefore(id, successor)
	}
	return nil
}

// submit stores the new job.
func (r *retrying) submit(ctx context.Context) (wire.Job, error) {
	if r.old.Kind == berth.KindPipeline {
		return r.pipeline(ctx)
	}
	indexes := indexesOf(r.old)
	var err error
	switch {
	case r.o.Failed:
		if indexes, err = unsuccessful(ctx, r.tx, r.old); err != nil {
			return wire.Job{}, err
		}
		// The array succeeded, or was canceled before an element failed.
		if len(indexes) == 0 {
			return wire.Job{}, berth.Errorf(berth.CodeConflict, "no element of array %s has failed", r.old.ID)
		}
	case r.o.Spec != nil:
		indexes = nil // the new array has its own
	}
	if r.o.Spec == nil {
		if err := byItself(ctx, r.tx, &r.old); err != nil {
			return wire.Job{}, err
		}
		if _, unread := r.old.Spec.Array.ListOf(); unread {
			return wire.Job{}, berth.Errorf(berth.CodeConflict,
				"array %s never had elements: their list was not read; retry its pipeline", r.old.ID)
		}
	}
	row, err := r.row(indexes)
	if err != nil {
		return wire.Job{}, err
	}
	if err := r.keepDigest(ctx, row); err != nil {
		return wire.Job{}, err
	}
	if !r.o.Fresh {
		from, err := r.sources(ctx, row)
		if err != nil {
			return wire.Job{}, err
		}
		row.startFrom(from)
	}
	return row.insertWithNeeds(ctx, r.tx)
}

// row returns the row of the new job, which is no pipeline. Each call assigns another id.
func (r *retrying) row(indexes []int) (submitRow, error) {
	s := Submission{Tenant: r.old.Tenant, Actor: r.actor, RetryOf: &r.old.ID, Indexes: indexes,
		incarnation: r.incarnation}
	if r.o.Spec != nil {
		s.Spec = withArrayVariables(*r.o.Spec, r.old.Spec)
	} else {
		s.Spec = *r.old.Spec
	}
	return newSubmitRow(s)
}

// AsJob returns the spec of a job that retries id: without the fields of a step, and with the
// jobs of sibling steps in place of their names. An element of an array keeps its index and
// the size of its array, which no file may set.
func (d *Retries) AsJob(ctx context.Context, id berth.JobID, jobSpec spec.Job) (spec.Job, error) {
	as := wire.Job{ID: id, Spec: &jobSpec}
	err := d.tx(ctx, func(tx pgx.Tx) error { return byItself(ctx, tx, &as) })
	return *as.Spec, mapError(err, "retry job "+string(id))
}

// withArrayVariables returns the spec with the variables that Berth had set for an element.
func withArrayVariables(as spec.Job, old *spec.Job) spec.Job {
	env := maps.Clone(as.Env)
	for _, name := range []string{spec.EnvArrayIndex, spec.EnvArraySize} {
		value, ok := old.Env[name]
		if !ok {
			continue
		}
		if env == nil {
			env = map[string]string{}
		}
		env[name] = value
	}
	as.Env = env
	return as
}

// byItself turns the spec of a step into the spec of a job without a pipeline. The job has
// no needs, and its inputs name the jobs of the sibling steps instead of the steps.
func byItself(ctx context.Context, tx pgx.Tx, old *wire.Job) error {
	alone := spec.Alone(*old.Spec)
	old.Spec = &alone
	if !slices.ContainsFunc(old.Spec.OutputsNamed(), func(o spec.NamedOutput) bool { return o.Step != "" }) {
		return nil
	}
	steps, err := siblings(ctx, tx, old.ID)
	if err != nil {
		return err
	}
	jobSpec := old.Spec.OfJobs(steps)
	old.Spec = &jobSpec
	return nil
}

// indexesOf returns the indexes of an array that has only some of its elements, which a
// retry keeps; nil for any other job.
func indexesOf(j wire.Job) []int {
	ranges, err := spec.ParseIndexes(j.Indexes)
	if j.Indexes == "" || err != nil {
		return nil
	}
	var list []int
	for _, r := range ranges {
		for i := r.First; i <= r.Last; i++ {
			list = append(list, i)
		}
	}
	return list
}

// lockForRetry reads the old job and locks its row, live or archived, so that concurrent
// retries of a job run one after the other. A job that has not ended is a conflict.
func lockForRetry(ctx context.Context, tx pgx.Tx, tenant berth.TenantID, id berth.JobID) (wire.Job, error) {
	args := namedArgs{"id": id, "tenant": string(tenant)}
	for _, sql := range []string{`
		SELECT ` + jobDocument + ` || jsonb_build_object(CASE j.kind WHEN 'pipeline' THEN 'pipeline' ELSE 'spec' END,
			s.spec)
		FROM jobs j
		JOIN job_specs s ON s.job = j.id
		WHERE j.id = @id AND (@tenant = '' OR j.tenant = @tenant)
		FOR NO KEY UPDATE OF j`, `
		SELECT job
		FROM archived_jobs
		WHERE id = @id AND (@tenant = '' OR tenant = @tenant)
		FOR NO KEY UPDATE`,
	} {
		rows, err := tx.Query(ctx, sql, args)
		if err != nil {
			return wire.Job{}, err
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[wire.Job])
		if err != nil {
			return wire.Job{}, err
		}
		if len(found) == 0 {
			continue
		}
		if !found[0].Status.Terminal() {
			return wire.Job{}, berth.Errorf(berth.CodeConflict,
				"job %s is %s; only ended jobs can be retried", id, found[0].Status)
		}
		return found[0], nil
	}
	return wire.Job{}, berth.Errorf(berth.CodeNotFound, "no such job %s", id)
}

// linkRetry records the successor in the old job's row, live or archived, under the options of
// the retry. The new job's retry_of is the link back.
func linkRetry(ctx context.Context, tx pgx.Tx, old, successor berth.JobID, options string) error {
	_, err := tx.Exec(ctx, `
		WITH live AS (
			UPDATE jobs SET retried_by = @new WHERE id = @old
		), link AS (
			INSERT INTO job_retries (job, options, successor)
			VALUES (@old, @options, @new)
		)
		UPDATE archived_jobs
		SET job = job || jsonb_build_object('retried_by', @new::uuid)
		WHERE id = @old`,
		namedArgs{"old": old, "new": successor, "options": options})
	return err
}
