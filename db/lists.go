package db

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// An array step with array.from gets its elements from an output of a step that it needs. Its
// row has no indexes at all until the leader has read the output from the object store and
// FillArray has stored the elements. Until then no pass starts the step, and the needs of its
// row are hidden from replicas of the version before; see migration 0049.

// listKnown is true for a row of jobs, under an alias, that is no array without elements.
func listKnown(alias string) string {
	return `(` + alias + `.kind <> 'array' OR ` + alias + `.indexes IS NULL OR ` + alias + `.indexes <> '{}')`
}

// noJob is lower than the id of any job.
const noJob berth.JobID = "00000000-0000-0000-0000-000000000000"

// ListWanted is an array whose list is to be read.
type ListWanted struct {
	Array  berth.JobID
	From   string // array.from
	Object string // key of the output's archive; "": there is no such output
	Bytes  int64  // of the output's content
}

// ListsWanted returns at most limit arrays that would start if their elements were known: first
// those with a higher id than after, and then the others.
func (d *Parents) ListsWanted(ctx context.Context, after berth.JobID, limit int) ([]ListWanted, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT j.id::text, coalesce(s.spec #>> '{array,from}', ''), coalesce(o.object, ''), coalesce(o.bytes, 0)
		FROM jobs p
		JOIN jobs j ON j.parent = p.id AND j.kind = 'array' AND j.indexes = '{}'
		JOIN job_specs s ON s.job = j.id
		`+verdictOfNeeds+`
		LEFT JOIN LATERAL (
			SELECT x.object, x.bytes
			FROM outputs x
			WHERE x.job = coalesce((
					SELECT n.id
					FROM jobs n
					WHERE n.parent = j.parent AND n.step = substring(s.spec #>> '{array,from}' FROM '^job:([^/]*)/')),
				substring(s.spec #>> '{array,from}' FROM '^job:([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/')::uuid)
			  AND x.name = substring(s.spec #>> '{array,from}' FROM '^job:[^/]*/(.*)$')
			ORDER BY x.attempt DESC, x.rank
			LIMIT 1) o ON true
		WHERE p.kind = 'pipeline' AND p.state IN ('queued', 'running') AND j.state = 'submitted' AND j.blocked
		  AND NOT j.held AND NOT p.held AND v.verdict = 'start'
		ORDER BY j.id <= @after::uuid, j.id
		LIMIT @limit`, namedArgs{"after": cmp.Or(after, noJob), "limit": limit})
	if err != nil {
		return nil, mapError(err, "lists of arrays")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[ListWanted])
	return list, mapError(err, "lists of arrays")
}

// FillArray stores the elements of an array. With a fault, or entries that cannot be elements,
// the array fails with the reason list_invalid, which the user must repair. Without entries
// the array is skipped. An array that has its elements, or has ended, stays as it is.
func (d *Parents) FillArray(ctx context.Context, id berth.JobID, each []map[string]string, fault string) error {
	changed := false
	err := d.tx(ctx, func(tx pgx.Tx) error {
		changed = false
		var from string
		var raw []byte
		err := tx.QueryRow(ctx, `
			SELECT s.spec, s.spec #>> '{array,from}'
			FROM jobs j
			JOIN job_specs s ON s.job = j.id
			WHERE j.id = @id AND j.state = 'submitted' AND j.blocked AND j.kind = 'array' AND j.indexes = '{}'
			FOR NO KEY UPDATE OF j`, namedArgs{"id": id}).Scan(&raw, &from)
		if isNoRows(err) {
			return nil
		}
		if err != nil {
			return err
		}
		var jobSpec spec.Job
		if err := json.Unmarshal(raw, &jobSpec); err != nil {
			return fmt.Errorf("read spec of array %s: %w", id, err)
		}
		changed = true
		if fault == "" {
			if jobSpec, err = spec.Filled(jobSpec, each); err != nil {
				fault = err.Error()
			}
		}
		switch {
		case fault != "":
			fault = strings.ReplaceAll(fault, "\x00", "?") // which no reason can hold
			return failArray(ctx, tx, id, &berth.Reason{Code: wire.ReasonListInvalid,
				Message: fmt.Sprintf("array.from: %s cannot be used: %s", from, fault),
				Hint:    "write a JSON list of at most " + berth.BytesText(spec.MaxListBytes) + " to the output"})
		case len(each) == 0:
			return skipArray(ctx, tx, id, &berth.Reason{Code: wire.ReasonSkipped,
				Message: "the list " + from + " is empty"})
		}
		return storeElements(ctx, tx, id, jobSpec)
	})
	if err == nil && changed {
		d.hub.Publish(TopicJob, string(id))
		var parent string
		if err = d.pool.QueryRow(ctx, `SELECT parent::text FROM jobs WHERE id = $1`, id).Scan(&parent); err == nil {
			d.hub.Publish(TopicPoke, parent)
		}
	}
	return mapError(err, "array "+string(id))
}

// storeElements writes the elements into the spec of an array. Any version creates them from
// there.
func storeElements(ctx context.Context, tx pgx.Tx, id berth.JobID, jobSpec spec.Job) error {
	raw, err := json.Marshal(jobSpec)
	if err != nil {
		return err
	}
	args := namedArgs{"id": id, "spec": raw, "total": len(jobSpec.Array.Each)}
	if _, err := tx.Exec(ctx, `UPDATE job_specs SET spec = @spec WHERE job = @id`, args); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		UPDATE jobs
		SET total = @total, indexes = NULL, version = version + 1, actor = 'workflow'
		WHERE id = @id`, args)
	return err
}

// failArray fails a blocked array: by way of queued, as the state table has it.
func failArray(ctx context.Context, tx pgx.Tx, id berth.JobID, reason *berth.Reason) error {
	for _, sql := range []string{`
		UPDATE jobs
		SET state = 'queued', blocked = false, version = version + 1, actor = 'workflow'
		WHERE id = @id`, `
		UPDATE jobs j
		SET state = 'failed', version = version + 1, actor = 'workflow', reason = @reason, tally = ` + liveTally + `
		WHERE id = @id`} {
		if _, err := tx.Exec(ctx, sql, namedArgs{"id": id, "reason": reason}); err != nil {
			return err
		}
	}
	return nil
}

// skipArray ends a blocked array without elements.
func skipArray(ctx context.Context, tx pgx.Tx, id berth.JobID, reason *berth.Reason) error {
	_, err := tx.Exec(ctx, `
		UPDATE jobs j
		SET state = 'canceled', version = version + 1, actor = 'workflow', reason = @reason, tally = `+liveTally+`
		WHERE id = @id`, namedArgs{"id": id, "reason": reason})
	return err
}
