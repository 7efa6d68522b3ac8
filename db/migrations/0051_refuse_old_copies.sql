-- Copies of job files by a replica of the version before.
--
-- A schedule and a retry copy a stored job file. A replica reads the file into the fields that it
-- knows, so the copy of an older replica lacks the newer ones: a final step would start first.
-- Each new row of jobs has the format that its writer knows (spec.Format). Older replicas leave
-- the column at 0, and the database refuses their copies of files with newer fields.
--
-- The error is of class 57, which every version answers with 503 and repeats: another replica
-- fires the schedule, and the caller of the retry reads what to do.
ALTER TABLE jobs ADD COLUMN format smallint NOT NULL DEFAULT 0;
COMMENT ON COLUMN jobs.format IS 'newest format of job files that the writer of the row knows (spec.Format); 0: a version before the column';

CREATE FUNCTION format_of(file jsonb) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN file ?| '{stall,network}' OR jsonb_path_exists(file,
    '$.**.jobs.* ? (exists(@.when) || exists(@.final) || exists(@.array.from) || exists(@.stall) || exists(@.network))')
    THEN 1 ELSE 0 END
$$;
COMMENT ON FUNCTION format_of IS 'format that a reader must know to copy a job file as a whole. The conditions of the file itself do not count: a retry drops them, and no schedule has any';

CREATE FUNCTION refuse_old_copy(what text, file jsonb, known integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF known < format_of(file) THEN
    RAISE EXCEPTION '% has when, final, array.from, stall or network, which this berthd does not know: a newer one must run it; repeat the call, or upgrade this berthd', what
      USING ERRCODE = '57T01';
  END IF;
END $$;

CREATE FUNCTION jobs_copied() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM refuse_old_copy('job ' || NEW.retry_of, coalesce(
    (SELECT s.spec FROM job_specs s WHERE s.job = NEW.retry_of),
    (SELECT coalesce(a.job -> 'pipeline', a.job -> 'spec') FROM archived_jobs a WHERE a.id = NEW.retry_of)), NEW.format);
  RETURN NEW;
END $$;
CREATE TRIGGER jobs_copied BEFORE INSERT ON jobs FOR EACH ROW
  WHEN (NEW.retry_of IS NOT NULL AND NEW.format < 1)
  EXECUTE FUNCTION jobs_copied();

CREATE FUNCTION schedule_fires_copied() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM refuse_old_copy('schedule ' || s.name, coalesce(s.spec -> 'pipeline', s.spec -> 'job'), j.format)
  FROM schedules s, jobs j
  WHERE s.id = NEW.schedule AND j.id = NEW.job AND j.format < 1;
  RETURN NEW;
END $$;
CREATE TRIGGER schedule_fires_copied BEFORE INSERT OR UPDATE OF status ON schedule_fires FOR EACH ROW
  WHEN (NEW.status = 'submitted')
  EXECUTE FUNCTION schedule_fires_copied();

-- A member that is quiet says so again and again. A word that is not repeated expires: the agent
-- may have seen a sign of life since, and reach only replicas that do not know the call.
ALTER TABLE allocations ADD COLUMN quiet_said_at timestamptz;
COMMENT ON COLUMN allocations.quiet_said_at IS 'last report of the agent that the member is quiet, by the clock of the database; null: it is not quiet';

-- Acts may be pruned by age. A transaction that prunes names the time before which rows may go; the
-- last day stays in any case.
DROP TRIGGER acts_append_only ON acts;
CREATE TRIGGER acts_append_only BEFORE UPDATE OR TRUNCATE ON acts
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change_of_acts();
CREATE FUNCTION acts_prune() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.at < nullif(current_setting('berth.prune_acts_before', true), '')::timestamptz AND OLD.at < now() - interval '1 day' THEN
    RETURN OLD;
  END IF;
  RAISE EXCEPTION 'acts is append-only' USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER acts_prune BEFORE DELETE ON acts FOR EACH ROW EXECUTE FUNCTION acts_prune();
