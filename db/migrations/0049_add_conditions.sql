-- Conditions of steps: when and final of a job file.
--
-- A replica of the version before starts a step once all rows of deps name succeeded jobs, and
-- cancels it once one of them names a failed job. So the needs of a conditional step are in a
-- table that it does not read, and deps has one row by which the step needs itself: for that
-- version, the need is neither met nor failed. It leaves such steps to the newer replicas.
ALTER TABLE jobs
  ADD COLUMN run_when text NOT NULL DEFAULT 'success',
  ADD COLUMN final boolean NOT NULL DEFAULT false,
  ADD COLUMN branch boolean NOT NULL DEFAULT false,
  ADD COLUMN fail_fast boolean NOT NULL DEFAULT false,
  ADD CONSTRAINT jobs_run_when CHECK (run_when IN ('success', 'failure', 'always')) NOT VALID;
COMMENT ON COLUMN jobs.run_when IS 'condition under which a step runs, by the ends of its needs: success, failure or always';
COMMENT ON COLUMN jobs.final IS 'step that starts after all other steps of its pipeline, also after a cancel';
COMMENT ON COLUMN jobs.branch IS 'step that fail_fast does not cancel: final, conditional, or it needs such a step';
COMMENT ON COLUMN jobs.fail_fast IS 'pipeline with such steps: a failure cancels the other steps. max_failures is null: the version before would cancel all of them';

CREATE TABLE job_needs (
  job   uuid NOT NULL,
  needs uuid NOT NULL,
  PRIMARY KEY (job, needs)
);
COMMENT ON TABLE job_needs IS 'jobs that a job with a condition waits for; of other steps the needs are in deps';
CREATE INDEX job_needs_needs ON job_needs (needs);
COMMENT ON INDEX job_needs_needs IS 'the jobs that wait for a job, when it ends or may be archived';

CREATE VIEW all_needs AS
  SELECT job, needs FROM deps WHERE needs <> job
  UNION ALL
  SELECT job, needs FROM job_needs;
COMMENT ON VIEW all_needs IS 'the jobs that a blocked job waits for, of both tables';

-- A pipeline does not fail without a step that failed or was canceled. Skipped steps have the
-- status canceled; a replica of the version before does not know the reason, and would count them
-- as failures. It gets an error, and a newer replica ends the pipeline.
CREATE FUNCTION jobs_fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (
    SELECT 1
    FROM jobs c
    WHERE c.parent = NEW.id AND (c.state = 'failed' OR c.state = 'canceled'
      AND c.reason ->> 'code' IS DISTINCT FROM 'skipped')) THEN
    RAISE EXCEPTION 'pipeline %: no step failed or was canceled, so it has not failed', NEW.id USING ERRCODE = 'BT004';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER jobs_fail BEFORE UPDATE ON jobs FOR EACH ROW
  WHEN (NEW.kind = 'pipeline' AND NEW.state = 'failed' AND OLD.state <> 'failed')
  EXECUTE FUNCTION jobs_fail();
