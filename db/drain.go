package db

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// attemptRef names an attempt of a job.
type attemptRef struct {
	Job     berth.JobID
	Attempt int
}

// list returns the attempts that a query selects.
func (d *Attempts) list(ctx context.Context, sql string, args namedArgs) ([]attemptRef, error) {
	rows, err := d.pool.Query(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[attemptRef])
}

// leaderOrders sends orders to members of several attempts, with one transaction for each
// attempt, and returns the number of attempts with a new order. give writes the orders of
// a locked job; leaderOrders calls give only if the attempt is current and holds capacity.
// Each order adds an event to the job, and the machines are notified after the commit.
func (d *Attempts) leaderOrders(ctx context.Context, term Term, refs []attemptRef, detail string,
	give func(pgx.Tx, lockedJob) ([]orderedRank, error)) (int, error) {
	given := 0
	for _, ref := range refs {
		var told []orderedRank
		err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
			told = nil
			job, err := lockJob(ctx, tx, "", ref.Job, ref.Attempt)
			if err != nil || job.Attempt != ref.Attempt || !job.State.HoldsCapacity() {
				return err
			}
			if told, err = give(tx, job); err != nil || len(told) == 0 {
				return err
			}
			var where []string
			for _, r := range told {
				where = append(where, fmt.Sprintf("member %d on %s", r.rank, r.machine))
			}
			return addEvent(ctx, tx, job.ID, wire.Event{
				Kind: wire.EventOrdered, Attempt: job.Attempt, Actor: "leader",
				Detail: detail + ": " + strings.Join(where, ", "),
			})
		})
		if err != nil {
			return given, mapError(err, "job "+string(ref.Job))
		}
		if len(told) > 0 {
			given++
			touched{job: ref.Job, machines: machines(told)}.publish(d.hub)
		}
	}
	return given, nil
}

// DrainOverdue orders jobs on draining machines past the drain deadline to checkpoint and
// stop within their grace period, at most limit per call. The jobs return to the queue.
// DrainOverdue returns the number of jobs with a new order.
func (d *Attempts) DrainOverdue(ctx context.Context, term Term, limit int) (int, error) {
	refs, err := d.list(ctx, `
		SELECT DISTINCT a.job, a.attempt
		FROM machines m
		JOIN allocations a ON a.machine_id = m.id AND a.forgotten_at IS NULL
		JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
		WHERE m.state = 'draining' AND m.drain_deadline <= clock_timestamp()
		  AND a.state = 'active' AND NOT a.orders ? 'stop' AND j.state IN ('scheduled', 'running')
		ORDER BY 1
		LIMIT @limit`, namedArgs{"limit": limit})
	if err != nil {
		return 0, mapError(err, "draining machines")
	}
	return d.leaderOrders(ctx, term, refs, "checkpoint and stop (machine draining)",
		func(tx pgx.Tx, job lockedJob) ([]orderedRank, error) {
			return orderStop(ctx, tx, job.Job, berth.Orders{Checkpoint: true, Stop: true})
		})
}

// AnnounceDrains notifies jobs of drains of their machines, at most limit jobs per call: each
// drained machine adds an event to the job with reason and deadline, the job's webhooks for
// draining get a call, and members of a job with checkpoint.interval are ordered to write a
// checkpoint. A job is notified once of each drain_notice, which changes with reason and
// deadline of the drain. AnnounceDrains returns the number of notified jobs.
//
// Without an interval the checkpoint signal may make a program save and exit, so such a job
// gets its signal only with the order to stop.
func (d *Attempts) AnnounceDrains(ctx context.Context, term Term, limit int) (int, error) {
	refs, err := d.list(ctx, `
		SELECT DISTINCT a.job, a.attempt
		FROM machines m
		JOIN allocations a ON a.machine_id = m.id AND a.forgotten_at IS NULL
		JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
		WHERE `+unannounced+` AND j.state IN ('scheduled', 'running')
		ORDER BY 1
		LIMIT @limit`, namedArgs{"limit": limit})
	if err != nil {
		return 0, mapError(err, "draining machines")
	}
	notified := 0
	for _, ref := range refs {
		var hints touched
		err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
			hints = touched{}
			job, err := lockJob(ctx, tx, "", ref.Job, ref.Attempt)
			if err != nil || job.Attempt != ref.Attempt || !job.State.HoldsCapacity() {
				return err
			}
			hints, err = announcement{job: job.ID, attempt: job.Attempt, actor: "leader", save: true}.write(ctx, tx)
			return err
		})
		if err != nil {
			return notified, mapError(err, "job "+string(ref.Job))
		}
		if len(hints.machines) > 0 {
			notified++
			hints.publish(d.hub)
		}
	}
	return notified, nil
}

// unannounced is true for a member a on a draining machine m if its job was not notified of
// this drain. Without a stop order: a stopping job needs no notice. A machine that an older
// program has drained before the column existed has no number, and is left out.
const unannounced = `m.state = 'draining' AND a.state = 'active' AND NOT a.orders ? 'stop'
	AND m.drain_notice IS NOT NULL AND a.drain_notice IS DISTINCT FROM m.drain_notice`

// drained is a member on a draining machine, of whose drain the job was just notified.
type drained struct {
	Rank     int
	Machine  berth.MachineID
	Reason   string
	Deadline *time.Time // nil: the job may run to its end
}

// text describes the drain for the job's history.
func (m drained) text() string {
	text := fmt.Sprintf("machine %s is draining (%s); ", m.Machine, m.Reason)
	if m.Deadline == nil {
		return text + "the job may run to its end there"
	}
	return text + "the job is moved to another machine at " + m.Deadline.UTC().Format(time.RFC3339)
}

// announcement notifies one locked job of the drains of its machines.
type announcement struct {
	job     berth.JobID
	attempt int
	actor   string          // of the events
	save    bool            // members of a job with checkpoint.interval are ordered to save
	only    berth.MachineID // "": all its machines
}

// write stores the announcement.
func (a announcement) write(ctx context.Context, tx pgx.Tx) (touched, error) {
	rows, err := tx.Query(ctx, `
		UPDATE allocations a
		SET drain_notice = m.drain_notice,
			orders = CASE
				WHEN s.saves AND @save THEN a.orders || jsonb_build_object('save', m.drain_notice)
				ELSE a.orders
			END
		FROM machines m, (
			SELECT coalesce(spec -> 'checkpoint' ? 'interval' AND spec -> 'checkpoint' ? 'signal', false) AS saves
			FROM job_specs WHERE job = @job) s
		WHERE a.job = @job AND a.attempt = @attempt AND m.id = a.machine_id
		  AND (@only = '' OR m.id = @only) AND `+unannounced+`
		RETURNING a.rank, m.id, coalesce(m.drain_reason, ''), m.drain_deadline`,
		namedArgs{"job": a.job, "attempt": a.attempt, "save": a.save, "only": string(a.only)})
	if err != nil {
		return touched{}, err
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[drained])
	if err != nil {
		return touched{}, err
	}
	slices.SortFunc(list, func(a, b drained) int { return cmp.Compare(a.Rank, b.Rank) })
	hints := touched{job: a.job}
	for _, m := range list {
		// Several members on one machine are one event.
		if slices.Contains(hints.machines, m.Machine) {
			continue
		}
		hints.machines = append(hints.machines, m.Machine)
		err := addEvent(ctx, tx, a.job, wire.Event{
			Kind: wire.EventDraining, Attempt: a.attempt, Actor: a.actor, Detail: m.text(),
			Facts: &wire.EventFacts{Machine: m.Machine, Deadline: m.Deadline},
		})
		if err != nil {
			return hints, err
		}
		if err := callDraining(ctx, tx, a.job, m); err != nil {
			return hints, err
		}
	}
	return hints, nil
}

// drainingNotice is the payload about a job j on a machine that is drained: the one of a status, with the machine.
const drainingNotice = `
	jsonb_build_object('type', 'job.' || @on::text, 'timestamp', clock_timestamp(), 'data',
		jsonb_strip_nulls(jsonb_build_object(
			'id', j.id, 'name', j.name, 'tenant', j.tenant, 'status', j.state,
			'labels', nullif(j.labels, '{}'),
			'attempt', j.attempt, 'submitted_at', j.submitted_at, 'started_at', j.started_at,
			'machine', @machine::text, 'drain_reason', @reason::text,
			'drain_deadline', @deadline::timestamptz)))`

// callDraining writes the calls of the job's webhooks and the notifications of its channels for draining. It follows
// the event whose number is part of the calls' ids.
func callDraining(ctx context.Context, tx pgx.Tx, job berth.JobID, m drained) error {
	args := namedArgs{"job": job, "machine": m.Machine, "reason": m.Reason, "deadline": m.Deadline,
		"on": spec.NotifyDraining}
	_, err := tx.Exec(ctx, `
		INSERT INTO notices (job, seq, hook, tenant, url, status, body)
		SELECT j.id, j.event_seq, h.n - 1, j.tenant, h.hook ->> 'url', @on, `+drainingNotice+`
		FROM jobs j
		JOIN job_specs s ON s.job = j.id
		CROSS JOIN jsonb_array_elements(s.spec -> 'notify') WITH ORDINALITY AS h (hook, n)
		WHERE j.id = @job AND @on = ANY (j.notify) AND h.hook -> 'on' ? @on
		  AND nullif(h.hook ->> 'url', '') IS NOT NULL`, args)
	if err == nil {
		_, err = tx.Exec(ctx, `
			SELECT notify_channels(channels_for(j.tenant, '{}', ARRAY(
				SELECT h.hook ->> 'channel'
				FROM jsonb_array_elements(s.spec -> 'notify') AS h (hook)
				WHERE h.hook -> 'on' ? @on AND h.hook ? 'channel')), `+drainingNotice+`)
			FROM jobs j
			JOIN job_specs s ON s.job = j.id
			WHERE j.id = @job AND @on = ANY (j.notify)`, args)
	}
	if err != nil {
		return fmt.Errorf("write calls of job %s: %w", job, err)
	}
	return nil
}
