package db

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// Work groups jobs that are assumed to run equally long: jobs with the same tenant and
// name, the elements of an array, or the same step of pipelines.
type Work struct {
	Tenant berth.TenantID
	Name   string
	Parent berth.JobID // the array or pipeline; "": neither an element nor a step
	Step   string      // name of the step; "": not a step
}

// Work returns the job's group for RunTimes.
func (j QueueJob) Work() Work { return Work{j.Tenant, j.Name, j.Parent, j.Step} }

const (
	// RunsCounted is the number of run times that RunTimes returns per work at most.
	RunsCounted = 5

	// runsWalk bounds the rows that RunTimes reads per work: other tenants may use the same
	// name, and jobs may fail for a long time.
	runsWalk = 1000
)

// RunTimes returns the run times of the latest succeeded jobs of each work, newest first,
// at most RunsCounted. A run time is the time in containers over all attempts of a job,
// without waits. Archived jobs are ignored, as are all but the newest 1,000 ended jobs of a
// name.
//
// For an element, the first succeeded elements of its array count: they are as similar as
// its neighbors, and are found without reading elements that wait. For a step, the same
// step counts in earlier ended pipelines of the same tenant and name; a step of a nested
// pipeline has no run times. A work without run times is missing from the result.
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

// runs returns the statement that reads the run times of works of this kind.
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

// runsArgs returns the arguments of all three statements, one array element per work.
func runsArgs(works []Work) namedArgs {
	column := func(of func(Work) string) []string {
		list := make([]string, len(works))
		for i, w := range works {
			list[i] = of(w)
		}
		return list
	}
	return namedArgs{
		"tenants": column(func(w Work) string { return string(w.Tenant) }),
		"names":   column(func(w Work) string { return w.Name }),
		"parents": column(func(w Work) string { return string(w.Parent) }),
		"steps":   column(func(w Work) string { return w.Step }),
	}
}

// Each statement walks an index from one end and stops after RunsCounted results or
// runsWalk rows: jobs_by_name, jobs_array_element, and jobs_by_name with
// jobs_pipeline_step. The column ran_ms is the run time over all attempts of an ended job.
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
					AND NOT j.debug
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

// EndedJob is a job that has ended, with its run time and the properties that make other jobs
// similar.
type EndedJob struct {
	Tenant      berth.TenantID
	Name        string
	Step        string // name of the step; "": not a step
	Class       string
	Request     spec.Request // of the class
	Data        []spec.DataKey
	SubmittedAt time.Time
	Ran         time.Duration // in containers, over all attempts
}

// LatestEnded is the greatest number of jobs that Latest returns.
const LatestEnded = 4096

// latestWalk is the number of rows of ended jobs that Latest reads at most. Many of them may
// not count, as after the cancel of a long queue.
const latestWalk = 100_000

// Latest returns the jobs of all tenants that ended last, however they ended: each has
// released its capacity. The oldest comes first. Archived jobs, and jobs that never ran, are
// left out. Jobs that ended before the last latestWalk ended jobs are left out, too.
func (d *Attempts) Latest(ctx context.Context) ([]EndedJob, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT x.tenant, x.name, x.step, x.class, c.request, x.data, x.submitted_at, x.ran_ms
		FROM (
			SELECT j.tenant, j.name, coalesce(j.step, '') AS step, j.class, `+dataColumn+` AS data, j.submitted_at,
				j.ran_ms, j.finished_at, j.id
			FROM (
				SELECT *
				FROM jobs
				WHERE state IN ('succeeded', 'failed', 'canceled')
				ORDER BY finished_at DESC
				LIMIT @walk
			) j
			WHERE j.kind = 'job' AND NOT j.debug AND j.ran_ms > 0
			ORDER BY j.finished_at DESC
			LIMIT @limit
		) x
		JOIN classes c ON c.class = x.class
		ORDER BY x.finished_at, x.id`, namedArgs{"limit": LatestEnded, "walk": latestWalk})
	if err != nil {
		return nil, mapError(err, "ended jobs")
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (j EndedJob, err error) {
		var ranMS int64
		err = row.Scan(&j.Tenant, &j.Name, &j.Step, &j.Class, &j.Request, &j.Data, &j.SubmittedAt, &ranMS)
		j.Ran = milliseconds(ranMS)
		return j, err
	})
	return list, mapError(err, "ended jobs")
}
