package db

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/internal/lib/failpoint"
	"berth/lifecycle"
)

// isNoRows reports whether a query found no row.
func isNoRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }

// sortedIDs sorts ids in place and returns the slice.
func sortedIDs(ids []berth.JobID) []berth.JobID {
	slices.Sort(ids)
	return ids
}

// liveChild is true for a parent p with a child that has not ended.
const liveChild = `EXISTS (
	SELECT 1 FROM jobs c
	WHERE c.parent = p.id AND c.state IN ('submitted', 'queued', 'scheduled', 'running', 'preempting',
		'canceling', 'retrying'))`

// notifyParents publishes hints at the parents of changed jobs whose reconciliation has work
// to do. It stays silent at most of the thousands of ends in an array, since each signal adds
// some events to the workflow's history. It must be called after the commit of the change: if
// the last two elements end at once, the later call then sees that no element lives. The
// reconciler finds parents for which a notification is lost here.
func notifyParents(ctx context.Context, d *core, children ...berth.JobID) {
	if len(children) == 0 {
		return
	}
	rows, err := d.pool.Query(ctx, `
		SELECT DISTINCT p.id::text
		FROM jobs e
		JOIN jobs p ON p.id = e.parent
		WHERE e.id = ANY(@children::uuid[]) AND p.state NOT IN ('succeeded', 'failed', 'canceled') AND (
			p.held AND NOT e.held AND e.state IN ('submitted', 'queued', 'retrying')
			OR p.kind = 'pipeline' AND p.state = 'queued' AND e.state = 'running'
			OR e.state = 'submitted' AND e.blocked AND NOT e.held
			OR e.state IN ('succeeded', 'failed', 'canceled') AND (
				p.kind = 'pipeline'
				OR e.array_index % @milestone = @milestone - 1 AND p.expanded < p.total
				OR e.state = 'failed' AND (SELECT count(*) FROM jobs f WHERE f.parent = p.id AND f.state = 'failed')
					> p.max_failures
				OR NOT `+liveChild+`))`,
		namedArgs{"children": children, "milestone": milestone})
	var parents []string
	if err == nil {
		parents, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil && ctx.Err() == nil {
		d.log.Warn("parent notification failed, will be reconciled", "jobs", len(children), "err", err)
	}
	// Between the commit and its hint, which the callers do not see.
	if len(parents) > 0 && failpoint.Hit("worker.tell.before") != nil {
		return
	}
	d.hub.Publish(TopicPoke, parents...)
}

// untrimmed is true for a pipeline p with a failure or a cancel request that has a live step
// which is not spared; see lifecycle.Spared. A nested pipeline with a cancel request runs its
// final steps.
const untrimmed = `p.kind = 'pipeline' AND p.state <> 'canceling'
			  AND (p.cancel_requested_at IS NOT NULL OR p.fail_fast AND EXISTS (
				SELECT 1 FROM jobs c WHERE c.parent = p.id AND c.state = 'failed'))
			  AND EXISTS (
				SELECT 1 FROM jobs c
				WHERE c.parent = p.id
				  AND c.state IN ('submitted', 'queued', 'scheduled', 'running', 'preempting', 'retrying')
				  AND NOT CASE WHEN p.cancel_requested_at IS NULL THEN c.branch ELSE c.final END
				  AND NOT (c.kind = 'pipeline' AND c.cancel_requested_at IS NOT NULL))`

// fullTenants selects the tenants whose quota of waiting jobs is used up. The jobs of tenants
// without such a quota are not counted.
const fullTenants = `
			SELECT t.id
			FROM tenants t
			WHERE t.max_queued IS NOT NULL AND t.max_queued <= (
				SELECT count(*)
				FROM jobs w
				WHERE w.tenant = t.id AND w.state IN ('submitted', 'queued', 'retrying') AND ` + countsAsQueued + `)`

// Untended returns at most limit parents that need a reconciliation, for the reconciler,
// which thus repairs lost hints. It leaves out arrays that only have elements to create, of a
// tenant whose quota of waiting jobs is used up: they would stand in front of all others for
// as long.
func (d *Parents) Untended(ctx context.Context, age time.Duration, limit int) ([]Aged, error) {
	return d.aged(ctx, "parents", `
		WITH full_tenants AS MATERIALIZED (`+fullTenants+`
		)
		SELECT p.id, p.attempt, p.state, clock_timestamp() - p.state_at
		FROM jobs p
		WHERE p.kind <> 'job' AND p.state IN ('queued', 'running', 'canceling')
			AND p.state_at < clock_timestamp() - @age::interval AND (
			(p.expanded >= p.total OR p.state = 'canceling') AND NOT `+liveChild+`
			OR p.state = 'canceling' AND EXISTS (
				SELECT 1 FROM jobs c
				WHERE c.parent = p.id AND c.state IN ('submitted', 'queued', 'retrying', 'scheduled',
					'running', 'preempting'))
			OR p.kind = 'pipeline' AND p.state <> 'canceling' AND EXISTS (
				SELECT 1
				FROM jobs j
				`+verdictOfNeeds+`
				WHERE j.parent = p.id AND j.state = 'submitted' AND j.blocked
				  AND (v.verdict IN ('cancel', 'skip') OR v.verdict = 'start' AND NOT j.held AND `+listKnown("j")+`))
			OR `+untrimmed+`
			OR p.kind = 'pipeline' AND p.state = 'queued' AND EXISTS (
				SELECT 1 FROM jobs c
				WHERE c.parent = p.id AND c.kind <> 'job' AND c.state = 'running')
			OR p.state <> 'canceling' AND (
				p.held AND EXISTS (
					SELECT 1 FROM jobs c
					WHERE c.parent = p.id AND NOT c.held AND (c.state IN ('submitted', 'queued', 'retrying')
						OR c.kind <> 'job' AND c.state = 'running'))
				OR p.max_failures < (SELECT count(*) FROM jobs c WHERE c.parent = p.id AND c.state = 'failed')
				OR p.expanded < p.total AND p.tenant NOT IN (SELECT id FROM full_tenants) AND @window >= (
					SELECT count(*) FROM jobs c
					WHERE c.parent = p.id AND c.state IN ('submitted', 'queued', 'scheduled', 'running', 'preempting',
						'canceling', 'retrying'))))
		ORDER BY p.id
		LIMIT @limit`, namedArgs{"age": age, "limit": limit, "window": lifecycle.ArrayWindow - expandBatch})
}
