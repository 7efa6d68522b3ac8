-- The schema of Berth: design, section 4. State columns are text with a CHECK;
-- every job row and everything that hangs on it carries or leads to its tenant.

CREATE TABLE cluster (
  one        boolean PRIMARY KEY DEFAULT true CHECK (one),
  id         text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE cluster IS 'the random identity of this database; agents touch only containers that carry it';
INSERT INTO cluster (id) VALUES (replace(gen_random_uuid()::text, '-', ''));

CREATE TABLE leases (
  name       text PRIMARY KEY,
  holder     text NOT NULL,
  epoch      bigint NOT NULL DEFAULT 1,
  expires_at timestamptz NOT NULL
);
COMMENT ON TABLE leases IS 'who leads, and in which term; holder is random per process, so a restart is a new holder';

CREATE TABLE tenants (
  id          text PRIMARY KEY,
  weight      double precision NOT NULL DEFAULT 1 CHECK (weight > 0),
  max_gpu     bigint,
  max_running bigint,
  max_queued  bigint,
  submit_rps  double precision,
  policy      jsonb NOT NULL DEFAULT '{}',
  created_at  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tenants IS 'teams; a null limit is none';
INSERT INTO tenants (id) VALUES ('default');

CREATE TABLE tokens (
  id         text PRIMARY KEY,
  tenant     text NOT NULL,
  name       text NOT NULL,
  role       text NOT NULL CONSTRAINT tokens_role CHECK (role IN ('admin', 'user', 'viewer', 'machine')),
  machine_id text,
  sha256     bytea NOT NULL UNIQUE,
  created_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz,
  revoked_at timestamptz
);
COMMENT ON TABLE tokens IS 'bearer tokens: 256 random bits, of which only the hash is stored';

CREATE TABLE join_tokens (
  id         text PRIMARY KEY,
  sha256     bytea NOT NULL UNIQUE,
  pool       text NOT NULL DEFAULT '',
  labels     jsonb NOT NULL DEFAULT '{}',
  created_by text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz NOT NULL,
  used_by    text,
  used_at    timestamptz
);
COMMENT ON TABLE join_tokens IS 'single use: a machine trades one for its own token';

CREATE TABLE pools (
  id          text PRIMARY KEY,
  provider    text NOT NULL,
  region      text NOT NULL DEFAULT '',
  shape       jsonb NOT NULL DEFAULT '{}',
  hourly_cost double precision NOT NULL DEFAULT 0,
  min         integer NOT NULL DEFAULT 0,
  max         integer NOT NULL DEFAULT 0,
  idle_after  interval NOT NULL DEFAULT '10 minutes',
  spot        boolean NOT NULL DEFAULT false
);

CREATE TABLE machines (
  id             text PRIMARY KEY,
  pool           text NOT NULL DEFAULT '',
  state          text NOT NULL CONSTRAINT machines_state CHECK (state IN ('requested', 'provisioning', 'joining', 'ready', 'suspect', 'draining', 'lost', 'retired')),
  reason         text NOT NULL DEFAULT '',
  epoch          bigint NOT NULL DEFAULT 1,
  host_boot      text NOT NULL DEFAULT '',
  agent_boot     text NOT NULL DEFAULT '',
  labels         jsonb NOT NULL DEFAULT '{}',
  region         text NOT NULL DEFAULT '',
  site           text NOT NULL DEFAULT 'on_prem',
  address        text NOT NULL DEFAULT '',
  engine         text NOT NULL DEFAULT '',
  agent_version  text NOT NULL DEFAULT '',
  declared       boolean NOT NULL DEFAULT false,
  drain_reason   text,
  drain_deadline timestamptz,
  pending_kills  bigint[] NOT NULL DEFAULT '{}',
  cpu_m          bigint NOT NULL DEFAULT 0,
  mem_mb         bigint NOT NULL DEFAULT 0,
  disk_mb        bigint NOT NULL DEFAULT 0,
  gpu_milli      bigint NOT NULL DEFAULT 0,
  cpu_m_used     bigint NOT NULL DEFAULT 0,
  mem_mb_used    bigint NOT NULL DEFAULT 0,
  disk_mb_used   bigint NOT NULL DEFAULT 0,
  gpu_milli_used bigint NOT NULL DEFAULT 0,
  xid            xid8 NOT NULL DEFAULT pg_current_xact_id(),
  created_at     timestamptz NOT NULL DEFAULT now(),
  state_at       timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT machines_cpu_fits  CHECK (cpu_m_used BETWEEN 0 AND cpu_m),
  CONSTRAINT machines_mem_fits  CHECK (mem_mb_used BETWEEN 0 AND mem_mb),
  CONSTRAINT machines_disk_fits CHECK (disk_mb_used BETWEEN 0 AND disk_mb),
  CONSTRAINT machines_gpu_fits  CHECK (gpu_milli_used BETWEEN 0 AND gpu_milli)
) WITH (fillfactor = 50);
COMMENT ON TABLE machines IS 'never deleted; *_used is moved by triggers on allocations alone, and the CHECKs refuse the first unit too many';
COMMENT ON COLUMN machines.pending_kills IS 'allocations whose containers the machine was told to remove when it registered; it is not ready before they are gone';
CREATE INDEX machines_feed ON machines (xid);

CREATE TABLE machine_leases (
  machine_id text PRIMARY KEY,
  epoch      bigint NOT NULL,
  agent_boot text NOT NULL DEFAULT '',
  until      timestamptz NOT NULL,
  seen_at    timestamptz NOT NULL DEFAULT now(),
  seq        bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
COMMENT ON TABLE machine_leases IS 'the only row a sync updates, kept apart from the wide one';
COMMENT ON COLUMN machine_leases.agent_boot IS 'the process whose reports seq counts';

CREATE TABLE gpu_devices (
  machine_id text NOT NULL,
  idx        integer NOT NULL,
  uuid       text NOT NULL UNIQUE,
  model      text NOT NULL,
  mem_mb     bigint NOT NULL,
  healthy    boolean NOT NULL DEFAULT true,
  reason     text NOT NULL DEFAULT '',
  milli_used bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (machine_id, idx),
  CONSTRAINT gpu_devices_fits CHECK (milli_used BETWEEN 0 AND 1000)
) WITH (fillfactor = 50);
COMMENT ON TABLE gpu_devices IS 'one row a device or MIG slice; 1000 milli is the whole';

CREATE TABLE classes (
  class   text PRIMARY KEY,
  request jsonb NOT NULL
);
COMMENT ON TABLE classes IS 'placement requests by hash; jobs with equal requests share one';

CREATE TABLE jobs (
  id                  uuid PRIMARY KEY,
  tenant              text NOT NULL,
  kind                text NOT NULL DEFAULT 'job' CONSTRAINT jobs_kind CHECK (kind IN ('job', 'array', 'pipeline')),
  parent              uuid,
  array_index         integer,
  name                text NOT NULL,
  class               text NOT NULL,
  priority            integer NOT NULL,
  preemptible         boolean NOT NULL,
  state               text NOT NULL DEFAULT 'submitted' CONSTRAINT jobs_state CHECK (state IN ('submitted', 'queued', 'scheduled', 'running', 'preempting', 'canceling', 'retrying', 'succeeded', 'failed', 'canceled')),
  version             bigint NOT NULL DEFAULT 1 CHECK (version > 0),
  event_seq           bigint NOT NULL DEFAULT 1,
  attempt             integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
  failures            integer NOT NULL DEFAULT 0,
  losses              integer NOT NULL DEFAULT 0,
  preemptions         integer NOT NULL DEFAULT 0,
  held                boolean NOT NULL DEFAULT false,
  held_at             timestamptz,
  eligible_at         timestamptz NOT NULL DEFAULT now(),
  queue_deadline      timestamptz,
  run_limit_ms        bigint NOT NULL DEFAULT 0,
  grace_ms            bigint NOT NULL,
  mode                text NOT NULL DEFAULT 'fenced' CONSTRAINT jobs_mode CHECK (mode IN ('fenced', 'exclusive')),
  lost_after_ms       bigint NOT NULL,
  cancel_requested_at timestamptz,
  preempted_for       uuid,
  avoid               text[] NOT NULL DEFAULT '{}',
  oom_grown           boolean NOT NULL DEFAULT false,
  has_checkpoint      boolean NOT NULL DEFAULT false,
  image_digest        text NOT NULL DEFAULT '',
  reason              jsonb,
  dead_letter         boolean NOT NULL DEFAULT false,
  exit_code           integer,
  retry_of            uuid,
  retried_by          uuid,
  labels              jsonb NOT NULL DEFAULT '{}',
  actor               text NOT NULL,
  submitted_at        timestamptz NOT NULL DEFAULT now(),
  queued_at           timestamptz,
  scheduled_at        timestamptz,
  started_at          timestamptz,
  finished_at         timestamptz,
  state_at            timestamptz NOT NULL DEFAULT now(),
  xid                 xid8 NOT NULL DEFAULT pg_current_xact_id(),
  idem_key            text,
  idem_hash           bytea,
  CONSTRAINT jobs_array_element UNIQUE (parent, array_index)
);
COMMENT ON TABLE jobs IS 'the truth about every job, narrow because it is rewritten at each step; the spec lies in job_specs. actor is who made the last change';
COMMENT ON COLUMN jobs.queue_deadline IS 'applies until the first running and is cleared there; held time does not count';
CREATE UNIQUE INDEX jobs_idempotency ON jobs (tenant, idem_key) WHERE idem_key IS NOT NULL;
CREATE INDEX jobs_feed ON jobs (xid);
CREATE INDEX jobs_live ON jobs (state, state_at) WHERE state NOT IN ('succeeded', 'failed', 'canceled');
CREATE INDEX jobs_list ON jobs (tenant, submitted_at DESC, id DESC);
CREATE INDEX jobs_recent ON jobs (submitted_at DESC, id DESC);
COMMENT ON INDEX jobs_recent IS 'the list of all tenants, which operators read';
CREATE INDEX jobs_finished ON jobs (finished_at) WHERE state IN ('succeeded', 'failed', 'canceled');
CREATE INDEX jobs_parent ON jobs (parent) WHERE parent IS NOT NULL;

CREATE TABLE job_specs (
  job  uuid PRIMARY KEY,
  spec jsonb NOT NULL
);
COMMENT ON TABLE job_specs IS 'what the user asked for, defaults filled in; written once (PATCH apart)';

CREATE TABLE attempts (
  job          uuid NOT NULL,
  attempt      integer NOT NULL,
  leader_epoch bigint NOT NULL,
  placed_at    timestamptz NOT NULL DEFAULT now(),
  started_at   timestamptz,
  ended_at     timestamptz,
  outcome      jsonb,
  next_state   text,
  exit_code    integer,
  resume_from  bigint,
  last_step    bigint,
  PRIMARY KEY (job, attempt)
);
COMMENT ON COLUMN attempts.next_state IS 'set by Settle: a second Settle of this attempt returns it';

CREATE TABLE allocations (
  id            bigint GENERATED ALWAYS AS IDENTITY (CACHE 100) PRIMARY KEY,
  job           uuid NOT NULL,
  attempt       integer NOT NULL,
  rank          integer NOT NULL,
  machine_id    text NOT NULL,
  machine_epoch bigint NOT NULL,
  cpu_m         bigint NOT NULL CHECK (cpu_m >= 0),
  mem_mb        bigint NOT NULL CHECK (mem_mb >= 0),
  disk_mb       bigint NOT NULL CHECK (disk_mb >= 0),
  gpu_milli     bigint NOT NULL CHECK (gpu_milli >= 0),
  port          integer,
  state         text NOT NULL DEFAULT 'reserved' CONSTRAINT allocations_state CHECK (state IN ('reserved', 'active', 'exited', 'kept', 'orphaned', 'released')),
  orders        jsonb NOT NULL DEFAULT '{}',
  stop_by       timestamptz,
  phase         text NOT NULL DEFAULT '',
  exit          jsonb,
  progress      jsonb,
  log_bytes     bigint NOT NULL DEFAULT 0,
  reserved_at   timestamptz NOT NULL DEFAULT now(),
  claimed_at    timestamptz,
  started_at    timestamptz,
  exited_at     timestamptz,
  sealed_at     timestamptz,
  orphaned_at   timestamptz,
  hold_until    timestamptz,
  released_at   timestamptz,
  forgotten_at  timestamptz,
  CONSTRAINT allocations_rank UNIQUE (job, attempt, rank)
) WITH (fillfactor = 60);
COMMENT ON TABLE allocations IS 'one rank of one attempt on one machine. reserved, active, kept and orphaned count against the machine; exited and released do not. orders is the full set the machine was given';
COMMENT ON COLUMN allocations.forgotten_at IS 'the machine confirmed that nothing of it is left there';
CREATE UNIQUE INDEX one_live_rank ON allocations (job, rank) WHERE state IN ('reserved', 'active');
CREATE UNIQUE INDEX one_port ON allocations (machine_id, port) WHERE state <> 'released' AND port IS NOT NULL;
CREATE INDEX allocations_on_machine ON allocations (machine_id) WHERE forgotten_at IS NULL;
CREATE INDEX allocations_open ON allocations (job) WHERE state NOT IN ('released');

CREATE TABLE gpu_claims (
  alloc_id   bigint NOT NULL,
  machine_id text NOT NULL,
  idx        integer NOT NULL,
  milli      bigint NOT NULL CONSTRAINT gpu_claims_milli CHECK (milli BETWEEN 1 AND 1000),
  PRIMARY KEY (alloc_id, machine_id, idx)
);
COMMENT ON TABLE gpu_claims IS 'which devices an allocation has; kept after release as the record of what was used, counted while the allocation counts';

CREATE TABLE earmarks (
  beneficiary uuid NOT NULL,
  machine_id  text NOT NULL,
  gpu_idx     integer NOT NULL DEFAULT -1,
  milli       bigint NOT NULL DEFAULT 0,
  cpu_m       bigint NOT NULL DEFAULT 0,
  mem_mb      bigint NOT NULL DEFAULT 0,
  disk_mb     bigint NOT NULL DEFAULT 0,
  expires_at  timestamptz NOT NULL,
  PRIMARY KEY (beneficiary, machine_id, gpu_idx)
);
COMMENT ON TABLE earmarks IS 'capacity freed for a named preemptor; nobody else may take it';

CREATE TABLE checkpoints (
  job             uuid NOT NULL,
  step            bigint NOT NULL,
  attempt         integer NOT NULL,
  ranks           integer NOT NULL,
  state           text NOT NULL CONSTRAINT checkpoints_state CHECK (state IN ('partial', 'verified', 'bad', 'pruned')),
  bytes           bigint NOT NULL DEFAULT 0,
  failed_restores integer NOT NULL DEFAULT 0,
  detail          text NOT NULL DEFAULT '',
  created_at      timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (job, step, attempt)
);
COMMENT ON TABLE checkpoints IS 'a step is verified when the shard of every rank is in; resume takes the highest verified step';

CREATE TABLE checkpoint_shards (
  job      uuid NOT NULL,
  step     bigint NOT NULL,
  attempt  integer NOT NULL,
  rank     integer NOT NULL,
  manifest text NOT NULL,
  sha256   text NOT NULL,
  bytes    bigint NOT NULL,
  PRIMARY KEY (job, step, attempt, rank)
);

CREATE TABLE log_chunks (
  job      uuid NOT NULL,
  attempt  integer NOT NULL,
  rank     integer NOT NULL,
  off      bigint NOT NULL,
  bytes    integer NOT NULL,
  lines    integer NOT NULL,
  first_at timestamptz,
  last_at  timestamptz,
  PRIMARY KEY (job, attempt, rank, off)
);
COMMENT ON TABLE log_chunks IS 'which objects hold a rank''s log; off is the byte offset in its encoded stream';

CREATE TABLE deps (
  job   uuid NOT NULL,
  needs uuid NOT NULL,
  PRIMARY KEY (job, needs)
);

CREATE TABLE job_events (
  job        uuid NOT NULL,
  seq        bigint NOT NULL,
  at         timestamptz NOT NULL,
  xid        xid8 NOT NULL DEFAULT pg_current_xact_id(),
  kind       text NOT NULL,
  from_state text,
  to_state   text,
  attempt    integer NOT NULL,
  actor      text NOT NULL,
  reason     jsonb,
  detail     text NOT NULL DEFAULT '',
  PRIMARY KEY (job, seq, at)
) PARTITION BY RANGE (at);
COMMENT ON TABLE job_events IS 'append-only; seq is given under the lock of the job row and has no gaps';
CREATE TABLE job_events_rest PARTITION OF job_events DEFAULT;

CREATE TABLE archived_jobs (
  id           uuid NOT NULL,
  tenant       text NOT NULL,
  name         text NOT NULL,
  state        text NOT NULL,
  labels       jsonb NOT NULL,
  parent       uuid,
  submitted_at timestamptz NOT NULL,
  finished_at  timestamptz NOT NULL,
  job          jsonb NOT NULL,
  events       jsonb NOT NULL,
  PRIMARY KEY (id, finished_at)
) PARTITION BY RANGE (finished_at);
COMMENT ON TABLE archived_jobs IS 'terminal jobs past retention, whole: the document users see, and its events';
CREATE INDEX archived_jobs_list ON archived_jobs (tenant, submitted_at DESC, id DESC);
CREATE INDEX archived_jobs_recent ON archived_jobs (submitted_at DESC, id DESC);
CREATE TABLE archived_jobs_rest PARTITION OF archived_jobs DEFAULT;

-- Monthly partitions, made ahead; the DEFAULT ones catch what comes too early.
CREATE FUNCTION ensure_partitions(ahead integer DEFAULT 2) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  month date;
  parent text;
BEGIN
  FOR i IN 0..ahead LOOP
    month := date_trunc('month', now() AT TIME ZONE 'UTC')::date + make_interval(months => i);
    FOREACH parent IN ARRAY ARRAY['job_events', 'archived_jobs'] LOOP
      IF to_regclass(format('%I', parent || to_char(month, '_YYYYMM'))) IS NULL THEN
        EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)',
          parent || to_char(month, '_YYYYMM'), parent,
          to_char(month, 'YYYY-MM-DD') || ' 00:00:00+00',
          to_char(month + interval '1 month', 'YYYY-MM-DD') || ' 00:00:00+00');
      END IF;
    END LOOP;
  END LOOP;
END $$;
SELECT ensure_partitions();

-- The job's guard: versions, attempts, transitions, terminal rows. The list is
-- berth.Transitions; a test compares them.
CREATE FUNCTION job_transitions() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT ARRAY[
    'submitted>queued', 'submitted>failed', 'submitted>canceled',
    'queued>scheduled', 'queued>failed', 'queued>canceled',
    'scheduled>running', 'scheduled>preempting', 'scheduled>canceling', 'scheduled>retrying', 'scheduled>failed',
    'running>preempting', 'running>canceling', 'running>retrying', 'running>succeeded', 'running>failed',
    'preempting>canceling', 'preempting>retrying', 'preempting>succeeded', 'preempting>failed',
    'canceling>canceled', 'canceling>succeeded',
    'retrying>scheduled', 'retrying>failed', 'retrying>canceled'
  ];
$$;

CREATE FUNCTION jobs_guard() RETURNS trigger LANGUAGE plpgsql AS $$
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
  IF NEW.attempt < OLD.attempt OR NEW.attempt > OLD.attempt + 1 THEN
    RAISE EXCEPTION 'job %: attempt % cannot become %', OLD.id, OLD.attempt, NEW.attempt USING ERRCODE = 'BT002';
  END IF;
  IF NEW.state <> OLD.state THEN
    IF NEW.version <> OLD.version + 1 THEN
      RAISE EXCEPTION 'job %: version % cannot become %', OLD.id, OLD.version, NEW.version USING ERRCODE = 'BT003';
    END IF;
    IF NOT (OLD.state || '>' || NEW.state) = ANY (job_transitions()) THEN
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
CREATE TRIGGER jobs_guard BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION jobs_guard();

CREATE FUNCTION jobs_keep_live() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state NOT IN ('succeeded', 'failed', 'canceled') THEN
    RAISE EXCEPTION 'job % is %: only terminal rows may be archived', OLD.id, OLD.state USING ERRCODE = 'BT005';
  END IF;
  RETURN OLD;
END $$;
CREATE TRIGGER jobs_keep_live BEFORE DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION jobs_keep_live();

-- Each change of state is an event, written by the statement that made it.
CREATE FUNCTION jobs_record_submit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO job_events (job, seq, at, kind, from_state, to_state, attempt, actor, reason)
  SELECT id, event_seq, state_at, 'state', NULL, state, attempt, actor, reason FROM new_rows;
  RETURN NULL;
END $$;
CREATE TRIGGER jobs_record_submit AFTER INSERT ON jobs REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION jobs_record_submit();

--
-- A session plans each statement of a trigger function once, for as many rows as
-- its first statement happened to have. Joining the transition tables by nested
-- loops because that was one row would cost a million comparisons for a batch of
-- a thousand; seeking machines by a full scan because it was a thousand would
-- cost every single row that scan. So the functions say which way to join.
CREATE FUNCTION jobs_record_change() RETURNS trigger LANGUAGE plpgsql SET enable_nestloop = off AS $$
BEGIN
  INSERT INTO job_events (job, seq, at, kind, from_state, to_state, attempt, actor, reason)
  SELECT n.id, n.event_seq, n.state_at, 'state', o.state, n.state, n.attempt, n.actor, n.reason
  FROM new_rows n
  JOIN old_rows o ON o.id = n.id
  WHERE o.state <> n.state;
  RETURN NULL;
END $$;
CREATE TRIGGER jobs_record_change AFTER UPDATE ON jobs REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION jobs_record_change();

-- Machines stamp the feed cursor.
CREATE FUNCTION machines_stamp() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.xid := pg_current_xact_id();
  IF NEW.state <> OLD.state THEN
    NEW.state_at := clock_timestamp();
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER machines_stamp BEFORE UPDATE ON machines FOR EACH ROW EXECUTE FUNCTION machines_stamp();

-- Capacity moves with the allocations, in the same transaction, in lock order
-- (machines by id, then devices by machine and index), whoever writes.
CREATE FUNCTION counts(state text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT state IN ('reserved', 'active', 'kept', 'orphaned');
$$;

CREATE FUNCTION allocations_take() RETURNS trigger LANGUAGE plpgsql
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off AS $$
BEGIN
  PERFORM 1 FROM machines m WHERE m.id IN (SELECT machine_id FROM new_rows) ORDER BY m.id FOR NO KEY UPDATE;
  UPDATE machines m
  SET cpu_m_used = m.cpu_m_used + d.cpu_m,
      mem_mb_used = m.mem_mb_used + d.mem_mb,
      disk_mb_used = m.disk_mb_used + d.disk_mb,
      gpu_milli_used = m.gpu_milli_used + d.gpu_milli
  FROM (
    SELECT machine_id, sum(cpu_m) AS cpu_m, sum(mem_mb) AS mem_mb, sum(disk_mb) AS disk_mb, sum(gpu_milli) AS gpu_milli
    FROM new_rows WHERE counts(state) GROUP BY machine_id
  ) d
  WHERE m.id = d.machine_id;
  RETURN NULL;
END $$;
CREATE TRIGGER allocations_take AFTER INSERT ON allocations REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION allocations_take();

CREATE FUNCTION allocations_move() RETURNS trigger LANGUAGE plpgsql
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off AS $$
DECLARE
  freed bigint[]; -- allocations that counted and do not any more; none ever counts again
BEGIN
  SELECT array_agg(id) INTO freed
  FROM (SELECT id FROM old_rows WHERE counts(state) EXCEPT SELECT id FROM new_rows WHERE counts(state)) x;
  IF freed IS NULL THEN
    RETURN NULL;
  END IF;
  PERFORM 1 FROM machines m
  WHERE m.id IN (SELECT machine_id FROM allocations WHERE id = ANY (freed))
  ORDER BY m.id FOR NO KEY UPDATE;
  UPDATE machines m
  SET cpu_m_used = m.cpu_m_used - d.cpu_m,
      mem_mb_used = m.mem_mb_used - d.mem_mb,
      disk_mb_used = m.disk_mb_used - d.disk_mb,
      gpu_milli_used = m.gpu_milli_used - d.gpu_milli
  FROM (
    SELECT machine_id, sum(cpu_m) AS cpu_m, sum(mem_mb) AS mem_mb, sum(disk_mb) AS disk_mb, sum(gpu_milli) AS gpu_milli
    FROM allocations WHERE id = ANY (freed) GROUP BY machine_id
  ) d
  WHERE m.id = d.machine_id;
  PERFORM 1 FROM gpu_devices g
  WHERE (g.machine_id, g.idx) IN (SELECT machine_id, idx FROM gpu_claims WHERE alloc_id = ANY (freed))
  ORDER BY g.machine_id, g.idx FOR NO KEY UPDATE;
  UPDATE gpu_devices g
  SET milli_used = g.milli_used - d.milli
  FROM (
    SELECT machine_id, idx, sum(milli) AS milli
    FROM gpu_claims WHERE alloc_id = ANY (freed) GROUP BY machine_id, idx
  ) d
  WHERE g.machine_id = d.machine_id AND g.idx = d.idx;
  RETURN NULL;
END $$;
CREATE TRIGGER allocations_move AFTER UPDATE ON allocations REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION allocations_move();

CREATE FUNCTION allocations_keep() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.machine_id <> OLD.machine_id OR NEW.cpu_m <> OLD.cpu_m OR NEW.mem_mb <> OLD.mem_mb
     OR NEW.disk_mb <> OLD.disk_mb OR NEW.gpu_milli <> OLD.gpu_milli THEN
    RAISE EXCEPTION 'allocation %: machine and amounts do not change', OLD.id USING ERRCODE = 'BT006';
  END IF;
  IF counts(NEW.state) AND NOT counts(OLD.state) THEN
    RAISE EXCEPTION 'allocation %: % cannot become % again', OLD.id, OLD.state, NEW.state USING ERRCODE = 'BT007';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER allocations_keep BEFORE UPDATE ON allocations FOR EACH ROW EXECUTE FUNCTION allocations_keep();

CREATE FUNCTION allocations_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF counts(OLD.state) THEN
    RAISE EXCEPTION 'allocation % is %: it counts and cannot be deleted', OLD.id, OLD.state USING ERRCODE = 'BT008';
  END IF;
  RETURN OLD;
END $$;
CREATE TRIGGER allocations_gone BEFORE DELETE ON allocations FOR EACH ROW EXECUTE FUNCTION allocations_gone();

-- Claims are written with their allocation and never change.
CREATE FUNCTION gpu_claims_take() RETURNS trigger LANGUAGE plpgsql
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM new_rows c LEFT JOIN allocations a ON a.id = c.alloc_id
             WHERE a.id IS NULL OR a.machine_id <> c.machine_id OR NOT counts(a.state)) THEN
    RAISE EXCEPTION 'a GPU claim needs a live allocation on its machine' USING ERRCODE = 'BT009';
  END IF;
  PERFORM 1 FROM gpu_devices g
  WHERE (g.machine_id, g.idx) IN (SELECT machine_id, idx FROM new_rows)
  ORDER BY g.machine_id, g.idx FOR NO KEY UPDATE;
  UPDATE gpu_devices g
  SET milli_used = g.milli_used + d.milli
  FROM (SELECT machine_id, idx, sum(milli) AS milli FROM new_rows GROUP BY machine_id, idx) d
  WHERE g.machine_id = d.machine_id AND g.idx = d.idx;
  IF (SELECT count(*) FROM new_rows) <> (SELECT count(*) FROM new_rows c JOIN gpu_devices g ON g.machine_id = c.machine_id AND g.idx = c.idx) THEN
    RAISE EXCEPTION 'a GPU claim names a device that does not exist' USING ERRCODE = 'BT009';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER gpu_claims_take AFTER INSERT ON gpu_claims REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION gpu_claims_take();

CREATE FUNCTION gpu_claims_keep() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' OR EXISTS (SELECT 1 FROM allocations a WHERE a.id = OLD.alloc_id AND counts(a.state)) THEN
    RAISE EXCEPTION 'the GPU claims of allocation % do not change', OLD.alloc_id USING ERRCODE = 'BT009';
  END IF;
  RETURN OLD;
END $$;
CREATE TRIGGER gpu_claims_keep BEFORE UPDATE OR DELETE ON gpu_claims FOR EACH ROW EXECUTE FUNCTION gpu_claims_keep();
