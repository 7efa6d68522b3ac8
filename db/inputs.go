package db

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// chosenOutput selects the output that a consumer x gets from job x.source under x.name:
// outputs of a later attempt come first, then those with the lowest rank. Callers pass only
// sources that have succeeded.
const chosenOutput = `(
	SELECT o.job, o.attempt, o.rank, o.name
	FROM outputs o
	WHERE o.job = x.source AND o.name = x.name
	ORDER BY o.attempt DESC, o.rank
	LIMIT 1)`

// bindOutputs records, for a new job, the outputs of ended jobs that its inputs refer to. A
// missing output, a job that has not succeeded and another tenant's job give the same error,
// since a caller must not learn which jobs other tenants have. Outputs of steps are bound
// when the step may start; see bindSteps.
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
	// From here on no output is pruned between the choice and its record.
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
		namedArgs{"tenant": tenant, "job": job, "inputs": inputs, "sources": sources, "names": names})
	if err != nil {
		return err
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[int])
	// RETURNING yields a row for each bound input: fewer rows mean that an output is missing.
	if err != nil || len(found) == len(inputs) {
		return err
	}
	return noOutput(named, found)
}

// noOutput returns the error for inputs that refer to no output of the tenant's jobs. found
// has the positions of the inputs that do.
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
			Field:   o.Field(),
			Detail:  fmt.Sprintf("job %s has not succeeded with an output %q", o.Job, o.Name),
			Allowed: "an output that berth outputs list shows for a succeeded job",
		})
	}
	return e
}

// bindSteps binds the inputs of steps whose needs have all succeeded. An input refers to a
// sibling step by its name, or to a step of another level by the id of its job: that job had
// no output yet when this one was stored.
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
		ON CONFLICT DO NOTHING`, namedArgs{"ids": ids})
	return err
}

// siblings returns the steps of the pipeline around a step, by name, archived ones included.
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
		WHERE j.parent = p.parent AND j.job ->> 'step' IS NOT NULL`, namedArgs{"id": step})
	if err != nil {
		return nil, err
	}
	return collectSteps(rows)
}

// collectSteps collects rows of a step's name and its job.
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

// ContentFor returns the object key of an archive, an upload or another job's output, for a
// machine that holds an active allocation of a job with that input. The allocation must
// belong to the job's current attempt, and the call to the machine's current session. It
// fails with stale_attempt if the allocation is no longer current, and with not_found if the
// job does not refer to the content.
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
		namedArgs{"alloc": int64(alloc), "machine": machine, "boot": at.AgentBoot, "epoch": at.Epoch,
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
