-- Tenants as a tree with quotas, and what each has used.

ALTER TABLE tenants
  DROP COLUMN max_gpu,
  DROP COLUMN policy,
  ADD COLUMN parent              text CONSTRAINT tenants_parent REFERENCES tenants (id),
  ADD COLUMN guarantee_cpu_m     bigint CHECK (guarantee_cpu_m >= 0),
  ADD COLUMN guarantee_mem_mb    bigint CHECK (guarantee_mem_mb >= 0),
  ADD COLUMN guarantee_gpu_milli bigint CHECK (guarantee_gpu_milli >= 0),
  ADD COLUMN limit_cpu_m         bigint CHECK (limit_cpu_m >= 0),
  ADD COLUMN limit_mem_mb        bigint CHECK (limit_mem_mb >= 0),
  ADD COLUMN limit_gpu_milli     bigint CHECK (limit_gpu_milli >= 0),
  ADD COLUMN borrow              text NOT NULL DEFAULT 'any' CONSTRAINT tenants_borrow CHECK (borrow IN ('any', 'preemptible', 'none')),
  ADD COLUMN budget_gpu_hours    double precision CHECK (budget_gpu_hours >= 0),
  ADD COLUMN budget_period_ms    bigint CHECK (budget_period_ms > 0),
  ADD COLUMN budget_since        timestamptz,
  ADD COLUMN version             bigint NOT NULL DEFAULT 1,
  ADD COLUMN used_at             timestamptz NOT NULL DEFAULT now(),
  ADD COLUMN used_cpu_s          double precision NOT NULL DEFAULT 0,
  ADD COLUMN used_mem_mb_s       double precision NOT NULL DEFAULT 0,
  ADD COLUMN used_gpu_s          double precision NOT NULL DEFAULT 0,
  ADD COLUMN period_at           timestamptz,
  ADD COLUMN period_gpu_s        double precision NOT NULL DEFAULT 0,
  ADD COLUMN stalled_ms          bigint NOT NULL DEFAULT 0,
  ADD COLUMN stalled_since       timestamptz,
  ADD CONSTRAINT tenants_budget CHECK ((budget_gpu_hours IS NULL) = (budget_period_ms IS NULL) AND (budget_gpu_hours IS NULL) = (budget_since IS NULL)),
  ADD CONSTRAINT tenants_not_its_own_parent CHECK (parent <> id);
COMMENT ON COLUMN tenants.guarantee_gpu_milli IS 'what it may always have; null: no claim beyond its fair share';
COMMENT ON COLUMN tenants.limit_gpu_milli IS 'what it and those below it never hold more of; null: no limit';
COMMENT ON COLUMN tenants.borrow IS 'what of its jobs may run beyond its guarantee while others leave room idle';
COMMENT ON COLUMN tenants.budget_since IS 'the first period of the budget began then; the others follow it back to back';
COMMENT ON COLUMN tenants.version IS 'of the settings; what the leader charges does not change it';
COMMENT ON COLUMN tenants.used_at IS 'the time as of which used_* are decayed by the half-life; what still runs, and usage_charges, are not in them yet';
COMMENT ON COLUMN tenants.period_at IS 'begin of the budget''s period that period_gpu_s counts in; null: nothing was charged since the budget was set';
COMMENT ON COLUMN tenants.stalled_ms IS 'how long its work has waited for its own quota alone, up to stalled_since if that is set: jobs do not age in that time';

-- Every job and every token has a tenant's row from now on: what was written by
-- a token whose tenant had none is given one.
INSERT INTO tenants (id)
SELECT tenant FROM tokens UNION SELECT tenant FROM jobs
ON CONFLICT DO NOTHING;

CREATE INDEX jobs_waiting ON jobs (tenant) WHERE state IN ('submitted', 'queued', 'retrying');
COMMENT ON INDEX jobs_waiting IS 'a submit counts what waits of a tenant that has max_queued';

CREATE TABLE usage_charges (
  alloc_id  bigint NOT NULL,
  entry_ms  bigint NOT NULL DEFAULT 0,
  tenant    text NOT NULL,
  cpu_m     bigint NOT NULL,
  mem_mb    bigint NOT NULL,
  gpu_milli bigint NOT NULL,
  from_at   timestamptz NOT NULL,
  to_at     timestamptz NOT NULL,
  PRIMARY KEY (alloc_id, entry_ms)
);
COMMENT ON TABLE usage_charges IS 'what allocations held until they were freed; the leader adds it to their tenants and takes it out. Inserts alone, so that tenants are no rows that every job writes';
COMMENT ON COLUMN usage_charges.entry_ms IS 'above 0: what a start costs beside the run, as if its amounts had been held for so long; no GPU time of a budget';

-- The seconds from begun to ended, each worth half as much for every half-life
-- that it lies before at. exp() of less than -700 would be an error.
CREATE FUNCTION decayed_seconds(begun timestamptz, ended timestamptz, at timestamptz, half_life interval)
RETURNS double precision LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN ended <= begun THEN 0 ELSE
    extract(epoch FROM half_life)::double precision / ln(2::double precision) * (
      exp(-least(700, ln(2::double precision) * extract(epoch FROM at - ended)::double precision / extract(epoch FROM half_life)::double precision))
      - exp(-least(700, ln(2::double precision) * extract(epoch FROM at - begun)::double precision / extract(epoch FROM half_life)::double precision)))
  END
$$;

-- What a past amount is worth at a later time.
CREATE FUNCTION decayed(amount double precision, as_of timestamptz, at timestamptz, half_life interval)
RETURNS double precision LANGUAGE sql STABLE AS $$
  SELECT amount * exp(-least(700, greatest(0, ln(2::double precision) * extract(epoch FROM at - as_of)::double precision / extract(epoch FROM half_life)::double precision)))
$$;

-- The begin of the period that at lies in.
CREATE FUNCTION period_of(since timestamptz, period_ms bigint, at timestamptz)
RETURNS timestamptz LANGUAGE sql STABLE AS $$
  SELECT since + floor(greatest(0, extract(epoch FROM at - since)) * 1000 / period_ms) * period_ms * interval '1 millisecond'
$$;

-- As before, and what was freed is charged: from its reservation until it was
-- freed, or its machine fell silent, which no tenant pays for.
CREATE OR REPLACE FUNCTION allocations_move() RETURNS trigger LANGUAGE plpgsql
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off AS $$
DECLARE
  freed bigint[]; -- allocations that counted and do not any more; none ever counts again
BEGIN
  SELECT array_agg(id) INTO freed
  FROM (SELECT id FROM old_rows WHERE counts(state) EXCEPT SELECT id FROM new_rows WHERE counts(state)) x;
  IF freed IS NULL THEN
    RETURN NULL;
  END IF;
  INSERT INTO usage_charges (alloc_id, tenant, cpu_m, mem_mb, gpu_milli, from_at, to_at)
  SELECT a.id, j.tenant, a.cpu_m, a.mem_mb, a.gpu_milli, a.reserved_at, greatest(a.reserved_at, coalesce(a.orphaned_at, clock_timestamp()))
  FROM allocations a
  JOIN jobs j ON j.id = a.job
  WHERE a.id = ANY (freed)
  ON CONFLICT DO NOTHING;
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

-- What order and preemption need to know of jobs.
ALTER TABLE jobs
  ADD COLUMN verified_at timestamptz,
  ADD COLUMN gave_way_to uuid[] NOT NULL DEFAULT '{}',
  ADD COLUMN ran_ms      bigint NOT NULL DEFAULT 0,
  ADD COLUMN unaged_ms   bigint NOT NULL DEFAULT 0,
  ADD COLUMN stalled_ms  bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN jobs.verified_at IS 'when its newest checkpoint was verified: what it did until then is not lost';
COMMENT ON COLUMN jobs.gave_way_to IS 'for which jobs it was preempted: it is not again for the same';
COMMENT ON COLUMN jobs.ran_ms IS 'how long its earlier attempts ran';
COMMENT ON COLUMN jobs.unaged_ms IS 'how long since its submission it held capacity, was held or was not ready: it does not age in that time';
COMMENT ON COLUMN jobs.stalled_ms IS 'its tenant''s stalled_ms when it was submitted';
UPDATE jobs j
SET verified_at = c.at
FROM (SELECT job, max(created_at) AS at FROM checkpoints WHERE state = 'verified' GROUP BY job) c
WHERE c.job = j.id AND j.state NOT IN ('succeeded', 'failed', 'canceled');

-- Earmarks: room that was free, or that a victim gives up. Nothing wrote any
-- before.
DROP TABLE earmarks;
CREATE TABLE earmarks (
  id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  beneficiary    uuid NOT NULL,
  machine_id     text NOT NULL,
  gpu_idx        integer NOT NULL DEFAULT -1,
  milli          bigint NOT NULL DEFAULT 0,
  cpu_m          bigint NOT NULL DEFAULT 0,
  mem_mb         bigint NOT NULL DEFAULT 0,
  disk_mb        bigint NOT NULL DEFAULT 0,
  victim         uuid,
  victim_attempt integer,
  expires_at     timestamptz NOT NULL DEFAULT 'infinity',
  CONSTRAINT earmarks_once UNIQUE NULLS NOT DISTINCT (beneficiary, machine_id, gpu_idx, victim)
);
COMMENT ON TABLE earmarks IS 'room kept for a job that others gave way to; nobody else may take it. One row for what is no GPU (gpu_idx -1), one for each device';
COMMENT ON COLUMN earmarks.victim IS 'holds the room until it has stopped: until then nothing is kept; null: it was free';
CREATE INDEX earmarks_machine ON earmarks (machine_id);

CREATE TABLE earmark_log (
  id             bigint PRIMARY KEY,
  beneficiary    uuid NOT NULL,
  machine_id     text NOT NULL,
  gpu_idx        integer NOT NULL,
  milli          bigint NOT NULL,
  victim         uuid,
  victim_attempt integer,
  from_seq       bigint NOT NULL DEFAULT nextval('ledger'),
  until_seq      bigint
);
COMMENT ON TABLE earmark_log IS 'append-only: from which to which number of the ledger each earmark stood; archived with its beneficiary';
CREATE INDEX earmark_log_machine ON earmark_log (machine_id);
CREATE INDEX earmark_log_beneficiary ON earmark_log (beneficiary);

CREATE FUNCTION earmarks_record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO earmark_log (id, beneficiary, machine_id, gpu_idx, milli, victim, victim_attempt)
    VALUES (NEW.id, NEW.beneficiary, NEW.machine_id, NEW.gpu_idx, NEW.milli, NEW.victim, NEW.victim_attempt);
  ELSE
    UPDATE earmark_log SET until_seq = nextval('ledger') WHERE id = OLD.id;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER earmarks_record AFTER INSERT OR DELETE ON earmarks FOR EACH ROW EXECUTE FUNCTION earmarks_record();
