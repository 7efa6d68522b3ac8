package db

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// Work is what jobs have in common that are taken to run alike: tenant and name;
// of an element its array; of a step its pipeline and its name there.
type Work struct {
	Tenant berth.TenantID
	Name   string
	Parent berth.JobID // "": it is no element and no step
	Step   string
}

// Work is that of the job.
func (j QueueJob) Work() Work { return Work{j.Tenant, j.Name, j.Parent, j.Step} }

const (
	// RunsCounted is how many runs of a work RunTimes returns at most.
	RunsCounted = 5

	// runsWalk bounds how many rows it looks at for them: a name may be other
	// tenants' as well, and jobs may fail for long.
	runsWalk = 1000
)

// RunTimes returns how long the latest jobs of each work ran that succeeded, the
// latest first and at most RunsCounted: in containers, all their attempts
// together, without what they waited. Those in the archive are not looked at, nor
// are any but the newest 1,000 ended jobs of a name.
//
// An element goes by the first elements of its array that succeeded: they are as
// alike as its neighbours, and found without passing those that wait. A step goes
// by the same step of earlier pipelines of the same tenant and name, once they
// have ended; one of a nested pipeline by none. Works without such jobs are left out.
func (d *Attempts) RunTimes(ctx context.Context, works []Work) (map[Work][]time.Duration, error) {
	runs := make(map[Work][]time.Duration, len(works))
	bySQL := map[string][]Work{}
	for _, w := range works {
		bySQL[w.runs()] = append(bySQL[w.runs()], w)
	}
	var batch pgx.Batch
	for sql, works := range bySQL {
		batch.Queue(sql, runsArgs(works)).Query(func(rows pgx.Rows) error {
			var n int
			var ranMS int64
			_, err := pgx.ForEachRow(rows, []any{&n, &ranMS}, func() error {
				w := works[n-1]
				runs[w] = append(runs[w], milliseconds(ranMS))
				return nil
			})
			return err
		})
	}
	if batch.Len() == 0 {
		return runs, nil
	}
	err := d.pool.SendBatch(ctx, &batch).Close()
	return runs, mapError(err, "run times")
}

// runs is the statement that finds those of the work.
func (w Work) runs() string {
	switch {
	case w.Parent == "":
		return runsOfNames
	case w.Step == "":
		return runsOfElements
	default:
		return runsOfSteps
	}
}

func runsArgs(works []Work) pgx.NamedArgs {
	column := func(of func(Work) string) []string {
		list := make([]string, len(works))
		for i, w := range works {
			list[i] = of(w)
		}
		return list
	}
	return pgx.NamedArgs{
		"tenants": column(func(w Work) string { return string(w.Tenant) }),
		"names":   column(func(w Work) string { return w.Name }),
		"parents": column(func(w Work) string { return string(w.Parent) }),
		"steps":   column(func(w Work) string { return w.Step }),
	}
}

// Each walks an index from one end and stops at what it looks for, or after
// runsWalk rows: jobs_by_name, jobs_array_element, and jobs_by_name with
// jobs_pipeline_step. ran_ms is what all attempts of an ended job ran.
var (
	runsOfNames = fmt.Sprintf(`
		SELECT w.n, r.ran_ms
		FROM unnest(@tenants::text[], @names::text[]) WITH ORDINALITY AS w (tenant, name, n)
		CROSS JOIN LATERAL (
			SELECT x.ran_ms, x.submitted_at, x.id
			FROM (
				SELECT j.tenant, j.kind, j.state, j.ran_ms, j.submitted_at, j.id
				FROM jobs j
				WHERE j.name = w.name AND j.parent IS NULL AND j.state IN ('succeeded', 'failed', 'canceled')
				ORDER BY j.submitted_at DESC, j.id DESC
				LIMIT %d
			) x
			WHERE x.tenant = w.tenant AND x.kind = 'job' AND x.state = 'succeeded' AND x.ran_ms > 0
			ORDER BY x.submitted_at DESC, x.id DESC
			LIMIT %d
		) r
		ORDER BY w.n, r.submitted_at DESC, r.id DESC`, runsWalk, RunsCounted)

	runsOfElements = fmt.Sprintf(`
		SELECT w.n, r.ran_ms
		FROM unnest(@parents::uuid[]) WITH ORDINALITY AS w (parent, n)
		CROSS JOIN LATERAL (
			SELECT x.ran_ms, x.array_index
			FROM (
				SELECT j.state, j.ran_ms, j.array_index
				FROM jobs j
				WHERE j.parent = w.parent AND j.array_index IS NOT NULL
				ORDER BY j.array_index
				LIMIT %d
			) x
			WHERE x.state = 'succeeded' AND x.ran_ms > 0
			ORDER BY x.array_index
			LIMIT %d
		) r
		ORDER BY w.n, r.array_index DESC`, runsWalk, RunsCounted)

	runsOfSteps = fmt.Sprintf(`
		SELECT w.n, r.ran_ms
		FROM unnest(@parents::uuid[], @steps::text[]) WITH ORDINALITY AS w (parent, step, n)
		JOIN jobs own ON own.id = w.parent AND own.parent IS NULL
		CROSS JOIN LATERAL (
			SELECT j.ran_ms, x.submitted_at, x.id
			FROM (
				SELECT p.id, p.tenant, p.kind, p.submitted_at
				FROM jobs p
				WHERE p.name = own.name AND p.parent IS NULL AND p.state IN ('succeeded', 'failed', 'canceled')
				ORDER BY p.submitted_at DESC, p.id DESC
				LIMIT %d
			) x
			JOIN jobs j ON j.parent = x.id AND j.step = w.step
			WHERE x.tenant = own.tenant AND x.kind = 'pipeline' AND j.kind = 'job' AND j.state = 'succeeded'
				AND j.ran_ms > 0
			ORDER BY x.submitted_at DESC, x.id DESC
			LIMIT %d
		) r
		ORDER BY w.n, r.submitted_at DESC, r.id DESC`, runsWalk, RunsCounted)
)
