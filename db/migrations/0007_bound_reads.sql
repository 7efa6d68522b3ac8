-- Lists of one status or one name walk these instead of all of history. They hold
-- ended jobs alone, so that a job is written into them once and not at each step;
-- live ones are few and found by jobs_live.
CREATE INDEX jobs_by_outcome ON jobs (state, submitted_at DESC, id DESC) WHERE state IN ('succeeded', 'failed', 'canceled');
CREATE INDEX jobs_by_name ON jobs (name, submitted_at DESC, id DESC) WHERE state IN ('succeeded', 'failed', 'canceled');
CREATE INDEX archived_jobs_by_outcome ON archived_jobs (state, submitted_at DESC, id DESC);
CREATE INDEX archived_jobs_by_name ON archived_jobs (name, submitted_at DESC, id DESC);

-- What machines were is pruned by age.
CREATE INDEX machine_events_age ON machine_events (at);

-- Attempts of jobs without checkpoints leave nothing in the object store. They
-- are swept when they end, so that the leader's look for the others does not walk
-- along all of history.
UPDATE attempts t
SET swept_at = t.ended_at
FROM job_specs s
WHERE s.job = t.job AND NOT s.spec ? 'checkpoint' AND t.ended_at IS NOT NULL AND t.swept_at IS NULL;
