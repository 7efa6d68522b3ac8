package db

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// ImageRequest is one question to a registry: which digest a tag has. Its answer counts for all jobs of the tenant
// with this image and login that were submitted before the question was claimed.
type ImageRequest struct {
	Claim  string // identifies the question
	Tenant berth.TenantID
	Image  string        // as the job files name it
	Login  string        // secret with the login for the registry; "": none
	Tries  int           // questions so far, with this one, of the job with most
	Age    time.Duration // since the submit of the oldest job
	Jobs   int
	Reason string // why an earlier question gave no digest; "": none was asked
}

// ImageClaim bounds a call of Claim.
type ImageClaim struct {
	Crowded []berth.TenantID // tenants at their limit of questions in flight
	Each    int              // most questions of one tenant
	Limit   int              // most questions in all
	Lease   time.Duration    // after which an unanswered question is due again
}

// openRequest is true for a row q of image_requests whose image may still be resolved.
const openRequest = `q.state IN ('waiting', 'resolving')`

// Alive notes that a process resolves images. Submits request digests until the given time has passed.
func (d *Images) Alive(ctx context.Context, span time.Duration) error {
	_, err := d.pool.Exec(ctx, `
		UPDATE image_resolver
		SET until = greatest(until, now() + @span::interval)`, namedArgs{"span": span})
	return mapError(err, "image resolver")
}

// Claim takes questions that are due, the longest overdue first, at most c.Each of one tenant. A question takes all
// rows of its tenant, image and login, due or not, except rows of a question in flight. A quarantined cluster asks
// nothing.
func (d *Images) Claim(ctx context.Context, c ImageClaim) ([]ImageRequest, error) {
	// As in Outbox.Claim, the recursion steps from tenant to tenant along the index.
	rows, err := d.pool.Query(ctx, `
		WITH RECURSIVE t (tenant) AS (
			SELECT min(q.tenant) FROM image_requests q WHERE `+openRequest+` AND NOT `+quarantined+`
			UNION ALL
			SELECT (SELECT min(q.tenant) FROM image_requests q WHERE q.tenant > t.tenant AND `+openRequest+`)
			FROM t
			WHERE t.tenant IS NOT NULL
		), due AS MATERIALIZED (
			SELECT g.*
			FROM t
			CROSS JOIN LATERAL (
				SELECT q.tenant, q.image, q.login, min(q.due_at) AS due_at
				FROM image_requests q
				WHERE q.tenant = t.tenant AND q.due_at <= now() AND `+openRequest+`
				GROUP BY q.tenant, q.image, q.login
				ORDER BY min(q.due_at)
				LIMIT @each
			) g
			WHERE t.tenant <> ALL (@crowded::text[])
			ORDER BY g.due_at
			LIMIT @limit
		), named AS MATERIALIZED (
			SELECT d.tenant, d.image, d.login, gen_random_uuid() AS claim FROM due d
		), picked AS MATERIALIZED (
			SELECT q.job, n.claim
			FROM named n
			JOIN image_requests q ON q.tenant = n.tenant AND q.image = n.image AND q.login = n.login
			WHERE q.state = 'waiting' OR q.state = 'resolving' AND q.due_at <= now()
			FOR UPDATE OF q SKIP LOCKED
		), claimed AS (
			UPDATE image_requests q
			SET state = 'resolving', claim = p.claim, tries = q.tries + 1, due_at = now() + @lease::interval
			FROM picked p
			WHERE q.job = p.job
			RETURNING q.claim, q.tenant, q.image, q.login, q.tries, q.created_at, q.reason
		)
		SELECT claim::text, tenant, image, login, max(tries), now() - min(created_at), count(*), max(reason)
		FROM claimed
		GROUP BY claim, tenant, image, login`,
		namedArgs{"crowded": nonNilList(c.Crowded), "each": c.Each, "limit": c.Limit, "lease": c.Lease})
	if err != nil {
		return nil, mapError(err, "image requests")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ImageRequest])
	return list, mapError(err, "image requests")
}

// imageBatch is the number of jobs whose digests are stored in one transaction.
const imageBatch = 500

// Resolved stores the digest in the jobs of a question, and ends their requests. A job that has a digest keeps it: a
// machine was first. If another process has claimed the question since, Resolved changes nothing.
func (d *Images) Resolved(ctx context.Context, r ImageRequest, digest string) error {
	if !imageDigest.MatchString(digest) {
		return berth.Errorf(berth.CodeInvalid, "image %.200s: %.100q is not the digest of an image", r.Image, digest)
	}
	return d.settle(ctx, r, `
		WITH ended AS (
			DELETE FROM image_requests q
			WHERE q.job = ANY(@jobs::uuid[]) AND q.claim = @claim::uuid
			RETURNING q.job
		), resolved AS (
			UPDATE jobs j
			SET image_digest = @digest, image_digest_by = 'submit', image_digest_at = clock_timestamp(),
				event_seq = j.event_seq + 1
			FROM ended e
			WHERE j.id = e.job AND `+needsDigest+`
			RETURNING j.id, j.attempt, j.event_seq
		)`, wire.Event{Kind: wire.EventImageResolved, Detail: fmt.Sprintf("%s is %s", r.Image, digest),
		Facts: &wire.EventFacts{Digest: digest}}, namedArgs{"digest": digest})
}

// Unresolved ends the requests of a question without a digest, of jobs that were submitted at least age ago, and
// keeps the reason for their users: the first machine decides.
func (d *Images) Unresolved(ctx context.Context, r ImageRequest, age time.Duration, state wire.ImageState,
	reason string) error {
	return d.settle(ctx, r, `
		WITH ended AS (
			UPDATE image_requests q
			SET state = @state, claim = NULL, reason = @reason
			WHERE q.job = ANY(@jobs::uuid[]) AND q.claim = @claim::uuid
			RETURNING q.job
		), resolved AS (
			UPDATE jobs j
			SET event_seq = j.event_seq + 1
			FROM ended e
			WHERE j.id = e.job AND `+needsDigest+`
			RETURNING j.id, j.attempt, j.event_seq
		)`, wire.Event{Kind: wire.EventImageUnresolved, Detail: reason},
		namedArgs{"state": state, "reason": reason, "age": age})
}

// needsDigest is true for a row j of jobs that a digest found by the control plane may still reach. A job that runs
// without a digest runs an image that is in no registry, or has an agent that has not reported it.
const needsDigest = `coalesce(j.image_digest, '') = '' AND j.state NOT IN ('succeeded', 'failed', 'canceled')
			  AND NOT (j.kind = 'job' AND j.state = 'running')`

// settle runs a statement over the jobs of a question, some at a time, and adds the event to each job that the
// statement returns as resolved. Rows of jobs are locked before the requests, as a claim of the job's machine does.
func (d *Images) settle(ctx context.Context, r ImageRequest, with string, e wire.Event, args namedArgs) error {
	args["claim"], args["kind"], args["detail"], args["facts"] = r.Claim, e.Kind, e.Detail, e.Facts
	if args["age"] == nil {
		args["age"] = time.Duration(0)
	}
	for {
		var jobs, changed []string
		err := d.tx(ctx, func(tx pgx.Tx) error {
			var err error
			jobs, err = list(ctx, tx, `
				SELECT q.job::text
				FROM image_requests q
				WHERE q.claim = @claim::uuid AND q.created_at <= now() - @age::interval
				ORDER BY q.job
				LIMIT @batch`, namedArgs{"claim": r.Claim, "age": args["age"], "batch": imageBatch})
			if err != nil || len(jobs) == 0 {
				return err
			}
			args["jobs"] = jobs
			if _, err := tx.Exec(ctx, `
				SELECT 1
				FROM jobs
				WHERE id = ANY(@jobs::uuid[])
				ORDER BY kind = 'job', id
				FOR NO KEY UPDATE`, namedArgs{"jobs": jobs}); err != nil {
				return err
			}
			changed, err = list(ctx, tx, with+`
				INSERT INTO job_events (job, seq, at, kind, attempt, actor, detail, facts)
				SELECT id, event_seq, clock_timestamp(), @kind, attempt, 'images', @detail, @facts
				FROM resolved
				RETURNING job::text`, args)
			return err
		})
		if err != nil {
			return mapError(err, "image "+r.Image)
		}
		d.hub.Publish(TopicJob, changed...)
		if len(jobs) < imageBatch {
			return nil
		}
	}
}

// list returns the texts of a query of one column.
func list(ctx context.Context, tx pgx.Tx, sql string, args namedArgs) ([]string, error) {
	rows, err := tx.Query(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// Postpone makes the rows of a question due again after wait. reason is why the question gave no digest. With asked
// false, the registry was not asked, and the try does not count.
func (d *Images) Postpone(ctx context.Context, r ImageRequest, wait time.Duration, reason string, asked bool) error {
	_, err := d.pool.Exec(ctx, `
		UPDATE image_requests q
		SET state = 'waiting', claim = NULL, due_at = now() + @wait::interval, reason = @reason,
			tries = q.tries - CASE WHEN @asked THEN 0 ELSE 1 END
		WHERE q.claim = @claim::uuid`,
		namedArgs{"claim": r.Claim, "wait": wait, "reason": reason, "asked": asked})
	return mapError(err, "image "+r.Image)
}

// requestsImage adds the arguments about the image of a job to args. The control plane resolves only names of
// registries: a reference with a digest has nothing to resolve, and an id of an engine names no registry.
func requestsImage(args namedArgs, s spec.Job) {
	args["image"], args["image_login"] = "", s.ImageAuth
	args["digest"], args["digest_by"], args["digest_at"] = "", nil, nil
	if _, ok := spec.ImageName(s.Image); ok && !spec.PinnedImage(s.Image) {
		args["image"] = s.Image
	}
}

// keepDigest makes the row's job run a digest that is known at the submit, so none is requested. at is when the digest
// was found; nil: unknown.
func (r submitRow) keepDigest(digest string, at *time.Time) {
	if digest == "" || r.args["image"] == "" {
		return
	}
	r.args["image"] = ""
	r.args["digest"], r.args["digest_by"], r.args["digest_at"] = digest, wire.DigestByRetry, at
}

// requestImage is a clause of the statement that inserts a job: it requests the digest of the job's image while a
// process resolves images.
const requestImage = `
			INSERT INTO image_requests (job, tenant, image, login)
			SELECT j.id, j.tenant, @image::text, @image_login::text
			FROM j
			WHERE @image::text <> '' AND EXISTS (SELECT 1 FROM image_resolver WHERE until > now())`
