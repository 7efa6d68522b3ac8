-- New names for words that the vocabulary has retired, beside the old ones, so that this
-- version and the one before it can share a database. Each value is stored once. The
-- next version but one removes the old names: it drops the views, renames their tables, and
-- drops jobs.mode with its trigger. docs/operate/upgrade.md lists both names.

-- Views under the new names over tables that keep their old ones. It is not the other way
-- round because the version before names the constraint earmarks_once in ON CONFLICT, and
-- a view has no constraints.
CREATE VIEW nominations AS
  SELECT id, beneficiary, machine_id, gpu_idx, milli, cpu_m, mem_mb AS memory_mib, disk_mb AS disk_mib, victim,
    victim_attempt, expires_at
  FROM earmarks;
COMMENT ON VIEW nominations IS 'capacity that is kept for one waiting job; nobody else may take it. One row for CPU, memory and disk (gpu_idx -1), one for each device; the table still has its former name';

CREATE VIEW nomination_log AS
  SELECT id, beneficiary, machine_id, gpu_idx, milli, victim, victim_attempt, from_seq, until_seq, made_at, gone_at
  FROM earmark_log;
COMMENT ON VIEW nomination_log IS 'append-only: from which to which number of the ledger each nomination stood; archived with its beneficiary; the table still has its former name';

CREATE VIEW device_allocations AS
  SELECT alloc_id, machine_id, idx, milli FROM gpu_claims;
COMMENT ON VIEW device_allocations IS 'the devices of each allocation; kept after release as the record of what was used, counted while the allocation counts; the table still has its former name';

-- A column beside the old one. Its default is right for every row but those of at_most_one
-- work, which Migrate fills in afterwards, in batches (db/backfill.go). The conditions keep
-- the function away from the rows of other jobs.
ALTER TABLE jobs
  ADD COLUMN execution text NOT NULL DEFAULT 'at_least_once',
  ADD CONSTRAINT jobs_execution
    CHECK (execution = CASE mode WHEN 'exclusive' THEN 'at_most_one' ELSE 'at_least_once' END) NOT VALID;
COMMENT ON COLUMN jobs.execution IS 'how many copies of the job may run at once: at_least_once or at_most_one';
COMMENT ON COLUMN jobs.mode IS 'former name of execution, which a trigger keeps equal: fenced is at_least_once, exclusive is at_most_one';

CREATE FUNCTION jobs_execution() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF NEW.mode = 'exclusive' THEN
      NEW.execution := 'at_most_one';
    ELSIF NEW.execution = 'at_most_one' THEN
      NEW.mode := 'exclusive';
    END IF;
  ELSIF NEW.execution <> OLD.execution THEN
    NEW.mode := CASE NEW.execution WHEN 'at_most_one' THEN 'exclusive' ELSE 'fenced' END;
  ELSE
    NEW.execution := CASE NEW.mode WHEN 'exclusive' THEN 'at_most_one' ELSE 'at_least_once' END;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER jobs_execution_insert BEFORE INSERT ON jobs FOR EACH ROW
  WHEN (NEW.mode <> 'fenced' OR NEW.execution <> 'at_least_once') EXECUTE FUNCTION jobs_execution();
CREATE TRIGGER jobs_execution_update BEFORE UPDATE OF mode, execution ON jobs FOR EACH ROW
  WHEN ((NEW.mode, NEW.execution) IS DISTINCT FROM (OLD.mode, OLD.execution)) EXECUTE FUNCTION jobs_execution();

-- As before, and any update of a row that the backfill has not reached yet fills in the new
-- column, even in a terminal row. The check above would refuse the update otherwise.
CREATE OR REPLACE FUNCTION jobs_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  same jobs;
BEGIN
  IF NEW.mode = 'exclusive' THEN
    NEW.execution := 'at_most_one';
  END IF;
  IF OLD.state IN ('succeeded', 'failed', 'canceled') THEN
    same := NEW;
    same.retried_by := OLD.retried_by;
    same.event_seq := OLD.event_seq;
    same.execution := OLD.execution;
    IF same IS DISTINCT FROM OLD THEN
      RAISE EXCEPTION 'job % is %: terminal rows do not change', OLD.id, OLD.state USING ERRCODE = 'BT001';
    END IF;
    RETURN NEW;
  END IF;
  IF NEW.attempt < OLD.attempt OR NEW.attempt > OLD.attempt + 1 OR NEW.kind <> 'job' AND NEW.attempt <> 0 THEN
    RAISE EXCEPTION 'job %: attempt % cannot become %', OLD.id, OLD.attempt, NEW.attempt USING ERRCODE = 'BT002';
  END IF;
  IF NEW.kind <> OLD.kind OR NEW.parent IS DISTINCT FROM OLD.parent OR NEW.array_index IS DISTINCT FROM OLD.array_index THEN
    RAISE EXCEPTION 'job %: what it is and what it belongs to do not change', OLD.id USING ERRCODE = 'BT010';
  END IF;
  IF NEW.state <> OLD.state THEN
    IF NEW.version <> OLD.version + 1 THEN
      RAISE EXCEPTION 'job %: version % cannot become %', OLD.id, OLD.version, NEW.version USING ERRCODE = 'BT003';
    END IF;
    IF NOT (OLD.state || '>' || NEW.state) = ANY (CASE OLD.kind WHEN 'job' THEN job_transitions() ELSE parent_transitions() END) THEN
      RAISE EXCEPTION 'job %: % cannot become %', OLD.id, OLD.state, NEW.state USING ERRCODE = 'BT004';
    END IF;
    NEW.event_seq := OLD.event_seq + 1;
    NEW.state_at := clock_timestamp();
    CASE NEW.state
      WHEN 'queued' THEN NEW.queued_at := NEW.state_at;
      WHEN 'scheduled' THEN NEW.scheduled_at := NEW.state_at;
      WHEN 'running' THEN NEW.started_at := coalesce(OLD.started_at, NEW.state_at); NEW.queue_deadline := NULL;
      WHEN 'succeeded', 'failed', 'canceled' THEN NEW.finished_at := NEW.state_at;
      ELSE NULL;
    END CASE;
  ELSIF NEW.version NOT IN (OLD.version, OLD.version + 1) THEN
    RAISE EXCEPTION 'job %: version % cannot become %', OLD.id, OLD.version, NEW.version USING ERRCODE = 'BT003';
  END IF;
  NEW.xid := pg_current_xact_id();
  RETURN NEW;
END $$;
