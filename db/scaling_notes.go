package db

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// BurstNote is the decision of the scaler on one waiting job. The codes are "waits" and the codes of
// package scaler.
type BurstNote struct {
	Job      berth.JobID       `json:"job"`
	Code     string            `json:"code"`
	Machines []berth.MachineID `json:"machines"`       // launched for the job, or with room for it
	Until    *time.Time        `json:"until,omitzero"` // for code closed: when an offer may be tried again
	Start    *time.Time        `json:"start,omitzero"` // planned, on machines that exist
	Cost     float64           `json:"cost"`           // of the run in the cloud, US dollars; 0: not known
}

// Notes returns all notes, by job. There is at most one for each job that the scaler examines.
func (d *Scaling) Notes(ctx context.Context) (map[berth.JobID]BurstNote, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT to_jsonb(n)
		FROM burst_notes n`)
	if err != nil {
		return nil, mapError(err, "notes of the scaler")
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[BurstNote])
	notes := make(map[berth.JobID]BurstNote, len(list))
	for _, n := range list {
		notes[n.Job] = n
	}
	return notes, mapError(err, "notes of the scaler")
}

// WriteNotes stores notes and deletes the notes of other jobs, in the term of the leader. A leader
// whose term is over changes nothing, so notes of two leaders never mix.
func (d *Scaling) WriteNotes(ctx context.Context, term Term, changed []BurstNote, gone []berth.JobID) error {
	for i := range changed {
		if changed[i].Machines == nil {
			changed[i].Machines = []berth.MachineID{}
		}
	}
	document, err := json.Marshal(changed)
	if err != nil {
		return err
	}
	err = d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `DELETE FROM burst_notes WHERE job = ANY(@gone::uuid[])`, namedArgs{"gone": gone})
		if err != nil || len(changed) == 0 {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO burst_notes (job, code, machines, until, start, cost)
			SELECT n.job, n.code, n.machines, n.until, n.start, n.cost
			FROM jsonb_populate_recordset(NULL::burst_notes, @document) n
			ORDER BY n.job
			ON CONFLICT (job) DO UPDATE
			SET code = excluded.code, machines = excluded.machines, until = excluded.until, start = excluded.start,
				cost = excluded.cost, at = now()`, namedArgs{"document": document})
		return err
	})
	return mapError(err, "notes of the scaler")
}

// ShownNote is a note with the launches of its machines, for users. Launches that have ended are left
// out.
type ShownNote struct {
	BurstNote
	Launches []wire.Launch `json:"launches"`
	Now      time.Time     `json:"now"` // of the database
}

// doubtView removes the kind unsent from launchView while a send has no answer, since that one may have reached the
// cloud.
const doubtView = `CASE WHEN l.error_kind = 'unsent' AND l.sends > l.refusals
	THEN '{"error_kind": null}' ELSE '{}' END::jsonb`

// ShowNotes returns the notes of jobs, by job. A job without a note is missing.
func (d *Scaling) ShowNotes(ctx context.Context, jobs []berth.JobID) (map[berth.JobID]ShownNote, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT to_jsonb(n) || jsonb_build_object('now', clock_timestamp(), 'launches', coalesce((
			SELECT jsonb_agg(`+launchView+` || `+doubtView+` ORDER BY l.machine)
			FROM launches l
			WHERE l.machine = ANY(n.machines) AND l.state NOT IN ('gone', 'failed')), '[]'))
		FROM burst_notes n
		WHERE n.job = ANY(@jobs::uuid[])`, namedArgs{"jobs": jobs})
	if err != nil {
		return nil, mapError(err, "notes of the scaler")
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[ShownNote])
	notes := make(map[berth.JobID]ShownNote, len(list))
	for _, n := range list {
		notes[n.Job] = n
	}
	return notes, mapError(err, "notes of the scaler")
}

// Saves returns the jobs of the list that write checkpoints. Such jobs may run on machines of the spot
// market. An interruption loses little of their work.
func (d *Scaling) Saves(ctx context.Context, jobs []berth.JobID) (map[berth.JobID]bool, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT job
		FROM job_specs
		WHERE job = ANY(@jobs::uuid[]) AND jsonb_typeof(spec -> 'checkpoint') = 'object'`, namedArgs{"jobs": jobs})
	if err != nil {
		return nil, mapError(err, "jobs")
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[berth.JobID])
	saves := make(map[berth.JobID]bool, len(list))
	for _, id := range list {
		saves[id] = true
	}
	return saves, mapError(err, "jobs")
}
