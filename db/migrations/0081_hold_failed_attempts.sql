-- Holds of failed attempts (adr/0112): a debug job keeps the files of a failed member, and its capacity, for a time.
ALTER TABLE jobs ADD COLUMN debug boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN jobs.debug IS 'a debug job, which holds a failed attempt of another job: it runs once, on one machine, and gives way to every other job';

CREATE TABLE holds (
  debug      uuid PRIMARY KEY,
  scope      uuid NOT NULL,
  job        uuid NOT NULL,
  attempt    integer NOT NULL,
  rank       integer NOT NULL,
  alloc      bigint NOT NULL,
  machine_id text NOT NULL,
  hold_ms    bigint NOT NULL CONSTRAINT holds_time CHECK (hold_ms > 0),
  checkpoint text NOT NULL DEFAULT ''
);
COMMENT ON TABLE holds IS 'the failed member whose files a debug job has; deleted with the debug job, whose state is the state of the hold';
COMMENT ON COLUMN holds.debug IS 'the debug job';
COMMENT ON COLUMN holds.scope IS 'the failed job, or its array: one debug job at a time';
COMMENT ON COLUMN holds.alloc IS 'allocation of the failed member, by which the agent finds the files';
COMMENT ON COLUMN holds.hold_ms IS 'time from the start of the debug job';
COMMENT ON COLUMN holds.checkpoint IS 'folder of checkpoints in the container; empty: none';
CREATE INDEX holds_job ON holds (job);
CREATE INDEX holds_scope ON holds (scope);

-- A berthd of the version before would answer a claim of a debug job without the files, and the agent would start it
-- with an empty folder. Each claim writes claimed_at (migration 0073).
CREATE FUNCTION allocations_know_holds() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM jobs j WHERE j.id = NEW.job AND j.debug) THEN
    RAISE EXCEPTION 'job % holds a failed attempt, which this berthd does not know: claim it by a newer one', NEW.job
      USING ERRCODE = '57T01';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER allocations_know_holds BEFORE UPDATE OF claimed_at ON allocations FOR EACH ROW
  WHEN (known_format() < 5) EXECUTE FUNCTION allocations_know_holds();

-- The version before would drop the field of a job file that it copies (migration 0051).
CREATE OR REPLACE FUNCTION format_of(file jsonb) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN file ? 'hold_on_failure' OR jsonb_path_exists(file, '$.**.jobs.* ? (exists(@.hold_on_failure))') THEN 5
    WHEN file ? 'groups' OR jsonb_path_exists(file, '$.**.jobs.* ? (exists(@.groups))') THEN 4
    WHEN file ?| '{user,read_only_root}' OR jsonb_path_exists(file,
      '$.**.jobs.* ? (exists(@.user) || exists(@.read_only_root))') THEN 3
    WHEN file ? 'alternatives' OR jsonb_path_exists(file, '$.**.jobs.* ? (exists(@.alternatives))') THEN 2
    WHEN file ?| '{stall,network}' OR jsonb_path_exists(file,
      '$.**.jobs.* ? (exists(@.when) || exists(@.final) || exists(@.array.from) || exists(@.stall) || exists(@.network))')
    THEN 1 ELSE 0 END
$$;

CREATE OR REPLACE FUNCTION refuse_old_copy(what text, file jsonb, known integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF known < format_of(file) THEN
    RAISE EXCEPTION '% has when, final, array.from, stall, network, alternatives, user, read_only_root, groups or hold_on_failure, which this berthd does not know: a newer one must run it; repeat the call, or upgrade this berthd', what
      USING ERRCODE = '57T01';
  END IF;
END $$;

DROP TRIGGER jobs_copied ON jobs;
CREATE TRIGGER jobs_copied BEFORE INSERT ON jobs FOR EACH ROW
  WHEN (NEW.retry_of IS NOT NULL AND NEW.format < 5)
  EXECUTE FUNCTION jobs_copied();

CREATE OR REPLACE FUNCTION schedule_fires_copied() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM refuse_old_copy('schedule ' || s.name, coalesce(s.spec -> 'pipeline', s.spec -> 'job'), j.format)
  FROM schedules s, jobs j
  WHERE s.id = NEW.schedule AND j.id = NEW.job AND j.format < 5;
  RETURN NEW;
END $$;

-- Channels get the failure of the job, and not the end of its hold as well.
CREATE OR REPLACE FUNCTION jobs_notify_channels() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  types text[] := ARRAY['job.' || NEW.state];
  named text[];
  ids bigint[];
BEGIN
  IF NEW.debug OR NOT EXISTS (SELECT FROM channels) THEN
    RETURN NULL;
  END IF;
  IF NEW.dead_letter THEN
    types := types || 'job.dead_letter'::text;
  END IF;
  IF NEW.notify IS NOT NULL AND NEW.state = ANY (NEW.notify) THEN
    SELECT array_agg(h.hook ->> 'channel')
    INTO named
    FROM job_specs s
    CROSS JOIN jsonb_array_elements(s.spec -> 'notify') AS h (hook)
    WHERE s.job = NEW.id AND h.hook -> 'on' ? NEW.state AND h.hook ? 'channel';
  END IF;
  ids := channels_for(NEW.tenant, types, named);
  IF ids <> '{}' THEN
    PERFORM notify_channels(ids, job_notice(NEW));
  END IF;
  RETURN NULL;
END $$;
