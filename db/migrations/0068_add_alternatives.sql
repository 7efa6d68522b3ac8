-- Ordered alternatives of hardware for a job (adr/0089).
--
-- The class of a row stays the request in force: placement by a berthd of the version before, quotas,
-- usage and costs read it alone. A start may put another alternative in force, in the transaction that
-- reserves its capacity.
ALTER TABLE jobs
  ADD COLUMN alternatives       text[],
  ADD COLUMN alternatives_after bigint[],
  ADD COLUMN alternatives_from  timestamptz,
  ADD COLUMN alternative        smallint NOT NULL DEFAULT 0,
  ADD CONSTRAINT jobs_alternative CHECK (
    CASE WHEN alternatives IS NULL THEN alternative = 0 ELSE class IS NOT DISTINCT FROM alternatives[alternative + 1] END) NOT VALID;
COMMENT ON COLUMN jobs.alternatives IS 'classes of resources and of each alternative, in order; null: the job has no alternatives';
COMMENT ON COLUMN jobs.alternatives_after IS 'wait in ms before the job may take each of alternatives; 0 for the first';
COMMENT ON COLUMN jobs.alternatives_from IS 'when the present wait began, without its time on hold; null: it has not, or no alternatives';
COMMENT ON COLUMN jobs.alternative IS 'alternative in force: 0 is resources. The class is its class; only a start changes it';

ALTER TABLE attempts ADD COLUMN alternative smallint;
COMMENT ON COLUMN attempts.alternative IS 'alternative that the attempt got; null: the job has none, or a berthd of the version before started it';

-- Both run before jobs_guard, in the order of their names.
CREATE FUNCTION jobs_alternatives() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- The version before grows the memory of the class in force and does not know the list.
  IF NEW.class <> OLD.class AND NEW.alternative = OLD.alternative AND NEW.alternatives = OLD.alternatives THEN
    NEW.alternatives[NEW.alternative + 1] := NEW.class;
  END IF;
  IF NEW.state <> OLD.state AND NEW.state IN ('queued', 'retrying') THEN
    NEW.alternatives_from := greatest(clock_timestamp(), NEW.eligible_at);
  ELSIF OLD.held AND NOT NEW.held AND NEW.state IN ('queued', 'retrying') THEN
    NEW.alternatives_from := NEW.alternatives_from
      + greatest(clock_timestamp() - greatest(OLD.held_at, NEW.alternatives_from), '0');
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER jobs_alternatives BEFORE UPDATE ON jobs FOR EACH ROW
  WHEN (NEW.alternatives IS NOT NULL) EXECUTE FUNCTION jobs_alternatives();

-- Elements that the version before creates have the alternatives of their array, too.
CREATE FUNCTION jobs_inherit_alternatives() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  SELECT p.alternatives, p.alternatives_after INTO NEW.alternatives, NEW.alternatives_after
  FROM jobs p
  WHERE p.id = NEW.parent;
  RETURN NEW;
END $$;
CREATE TRIGGER jobs_inherit_alternatives BEFORE INSERT ON jobs FOR EACH ROW
  WHEN (NEW.array_index IS NOT NULL AND NEW.format < 2) EXECUTE FUNCTION jobs_inherit_alternatives();

-- The version before would drop the alternatives of a job file that it copies (migration 0051).
CREATE OR REPLACE FUNCTION format_of(file jsonb) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN file ? 'alternatives' OR jsonb_path_exists(file, '$.**.jobs.* ? (exists(@.alternatives))') THEN 2
    WHEN file ?| '{stall,network}' OR jsonb_path_exists(file,
      '$.**.jobs.* ? (exists(@.when) || exists(@.final) || exists(@.array.from) || exists(@.stall) || exists(@.network))')
    THEN 1 ELSE 0 END
$$;

CREATE OR REPLACE FUNCTION refuse_old_copy(what text, file jsonb, known integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF known < format_of(file) THEN
    RAISE EXCEPTION '% has when, final, array.from, stall, network or alternatives, which this berthd does not know: a newer one must run it; repeat the call, or upgrade this berthd', what
      USING ERRCODE = '57T01';
  END IF;
END $$;

DROP TRIGGER jobs_copied ON jobs;
CREATE TRIGGER jobs_copied BEFORE INSERT ON jobs FOR EACH ROW
  WHEN (NEW.retry_of IS NOT NULL AND NEW.format < 2)
  EXECUTE FUNCTION jobs_copied();

CREATE OR REPLACE FUNCTION schedule_fires_copied() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM refuse_old_copy('schedule ' || s.name, coalesce(s.spec -> 'pipeline', s.spec -> 'job'), j.format)
  FROM schedules s, jobs j
  WHERE s.id = NEW.schedule AND j.id = NEW.job AND j.format < 2;
  RETURN NEW;
END $$;
