-- Checkpoints outlive their job: a job may start from a step of another job, and users
-- pin steps. A berthd of the version before prunes and archives past the trigger below,
-- which keeps these steps all the same.

ALTER TABLE checkpoints ADD COLUMN pinned_at timestamptz;
COMMENT ON COLUMN checkpoints.pinned_at IS 'set: a user keeps the step, whatever keep says, until it is unpinned';

CREATE TABLE job_sources (
  job         uuid NOT NULL,
  array_index integer NOT NULL DEFAULT -1,
  source      uuid NOT NULL,
  attempt     integer NOT NULL,
  step        bigint NOT NULL,
  PRIMARY KEY (job, array_index)
);
COMMENT ON TABLE job_sources IS 'the checkpoint that a job started from: chosen once, so that each attempt restores the same; deleted with the row of job';
COMMENT ON COLUMN job_sources.array_index IS 'of an array: the element that the row is for; -1: the job itself, or every element without a row';
COMMENT ON COLUMN job_sources.attempt IS 'of source, as step';
CREATE INDEX job_sources_source ON job_sources (source, step, attempt);

CREATE TABLE job_retries (
  job       uuid NOT NULL,
  options   text NOT NULL,
  successor uuid NOT NULL,
  PRIMARY KEY (job, options)
);
COMMENT ON TABLE job_retries IS 'the successor of a job for each set of options with which it was retried; a row for the archive too. retried_by is the newest';

CREATE FUNCTION checkpoint_is_kept(of_job uuid, of_step bigint, of_attempt integer, pinned timestamptz)
RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT pinned IS NOT NULL OR EXISTS (
    SELECT 1
    FROM job_sources s
    JOIN jobs j ON j.id = s.job
    WHERE s.source = of_job AND s.step = of_step AND s.attempt = of_attempt
      AND j.state NOT IN ('succeeded', 'failed', 'canceled'))
$$;
COMMENT ON FUNCTION checkpoint_is_kept IS 'whether a verified step must stay: it is pinned, or a live job started from it';

-- An update is left out and not refused, since one statement prunes many steps.
CREATE FUNCTION guard_kept_checkpoint() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT checkpoint_is_kept(OLD.job, OLD.step, OLD.attempt, OLD.pinned_at) THEN
    RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
  END IF;
  IF TG_OP = 'DELETE' THEN
    RAISE EXCEPTION 'checkpoint % of job % is kept', OLD.step, OLD.job;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER checkpoints_kept_pruned BEFORE UPDATE OF state ON checkpoints
  FOR EACH ROW WHEN (OLD.state = 'verified' AND NEW.state = 'pruned') EXECUTE FUNCTION guard_kept_checkpoint();
CREATE TRIGGER checkpoints_kept_deleted BEFORE DELETE ON checkpoints
  FOR EACH ROW WHEN (OLD.state = 'verified') EXECUTE FUNCTION guard_kept_checkpoint();
