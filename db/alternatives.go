package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/lifecycle"
	"berth/spec"
	"berth/wire"
)

// addAlternatives adds the arguments of submitRow.queue for the alternatives of a job, if it has any: the
// class of each choice of hardware, from resources on, with its request and its wait.
func addAlternatives(args namedArgs, s spec.Job) {
	if len(s.Alternatives) == 0 {
		return
	}
	requests := spec.RequestsOf(s)
	classes, after := make([]string, len(requests)), make([]int64, len(requests))
	for i, r := range requests {
		classes[i] = r.Class()
		if i > 0 {
			after[i] = s.Alternatives[i-1].After.Std().Milliseconds()
		}
	}
	args["alternatives"], args["alternatives_after"] = classes, after
	args["choice_classes"], args["choices"] = classes[1:], requests[1:]
}

// alternativesColumns are the columns of a job j for its alternatives, in the order of QueueJob. A job
// whose wait has not begun counts as if it began with the submission.
const alternativesColumns = `j.alternatives, j.alternative,
	CASE WHEN j.alternatives IS NOT NULL THEN (
		SELECT array_agg(coalesce(j.alternatives_from, j.submitted_at + j.unaged_ms * interval '1 millisecond')
			+ a.after * interval '1 millisecond' ORDER BY a.n)
		FROM unnest(j.alternatives_after) WITH ORDINALITY AS a (after, n)) END`

// growAlternatives returns the request of each choice of hardware of a job with more memory, with its class.
// The next attempt may get another hardware than the last one, and needs the memory on all of them.
func growAlternatives(ctx context.Context, tx pgx.Tx, job berth.JobID) (classes []string, requests []spec.Request,
	err error) {
	rows, err := tx.Query(ctx, `
		SELECT c.request
		FROM jobs j, unnest(j.alternatives) WITH ORDINALITY AS a (class, n)
		JOIN classes c ON c.class = a.class
		WHERE j.id = $1
		ORDER BY a.n`, job)
	if err != nil {
		return nil, nil, err
	}
	old, err := pgx.CollectRows(rows, pgx.RowTo[spec.Request])
	for _, r := range old {
		r = lifecycle.Grow(r, nil)
		classes, requests = append(classes, r.Class()), append(requests, r)
	}
	return classes, requests, err
}

// queueAlternatives adds an event for each start of a batch that changes the alternative in force. It
// follows the update of the jobs.
func queueAlternatives(batch *pgx.Batch, starts []berth.Start, p *present) {
	var jobs []berth.JobID
	var details []string
	var facts []wire.EventFacts
	for _, s := range starts {
		h := p.hardware[s.Job]
		if h.number == s.Alternative {
			continue
		}
		change := wire.AlternativeChange{From: h.number, To: s.Alternative, WaitedSeconds: h.waited}
		jobs, details = append(jobs, s.Job), append(details, change.String())
		facts = append(facts, wire.EventFacts{Alternative: &change})
	}
	if len(jobs) == 0 {
		return
	}
	batch.Queue(`
		WITH bumped AS (
			UPDATE jobs j
			SET event_seq = j.event_seq + 1
			FROM unnest($1::uuid[], $2::text[], $3::jsonb[]) AS s(job, detail, facts)
			WHERE j.id = s.job
			RETURNING j.id, j.event_seq, j.attempt, s.detail, s.facts
		)
		INSERT INTO job_events (job, seq, at, kind, attempt, actor, detail, facts)
		SELECT id, event_seq, clock_timestamp(), 'alternative', attempt, 'leader', detail, facts
		FROM bumped`, jobs, details, facts)
}
