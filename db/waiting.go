package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// Among returns the jobs of the list that are not archived, without the fields of the full view, by id.
// Tenant "" means any; another tenant's job is left out. A page of a list or of the queue thus costs
// one statement.
func (d *Jobs) Among(
	ctx context.Context, tenant berth.TenantID, ids []berth.JobID,
) (map[berth.JobID]wire.Job, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT `+jobDocument+` || jsonb_build_object('handle', `+handleOf("j.id")+`)
		FROM jobs j
		WHERE j.id = ANY(@ids::uuid[]) AND (@tenant = '' OR j.tenant = @tenant)`,
		namedArgs{"ids": ids, "tenant": string(tenant)})
	if err != nil {
		return nil, mapError(err, "jobs")
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[wire.Job])
	if err != nil {
		return nil, mapError(err, "jobs")
	}
	byID := make(map[berth.JobID]wire.Job, len(list))
	for _, j := range list {
		byID[j.ID] = j
	}
	return byID, nil
}

// Need is the first unmet need of a blocked step or job. Without Step and Job the needs are met. A
// blocked job whose needs are met is unblocked by the next pass.
type Need struct {
	Step   string      // the needed step of the same pipeline
	Job    string      // or the handle of the needed job
	Name   string      // of Job
	Status berth.State // of Step or Job
	Around string      // name of the pipeline around the step, if that is a step itself
	When   string      // condition of the step itself
	Final  bool        // the step waits for all other steps
}

// Needs returns the first unmet need of each blocked job in the list, by id. Other jobs are left out. A
// need is unmet while it has not succeeded; for a condition other than success, an end of any kind
// meets it. A final step needs all other steps of its pipeline.
func (d *Jobs) Needs(ctx context.Context, ids []berth.JobID) (map[berth.JobID]Need, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT j.id::text, CASE WHEN j.parent IS NULL THEN '' ELSE coalesce(n.step, '') END,
			coalesce(CASE WHEN j.parent IS NULL THEN n.handle END, ''), coalesce(n.name, ''), coalesce(n.state, ''),
			coalesce(p.step, ''), j.run_when, j.final
		FROM jobs j
		LEFT JOIN LATERAL (
			SELECT s.step, s.state, s.name, CASE WHEN j.parent IS NULL THEN `+handleOf("s.id")+` END AS handle
			FROM (
				SELECT s.id, s.step, s.state, s.name
				FROM all_needs d
				JOIN jobs s ON s.id = d.needs
				WHERE d.job = j.id AND (s.state NOT IN ('failed', 'canceled') OR j.run_when = 'success')
				UNION ALL
				SELECT s.id, s.step, s.state, s.name
				FROM jobs s
				WHERE j.final AND s.parent = j.parent AND NOT s.final AND s.state NOT IN ('failed', 'canceled')
			) s
			WHERE s.state <> 'succeeded'
			ORDER BY s.id
			LIMIT 1
		) n ON true
		LEFT JOIN jobs p ON p.id = j.parent
		WHERE j.id = ANY(@ids::uuid[]) AND j.state = 'submitted' AND j.blocked`,
		namedArgs{"ids": ids})
	if err != nil {
		return nil, mapError(err, "needs of steps")
	}
	// The statement orders unmet needs by id, so repeated calls name the same one.
	needs := map[berth.JobID]Need{}
	var id berth.JobID
	var n Need
	into := []any{&id, &n.Step, &n.Job, &n.Name, &n.Status, &n.Around, &n.When, &n.Final}
	_, err = pgx.ForEachRow(rows, into, func() error {
		needs[id] = n
		return nil
	})
	return needs, mapError(err, "needs of steps")
}
