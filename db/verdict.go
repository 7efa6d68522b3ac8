package db

// skippedStep is true for a row of jobs, under an alias, of a step that did not run because its
// condition did not hold.
func skippedStep(alias string) string {
	return `(` + alias + `.state = 'canceled' AND ` + alias + `.reason ->> 'code' = 'skipped')`
}

// verdictOfNeeds joins v to a row j of a blocked step: v.verdict is start, wait, cancel or skip,
// as the ends of the needed jobs decide, and v.because the reason for cancel and skip. A final
// step waits for all steps of its pipeline that are not final.
var verdictOfNeeds = verdictOf(`
						SELECT n.id, n.parent, n.step, n.state, n.reason
						FROM all_needs d
						JOIN jobs n ON n.id = d.needs
						WHERE d.job = j.id
						UNION ALL
						SELECT n.id, n.parent, n.step, n.state, n.reason
						FROM jobs n
						WHERE j.final AND n.parent = j.parent AND NOT n.final`)

// verdictOfJobs is verdictOfNeeds for a blocked job that is part of no pipeline. A job that was
// archived before the submit counts as well.
var verdictOfJobs = verdictOf(`
						SELECT n.id, n.parent, n.step, n.state, n.reason
						FROM job_needs d
						JOIN jobs n ON n.id = d.needs
						WHERE d.job = j.id
						UNION ALL
						SELECT a.id, a.parent, '', a.state, a.job -> 'reason'
						FROM job_needs d
						JOIN archived_jobs a ON a.id = d.needs
						WHERE d.job = j.id`)

// verdictOf is the join of a verdict for jobs whose needed jobs are selected by needed.
//
// A job with the condition success is canceled at the first need that failed or was
// canceled, before its other needs have ended. All other verdicts wait for these.
func verdictOf(needed string) string {
	return `JOIN LATERAL (
				SELECT CASE
						WHEN j.run_when = 'success' AND NOT j.final AND x.bad > 0 THEN 'cancel'
						WHEN x.live > 0 THEN 'wait'
						WHEN j.run_when = 'success' AND NOT j.final AND x.skipped > 0 THEN 'skip'
						WHEN j.run_when = 'always' OR (j.run_when = 'failure') = (x.bad > 0) THEN 'start'
						ELSE 'skip' END AS verdict,
					CASE
						WHEN j.run_when <> 'failure' THEN x.because
						WHEN j.final THEN 'no other step has failed'
						ELSE 'no job that it needs has failed' END AS because
				FROM (
					SELECT count(*) FILTER (WHERE n.state NOT IN ('succeeded', 'failed', 'canceled')) AS live,
						count(*) FILTER (WHERE ` + endedBadly + `) AS bad,
						count(*) FILTER (WHERE ` + skippedStep("n") + `) AS skipped,
						(array_agg(CASE WHEN n.parent = j.parent THEN 'step ' || n.step
							ELSE 'job ' || ` + shortID("n.id") + ` END ||
							CASE WHEN n.state = 'failed' THEN ' failed'
							WHEN ` + skippedStep("n") + ` THEN ' was skipped' ELSE ' was canceled' END
							ORDER BY ` + skippedStep("n") + `, n.step, n.id)
							FILTER (WHERE n.state IN ('failed', 'canceled')))[1] AS because
					FROM (` + needed + `
					) n
				) x
			) v ON true`
}

// endedBadly is true for a row n of jobs that failed or was canceled, and was not skipped.
var endedBadly = `(n.state = 'failed' OR n.state = 'canceled' AND NOT ` + skippedStep("n") + `)`
