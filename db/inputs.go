package db

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// chosenOutput is which of the outputs of that name a job has left: of its last
// attempt that stored one, the lowest member's. Only what has succeeded has left
// anything.
const chosenOutput = `(
	SELECT o.job, o.attempt, o.rank, o.name
	FROM outputs o
	WHERE o.job = x.source AND o.name = x.name
	ORDER BY o.attempt DESC, o.rank
	LIMIT 1)`

// bindOutputs has a new job take the outputs of ended jobs that its inputs name.
// Another tenant's are not told from those that do not exist. Outputs of steps
// are bound when the step is let go; see bindSteps.
func bindOutputs(ctx context.Context, tx pgx.Tx, tenant berth.TenantID, job berth.JobID,
	named []spec.NamedOutput) error {
	var inputs []int
	var sources []berth.JobID
	var names []string
	for _, o := range named {
		if o.Job != "" {
			inputs, sources, names = append(inputs, o.Input), append(sources, o.Job), append(names, o.Name)
		}
	}
	if len(inputs) == 0 {
		return nil
	}
	if err := holdOutputs(ctx, tx); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, `
		WITH x AS (
			SELECT * FROM unnest(@inputs::int[], @sources::uuid[], @names::text[]) AS x (input, source, name)
		)
		INSERT INTO job_inputs (job, input, source, attempt, rank, name)
		SELECT @job::uuid, x.input, o.job, o.attempt, o.rank, o.name
		FROM x
		JOIN LATERAL `+chosenOutput+` o ON true
		WHERE EXISTS (SELECT 1 FROM jobs s WHERE s.id = x.source AND s.tenant = @tenant AND s.state = 'succeeded')
		   OR EXISTS (SELECT 1 FROM archived_jobs s WHERE s.id = x.source AND s.tenant = @tenant
		     AND s.state = 'succeeded')
		RETURNING input`,
		pgx.NamedArgs{"tenant": tenant, "job": job, "inputs": inputs, "sources": sources, "names": names})
	if err != nil {
		return err
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil || len(found) == len(inputs) {
		return err
	}
	return noOutput(named, found)
}

// noOutput refuses a job that names what no job of its tenant has left.
func noOutput(named []spec.NamedOutput, found []int) error {
	e := &berth.Error{Code: berth.CodeInvalid, Slug: berth.SlugInvalidSpec}
	bound := map[int]bool{}
	for _, i := range found {
		bound[i] = true
	}
	for _, o := range named {
		if o.Job == "" || bound[o.Input] {
			continue
		}
		e.Message = fmt.Sprintf("there is no output %s", o.OutputRef)
		e.Fields = append(e.Fields, berth.FieldError{
			Field:   fmt.Sprintf("inputs[%d].from", o.Input),
			Detail:  fmt.Sprintf("there is no job %s of yours that has succeeded and left an output %q", o.Job, o.Name),
			Allowed: "what berth outputs list JOB shows of a job that has succeeded",
		})
	}
	return e
}

// bindSteps has steps whose needs have succeeded take what those have left: named
// as steps, or as the jobs that steps of other levels are, which had left nothing
// when they were stored.
func bindSteps(ctx context.Context, tx pgx.Tx, ids []string) error {
	_, err := tx.Exec(ctx, `
		WITH x AS (
			SELECT j.id AS job, i.place - 1 AS input, n.id AS source,
				substring(i.spec ->> 'from' FROM '^job:[^/]*/(.*)$') AS name
			FROM jobs j
			JOIN job_specs s ON s.job = j.id
			CROSS JOIN LATERAL jsonb_array_elements(s.spec -> 'inputs') WITH ORDINALITY AS i (spec, place)
			JOIN jobs n ON n.parent = j.parent AND n.step = substring(i.spec ->> 'from' FROM '^job:([^/]*)/')
			WHERE j.id = ANY(@ids::uuid[]) AND s.spec ? 'inputs'
			UNION ALL
			SELECT j.id, i.place - 1, n.id, substring(i.spec ->> 'from' FROM '^job:[^/]*/(.*)$')
			FROM jobs j
			JOIN job_specs s ON s.job = j.id
			CROSS JOIN LATERAL jsonb_array_elements(s.spec -> 'inputs') WITH ORDINALITY AS i (spec, place)
			JOIN jobs n ON n.id = substring(i.spec ->> 'from'
				FROM '^job:([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/')::uuid
			WHERE j.id = ANY(@ids::uuid[]) AND s.spec ? 'inputs' AND n.tenant = j.tenant AND n.state = 'succeeded'
		)
		INSERT INTO job_inputs (job, input, source, attempt, rank, name)
		SELECT x.job, x.input, o.job, o.attempt, o.rank, o.name
		FROM x
		JOIN LATERAL `+chosenOutput+` o ON true
		ON CONFLICT DO NOTHING`, pgx.NamedArgs{"ids": ids})
	return err
}

// siblings are the steps of the pipeline that a step is one of, by name.
func siblings(ctx context.Context, tx pgx.Tx, step berth.JobID) (map[string]berth.JobID, error) {
	rows, err := tx.Query(ctx, `
		WITH p AS (
			SELECT parent FROM jobs WHERE id = @id
			UNION ALL
			SELECT parent FROM archived_jobs WHERE id = @id
		)
		SELECT j.step, j.id::text FROM jobs j, p WHERE j.parent = p.parent AND j.step IS NOT NULL
		UNION ALL
		SELECT j.job ->> 'step', j.id::text FROM archived_jobs j, p
		WHERE j.parent = p.parent AND j.job ->> 'step' IS NOT NULL`, pgx.NamedArgs{"id": step})
	if err != nil {
		return nil, err
	}
	return collectSteps(rows)
}

func collectSteps(rows pgx.Rows) (map[string]berth.JobID, error) {
	steps := map[string]berth.JobID{}
	var name string
	var id berth.JobID
	_, err := pgx.ForEachRow(rows, []any{&name, &id}, func() error {
		steps[name] = id
		return nil
	})
	return steps, err
}

// ContentFor returns the object that holds an archive, an upload or another
// job's output, for the machine that holds an allocation of a job which needs
// it: at the current attempt, in the machine's current session.
func (d *Objects) ContentFor(ctx context.Context, machine berth.MachineID, at Session, alloc berth.AllocationID,
	a berth.Address) (object string, err error) {
	var folder string
	err = d.pool.QueryRow(ctx, `
		SELECT coalesce((
		           SELECT u.folder
		           FROM job_uploads n
		           JOIN uploads u ON u.tenant = j.tenant AND u.address = n.address
		           WHERE n.job = a.job AND n.address = @address), ''),
		       coalesce((
		           SELECT o.object
		           FROM job_inputs i
		           JOIN outputs o ON o.job = i.source AND o.attempt = i.attempt AND o.rank = i.rank AND o.name = i.name
		           WHERE i.job = a.job AND o.address = @address
		           LIMIT 1), '')
		FROM allocations a
		JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
		JOIN machines m ON m.id = a.machine_id AND m.agent_boot = @boot AND m.epoch = @epoch
		WHERE a.id = @alloc AND a.machine_id = @machine AND a.state = 'active'`,
		pgx.NamedArgs{"alloc": int64(alloc), "machine": machine, "boot": at.AgentBoot, "epoch": at.Epoch,
			"address": a}).Scan(&folder, &object)
	if errors.Is(err, pgx.ErrNoRows) {
		if err := d.checkSession(ctx, machine, at); err != nil {
			return "", err
		}
		return "", errStaleAttempt(alloc)
	}
	if object == "" && folder != "" {
		object = folder + "/" + berth.ArchiveName
	}
	if err == nil && object == "" {
		return "", berth.Errorf(berth.CodeNotFound, "no such content")
	}
	return object, mapError(err, "content "+string(a))
}
