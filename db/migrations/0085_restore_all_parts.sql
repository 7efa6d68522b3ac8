-- A job may start from a checkpoint of another number of members: each member then gets the parts of all of them
-- (adr/0118).
ALTER TABLE job_sources ADD COLUMN parts integer CONSTRAINT job_sources_parts CHECK (parts > 0);
COMMENT ON COLUMN job_sources.parts IS 'number of members that saved the step, if each member of job gets the parts of all of them; null: each gets the part of its own number';

-- A berthd of the version before creates elements of arrays without the column.
CREATE FUNCTION job_sources_copy_parts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.parts := (
    SELECT max(o.parts)
    FROM jobs j
    JOIN job_sources o ON o.job = j.parent AND o.source = NEW.source AND o.attempt = NEW.attempt AND o.step = NEW.step
    WHERE j.id = NEW.job);
  RETURN NEW;
END $$;
CREATE TRIGGER job_sources_copy_parts BEFORE INSERT ON job_sources FOR EACH ROW
  WHEN (known_format() < 6) EXECUTE FUNCTION job_sources_copy_parts();

-- It would also give each member one part alone. Each claim writes claimed_at (migration 0073).
CREATE FUNCTION allocations_know_parts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM job_sources o WHERE o.job = NEW.job AND o.parts IS NOT NULL) THEN
    RAISE EXCEPTION 'job % gets all parts of a checkpoint, which this berthd does not know: claim it by a newer one', NEW.job
      USING ERRCODE = '57T01';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER allocations_know_parts BEFORE UPDATE OF claimed_at ON allocations FOR EACH ROW
  WHEN (known_format() < 6) EXECUTE FUNCTION allocations_know_parts();

-- The version before would drop the field of a job file that it copies (migration 0051).
CREATE OR REPLACE FUNCTION format_of(file jsonb) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN file #> '{checkpoint,reshard}' IS NOT NULL OR jsonb_path_exists(file,
      '$.**.jobs.* ? (exists(@.checkpoint.reshard))') THEN 6
    WHEN file ? 'hold_on_failure' OR file #> '{placement,tolerations}' IS NOT NULL OR jsonb_path_exists(file,
      '$.**.jobs.* ? (exists(@.hold_on_failure) || exists(@.placement.tolerations))') THEN 5
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
    RAISE EXCEPTION '% has when, final, array.from, stall, network, alternatives, user, read_only_root, groups, hold_on_failure, tolerations or checkpoint.reshard, which this berthd does not know: a newer one must run it; repeat the call, or upgrade this berthd', what
      USING ERRCODE = '57T01';
  END IF;
END $$;

DROP TRIGGER jobs_copied ON jobs;
CREATE TRIGGER jobs_copied BEFORE INSERT ON jobs FOR EACH ROW
  WHEN (NEW.retry_of IS NOT NULL AND NEW.format < 6)
  EXECUTE FUNCTION jobs_copied();

CREATE OR REPLACE FUNCTION schedule_fires_copied() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM refuse_old_copy('schedule ' || s.name, coalesce(s.spec -> 'pipeline', s.spec -> 'job'), j.format)
  FROM schedules s, jobs j
  WHERE s.id = NEW.schedule AND j.id = NEW.job AND j.format < 6;
  RETURN NEW;
END $$;
