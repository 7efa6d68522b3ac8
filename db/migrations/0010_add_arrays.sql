-- Arrays: a parent row, and an element a row. What a parent is follows from its
-- elements; who derives it holds the lock of the parent's row.

ALTER TABLE jobs
  ADD COLUMN total        integer CHECK (total > 0),
  ADD COLUMN expanded     integer NOT NULL DEFAULT 0,
  ADD COLUMN parallel     integer NOT NULL DEFAULT 0 CHECK (parallel >= 0),
  ADD COLUMN max_failures integer CHECK (max_failures >= 0),
  ADD COLUMN indexes      integer[],
  ADD COLUMN tally        jsonb,
  ADD CONSTRAINT jobs_parents_have_elements CHECK ((kind = 'job') = (total IS NULL)),
  ADD CONSTRAINT jobs_expanded CHECK (expanded BETWEEN 0 AND coalesce(total, 0));
COMMENT ON COLUMN jobs.total IS 'of a parent: how many elements it has';
COMMENT ON COLUMN jobs.expanded IS 'of a parent: how many of them, from the first, are rows';
COMMENT ON COLUMN jobs.parallel IS 'of a parent: how many of them may hold capacity at once; 0: no limit. The leader''s commit keeps it';
COMMENT ON COLUMN jobs.max_failures IS 'of a parent: how many of them may fail; one more, and the rest is canceled; null: no limit';
COMMENT ON COLUMN jobs.indexes IS 'of an array that runs some elements of another again: which, in order; null: from 0 on';
COMMENT ON COLUMN jobs.tally IS 'of a parent that has ended: its elements by status, which outlives them';

DROP INDEX jobs_parent;
CREATE INDEX jobs_children ON jobs (parent, state) WHERE parent IS NOT NULL;
COMMENT ON INDEX jobs_children IS 'counts of a parent''s elements by state; whether any lives';
CREATE INDEX jobs_parents_live ON jobs (id) WHERE kind <> 'job' AND state NOT IN ('succeeded', 'failed', 'canceled');

-- Lists show parents and not their elements, of which there may be thousands.
DROP INDEX jobs_list, jobs_recent, jobs_by_outcome, jobs_by_name;
CREATE INDEX jobs_list ON jobs (tenant, submitted_at DESC, id DESC) WHERE parent IS NULL;
CREATE INDEX jobs_recent ON jobs (submitted_at DESC, id DESC) WHERE parent IS NULL;
COMMENT ON INDEX jobs_recent IS 'the list of all tenants, which operators read';
CREATE INDEX jobs_by_outcome ON jobs (state, submitted_at DESC, id DESC) WHERE parent IS NULL AND state IN ('succeeded', 'failed', 'canceled');
CREATE INDEX jobs_by_name ON jobs (name, submitted_at DESC, id DESC) WHERE parent IS NULL AND state IN ('succeeded', 'failed', 'canceled');
DROP INDEX archived_jobs_list, archived_jobs_recent, archived_jobs_by_outcome, archived_jobs_by_name;
CREATE INDEX archived_jobs_list ON archived_jobs (tenant, submitted_at DESC, id DESC) WHERE parent IS NULL;
CREATE INDEX archived_jobs_recent ON archived_jobs (submitted_at DESC, id DESC) WHERE parent IS NULL;
CREATE INDEX archived_jobs_by_outcome ON archived_jobs (state, submitted_at DESC, id DESC) WHERE parent IS NULL;
CREATE INDEX archived_jobs_by_name ON archived_jobs (name, submitted_at DESC, id DESC) WHERE parent IS NULL;
CREATE INDEX archived_jobs_children ON archived_jobs (parent) WHERE parent IS NOT NULL;

-- The list is berth.ParentTransitions; a test compares them.
CREATE FUNCTION parent_transitions() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT ARRAY[
    'submitted>queued', 'submitted>canceled',
    'queued>running', 'queued>canceling', 'queued>succeeded', 'queued>failed',
    'running>canceling', 'running>succeeded', 'running>failed',
    'canceling>canceled', 'canceling>succeeded', 'canceling>failed'
  ];
$$;

-- As before, and parents have a table of their own and no attempts.
CREATE OR REPLACE FUNCTION jobs_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  same jobs;
BEGIN
  IF OLD.state IN ('succeeded', 'failed', 'canceled') THEN
    same := NEW;
    same.retried_by := OLD.retried_by;
    same.event_seq := OLD.event_seq;
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

-- Indexes, which are in order, as people write them: 3-7,9.
CREATE FUNCTION index_ranges(indexes integer[]) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT string_agg(CASE WHEN first = last THEN first::text ELSE first || '-' || last END, ',' ORDER BY first)
  FROM (
    SELECT min(i) AS first, max(i) AS last
    FROM (SELECT i, i - row_number() OVER (ORDER BY i) AS run FROM unnest(indexes) AS i) numbered
    GROUP BY run
  ) ranges
$$;
