-- Steps that say cache: true. One that an earlier job did already is not run: it
-- ends as succeeded, with rows of its own for that job's outputs.

ALTER TABLE jobs
  ADD COLUMN cached_from uuid,
  ADD CONSTRAINT jobs_cached CHECK (cached_from IS NULL OR kind = 'job' AND state = 'succeeded' AND attempt = 0);
COMMENT ON COLUMN jobs.cached_from IS 'of a step that was skipped: the job that did the same before, and ran; never one that was skipped itself';

CREATE TABLE step_results (
  job      uuid PRIMARY KEY,
  tenant   text NOT NULL,
  key      bytea NOT NULL,
  image    text NOT NULL,
  digest   text NOT NULL DEFAULT '',
  attempt  integer,
  found_at timestamptz
);
COMMENT ON TABLE step_results IS 'cached steps that were let go to run, under what they were to compute; a row outlives its job, as the outputs do';
COMMENT ON COLUMN step_results.key IS 'hash of all that the container could notice, as of when the step was let go: a secret set since makes it a key that nobody asks for again';
COMMENT ON COLUMN step_results.image IS 'the name that a machine had to look up; empty where the spec names a digest, which is in the key';
COMMENT ON COLUMN step_results.digest IS 'what the name stood for; empty as long as nobody knows';
COMMENT ON COLUMN step_results.attempt IS 'the one that succeeded, and whose outputs count; null: none has';
COMMENT ON COLUMN step_results.found_at IS 'when that was found out, or known to be unknown: when it first ran, told once its attempt is settled';
CREATE INDEX step_results_key ON step_results (tenant, key, found_at DESC) WHERE attempt IS NOT NULL;
CREATE INDEX step_results_image ON step_results (tenant, image, found_at DESC) WHERE image <> '' AND digest <> '';
COMMENT ON INDEX step_results_image IS 'what a name of an image stood for when it was last found out';

-- As before, and a step may be skipped. The list is berth.Transitions; a test
-- compares them.
CREATE OR REPLACE FUNCTION job_transitions() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT ARRAY[
    'submitted>queued', 'submitted>succeeded', 'submitted>failed', 'submitted>canceled',
    'queued>scheduled', 'queued>failed', 'queued>canceled',
    'scheduled>running', 'scheduled>preempting', 'scheduled>canceling', 'scheduled>retrying', 'scheduled>failed',
    'running>preempting', 'running>canceling', 'running>retrying', 'running>succeeded', 'running>failed',
    'preempting>canceling', 'preempting>retrying', 'preempting>succeeded', 'preempting>failed',
    'canceling>canceled', 'canceling>succeeded',
    'retrying>scheduled', 'retrying>failed', 'retrying>canceled'
  ];
$$;

-- That change of state is for skipped steps alone.
CREATE FUNCTION jobs_skip() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'job %: it has not run, and no earlier job did the same: it cannot have succeeded', NEW.id USING ERRCODE = 'BT004';
END $$;
CREATE TRIGGER jobs_skip BEFORE UPDATE ON jobs FOR EACH ROW
  WHEN (OLD.state = 'submitted' AND NEW.state = 'succeeded' AND (NEW.cached_from IS NULL OR NOT OLD.blocked))
  EXECUTE FUNCTION jobs_skip();
