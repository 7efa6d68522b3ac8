-- Gangs with groups of unlike members (adr/0099).
--
-- The groups are in the job file, and their requests in the class. The row has the facts that decide about
-- a whole attempt: that there are groups, and the members of the one that leads.
ALTER TABLE jobs
  ADD COLUMN grouped    boolean NOT NULL DEFAULT false,
  ADD COLUMN lead_first smallint,
  ADD COLUMN lead_last  smallint,
  ADD CONSTRAINT jobs_lead CHECK (
    CASE WHEN lead_first IS NULL THEN lead_last IS NULL ELSE grouped AND lead_last >= lead_first END) NOT VALID;
COMMENT ON COLUMN jobs.grouped IS 'the job file has groups: members differ in resources and commands';
COMMENT ON COLUMN jobs.lead_first IS 'first member of the group whose end ends the job; null: no group leads';
COMMENT ON COLUMN jobs.lead_last IS 'last member of the group whose end ends the job; null: no group leads';

-- A berthd of the version before would start all members with the resources of one group, give each agent
-- the command of the whole job, or settle the ends of workers that were stopped after their head as
-- failures. Connections of newer versions name the newest format of job files that they know (spec.Format).
-- An older leader isolates the error of class 23 and starts its other jobs; a claim or a settlement gets an
-- error of class 57 and is repeated, by another replica at last.
CREATE FUNCTION known_format() RETURNS integer LANGUAGE sql STABLE AS $$
  SELECT coalesce(nullif(current_setting('berth.format', true), ''), '0')::integer
$$;
COMMENT ON FUNCTION known_format IS 'newest format of job files that the program at the other end of the connection knows; 0: a version before this function';

CREATE FUNCTION jobs_know_groups() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF known_format() < 4 THEN
    RAISE EXCEPTION 'job % has groups, which this berthd does not know: a newer one must run it', NEW.id
      USING ERRCODE = CASE WHEN NEW.state = 'scheduled' THEN '23514' ELSE '57T01' END;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER jobs_know_groups BEFORE UPDATE OF state ON jobs FOR EACH ROW
  WHEN (OLD.grouped AND OLD.kind = 'job' AND NEW.state <> OLD.state AND (NEW.state = 'scheduled'
    OR OLD.state IN ('scheduled', 'running', 'preempting', 'canceling')
      AND NEW.state IN ('retrying', 'succeeded', 'failed', 'canceled')))
  EXECUTE FUNCTION jobs_know_groups();

CREATE FUNCTION allocations_know_groups() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM jobs j WHERE j.id = NEW.job AND j.grouped) THEN
    RAISE EXCEPTION 'job % has groups, which this berthd does not know: claim its members by a newer one', NEW.job
      USING ERRCODE = '57T01';
  END IF;
  RETURN NEW;
END $$;
-- Each claim writes claimed_at, also the repeated one of a restarted agent.
CREATE TRIGGER allocations_know_groups BEFORE UPDATE OF claimed_at ON allocations FOR EACH ROW
  WHEN (known_format() < 4) EXECUTE FUNCTION allocations_know_groups();

-- Elements that the version before creates have the groups of their array, too.
CREATE FUNCTION jobs_inherit_groups() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  SELECT p.grouped, p.lead_first, p.lead_last INTO NEW.grouped, NEW.lead_first, NEW.lead_last
  FROM jobs p
  WHERE p.id = NEW.parent;
  RETURN NEW;
END $$;
CREATE TRIGGER jobs_inherit_groups BEFORE INSERT ON jobs FOR EACH ROW
  WHEN (NEW.array_index IS NOT NULL AND NEW.format < 4) EXECUTE FUNCTION jobs_inherit_groups();

-- The version before would drop the groups of a job file that it copies (migration 0051).
CREATE OR REPLACE FUNCTION format_of(file jsonb) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN file ? 'groups' OR jsonb_path_exists(file, '$.**.jobs.* ? (exists(@.groups))') THEN 4
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
    RAISE EXCEPTION '% has when, final, array.from, stall, network, alternatives, user, read_only_root or groups, which this berthd does not know: a newer one must run it; repeat the call, or upgrade this berthd', what
      USING ERRCODE = '57T01';
  END IF;
END $$;

DROP TRIGGER jobs_copied ON jobs;
CREATE TRIGGER jobs_copied BEFORE INSERT ON jobs FOR EACH ROW
  WHEN (NEW.retry_of IS NOT NULL AND NEW.format < 4)
  EXECUTE FUNCTION jobs_copied();

CREATE OR REPLACE FUNCTION schedule_fires_copied() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM refuse_old_copy('schedule ' || s.name, coalesce(s.spec -> 'pipeline', s.spec -> 'job'), j.format)
  FROM schedules s, jobs j
  WHERE s.id = NEW.schedule AND j.id = NEW.job AND j.format < 4;
  RETURN NEW;
END $$;
