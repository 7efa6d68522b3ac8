-- Three triggers checked each INSERT of allocations, and each one changed four settings of the planner and back, also
-- where no pool, machine or tenant has a rule. One trigger now asks first whether there is a rule at all.
LOCK TABLE allocations IN ACCESS EXCLUSIVE MODE;
DROP TRIGGER allocations_whole ON allocations;
DROP TRIGGER allocations_tolerate ON allocations;
DROP TRIGGER allocations_untrusted ON allocations;
DROP FUNCTION allocations_whole();
DROP FUNCTION allocations_tolerate();
DROP FUNCTION allocations_untrusted();

-- The name of the trigger puts it after allocations_take, which locks the machines: of two transactions that place jobs
-- of two tenants on one machine, the second waits for the first and then sees its allocation. A verdict on the security
-- floors of a machine waits for the lock too.
CREATE FUNCTION allocations_under_rules() RETURNS trigger LANGUAGE plpgsql
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off AS $$
DECLARE
  one_tenant boolean;
  tainted boolean;
  untrusted boolean;
BEGIN
  SELECT EXISTS (SELECT 1 FROM pools p WHERE p.one_tenant),
    EXISTS (SELECT 1 FROM machines m WHERE m.taints <> '{}' OR m.pool_taints <> '{}'),
    EXISTS (SELECT 1 FROM tenants t WHERE t.untrusted)
  INTO one_tenant, tainted, untrusted;
  IF one_tenant AND EXISTS (
    SELECT 1
    FROM new_rows n
    JOIN machines m ON m.id = n.machine_id
    JOIN pools p ON p.id = m.pool
    JOIN jobs j ON j.id = n.job
    JOIN allocations a ON a.machine_id = n.machine_id AND a.forgotten_at IS NULL AND counts(a.state)
    JOIN jobs o ON o.id = a.job
    WHERE counts(n.state) AND p.one_tenant AND o.tenant <> j.tenant) THEN
    RAISE EXCEPTION 'a machine is in use by another tenant' USING ERRCODE = 'BT018';
  END IF;
  IF tainted AND EXISTS (
    SELECT 1
    FROM new_rows n
    JOIN machines m ON m.id = n.machine_id
    JOIN jobs j ON j.id = n.job
    JOIN classes c ON c.class = j.class
    WHERE counts(n.state) AND NOT tolerates(c.request, m.taints || m.pool_taints)) THEN
    RAISE EXCEPTION 'a job does not tolerate a taint of its machine' USING ERRCODE = 'BT019';
  END IF;
  IF untrusted AND EXISTS (
    SELECT 1
    FROM new_rows n
    JOIN machines m ON m.id = n.machine_id
    JOIN jobs j ON j.id = n.job
    WHERE counts(n.state) AND NOT meets_floors(m) AND tenant_untrusted(j.tenant)) THEN
    RAISE EXCEPTION 'a machine does not meet the security floors for an untrusted tenant' USING ERRCODE = 'BT020';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER allocations_under_rules AFTER INSERT ON allocations REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION allocations_under_rules();

-- Three triggers read the format of the connection at each claim; one does. Each claim writes claimed_at, also the
-- repeated one of a restarted agent.
DROP TRIGGER allocations_know_groups ON allocations;
DROP TRIGGER allocations_know_holds ON allocations;
DROP TRIGGER allocations_know_parts ON allocations;
DROP FUNCTION allocations_know_groups();
DROP FUNCTION allocations_know_holds();
DROP FUNCTION allocations_know_parts();
CREATE FUNCTION allocations_know_format() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF known_format() < 4 AND EXISTS (SELECT 1 FROM jobs j WHERE j.id = NEW.job AND j.grouped) THEN
    RAISE EXCEPTION 'job % has groups, which this berthd does not know: claim its members by a newer one', NEW.job
      USING ERRCODE = '57T01';
  END IF;
  IF known_format() < 5 AND EXISTS (SELECT 1 FROM jobs j WHERE j.id = NEW.job AND j.debug) THEN
    RAISE EXCEPTION 'job % holds a failed attempt, which this berthd does not know: claim it by a newer one', NEW.job
      USING ERRCODE = '57T01';
  END IF;
  IF known_format() < 6 AND EXISTS (SELECT 1 FROM job_sources o WHERE o.job = NEW.job AND o.parts IS NOT NULL) THEN
    RAISE EXCEPTION 'job % gets all parts of a checkpoint, which this berthd does not know: claim it by a newer one', NEW.job
      USING ERRCODE = '57T01';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER allocations_know_format BEFORE UPDATE OF claimed_at ON allocations FOR EACH ROW
  WHEN (known_format() < 6) EXECUTE FUNCTION allocations_know_format();

-- The labels of a machine without a condition need no query, so the planner can put the expression in the place of the
-- call. The leader reads them of each machine whose capacity has changed.
CREATE FUNCTION condition_labels(conditions text[]) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT coalesce(jsonb_object_agg(c, 'true'), '{}') FROM unnest(conditions) c;
$$;
COMMENT ON FUNCTION condition_labels IS 'the conditions of a verdict as labels';

CREATE OR REPLACE FUNCTION machine_labels(m machines) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT (m.labels - '{below_floor,unconfined}'::text[])
    || CASE WHEN m.floor_conditions = '{}' THEN '{}'::jsonb ELSE condition_labels(m.floor_conditions) END;
$$;

-- It reads the clock, so with the volatility STABLE the planner could not put it in the place of the call.
CREATE OR REPLACE FUNCTION meets_floors(m machines) RETURNS boolean LANGUAGE sql VOLATILE AS $$
  SELECT floors_met(m.floor_findings, m.floor_boot, m.agent_boot)
    AND (m.floor_until IS NULL OR m.floor_until > clock_timestamp());
$$;

-- Most changes of an allocation free nothing: they need no settings of the planner.
CREATE FUNCTION allocations_free(freed bigint[]) RETURNS void LANGUAGE plpgsql
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off AS $$
BEGIN
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
END $$;
COMMENT ON FUNCTION allocations_free IS 'gives back the capacity of allocations that count no more, and charges their use';

CREATE OR REPLACE FUNCTION allocations_move() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  freed bigint[]; -- allocations that counted and do not any more; none ever counts again
BEGIN
  SELECT array_agg(id) INTO freed
  FROM (SELECT id FROM old_rows WHERE counts(state) EXCEPT SELECT id FROM new_rows WHERE counts(state)) x;
  IF freed IS NOT NULL THEN
    PERFORM allocations_free(freed);
  END IF;
  RETURN NULL;
END $$;
