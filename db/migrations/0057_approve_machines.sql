-- A pool may demand that an operator approves each machine before it gets work: a join token that was
-- copied then admits a machine, and no job. A join token may limit the capacity of its machine. The
-- triggers hold a machine back for the statements of the version before, too.
-- In the order of writers, and in the mode that the changes below need, so that no lock is raised.
LOCK TABLE join_tokens, machines, pools IN ACCESS EXCLUSIVE MODE;
ALTER TABLE pools ADD COLUMN approval boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN pools.approval IS 'machines of the pool get work only after an operator has approved them';

ALTER TABLE join_tokens
  ADD COLUMN approves boolean NOT NULL DEFAULT false,
  ADD COLUMN most     jsonb;
COMMENT ON COLUMN join_tokens.approves IS 'the machine that joins with the token needs no other approval';
COMMENT ON COLUMN join_tokens.most IS 'greatest capacity of the machine, as spec.MachineBounds in JSON; null: no limits';

ALTER TABLE machines
  ADD COLUMN held          text NOT NULL DEFAULT '',
  ADD COLUMN equipment     jsonb,
  ADD COLUMN approved      jsonb,
  ADD COLUMN approved_by   text NOT NULL DEFAULT '',
  ADD COLUMN approved_at   timestamptz,
  ADD COLUMN joined_token  text NOT NULL DEFAULT '',
  ADD COLUMN joined_terms  jsonb;
COMMENT ON COLUMN machines.held IS 'reason for which the machine gets no work until an operator approves it; empty: none';
COMMENT ON COLUMN machines.equipment IS 'equipment of the last registration, as wire.Equipment in JSON; null: none since this column exists';
COMMENT ON COLUMN machines.approved IS 'equipment that was approved, as wire.Equipment in JSON; null: none was';
COMMENT ON COLUMN machines.approved_by IS 'author of the approval: operator:NAME or join-token:ID';
COMMENT ON COLUMN machines.joined_token IS 'join token that the machine spent last; empty: it joined before this column existed';
COMMENT ON COLUMN machines.joined_terms IS 'approves and most of that join token; null: the token has neither';

CREATE FUNCTION machine_needs_approval(pool text, joined_pool text) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT EXISTS (SELECT 1 FROM pools p WHERE p.approval AND (p.id = pool OR joined_pool = '' AND p.id = 'default'));
$$;
COMMENT ON FUNCTION machine_needs_approval IS 'true if the pool of a machine demands an approval; a machine whose join token names no pool also needs it if the pool default demands one, so that its agent cannot choose its way around the rule';

CREATE FUNCTION machine_equipment(m machines) RETURNS jsonb LANGUAGE sql STABLE AS $$
  SELECT jsonb_strip_nulls(jsonb_build_object(
    'cpu_milli', m.cpu_m, 'memory_mib', m.mem_mb, 'region', nullif(m.region, ''), 'site', nullif(m.site, ''), 'pool', m.pool,
    'labels', nullif(m.labels, '{}'),
    'gpus', (SELECT jsonb_agg(jsonb_build_object('uuid', g.uuid, 'model', g.model, 'memory_mib', g.mem_mb) ORDER BY g.uuid)
      FROM gpu_devices g WHERE g.machine_id = m.id)));
$$;
COMMENT ON FUNCTION machine_equipment IS 'equipment by the rows of a machine, for machines that registered last with the version before';

-- As in migration 0054, and an agent without a token for another pool cannot leave a pool that demands
-- approvals.
CREATE OR REPLACE FUNCTION machines_choose_pool() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.pool = '' THEN
    NEW.pool := 'default';
  END IF;
  IF TG_OP = 'UPDATE' THEN
    IF NEW.pool <> OLD.pool AND NEW.joined_pool = '' AND NEW.host_boot <> ''
       AND NOT (pool_is_open(NEW.pool)
         AND (OLD.host_boot = '' OR pool_is_open(OLD.pool) AND NOT machine_needs_approval(OLD.pool, OLD.pool))) THEN
      NEW.pool := OLD.pool;
    END IF;
    IF NEW.pool = OLD.pool AND OLD.state <> 'retired' THEN
      RETURN NEW;
    END IF;
  END IF;
  PERFORM pools_keep(NEW.pool);
  RETURN NEW;
END $$;

-- A machine that is held is joining, never ready. Only a join raises the epoch of a machine without a
-- boot id that is joining; another host may be behind the name then, so nothing of an approval is left.
-- The name of the trigger puts it after machines_choose_pool.
CREATE FUNCTION machines_hold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' AND NEW.host_boot = '' AND NEW.epoch > OLD.epoch AND NEW.state = 'joining' THEN
    NEW.held := '';
    NEW.equipment := NULL;
    NEW.approved := NULL;
    NEW.approved_by := '';
    NEW.approved_at := NULL;
    NEW.joined_token := '';
    NEW.joined_terms := NULL;
  END IF;
  -- A machine that was in service stays so without a look at its pool: a lock on pools must not keep
  -- a suspect machine from its work.
  IF NEW.state IN ('ready', 'suspect') AND NEW.held = '' AND NEW.approved IS NULL
     AND NOT (TG_OP = 'UPDATE' AND OLD.state IN ('ready', 'suspect') AND OLD.pool = NEW.pool)
     AND machine_needs_approval(NEW.pool, NEW.joined_pool) THEN
    NEW.held := 'waits for approval';
  END IF;
  IF NEW.state = 'ready' AND NEW.held <> '' THEN
    NEW.state := 'joining';
    NEW.reason := NEW.held;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER machines_hold BEFORE INSERT OR UPDATE OF state, pool, held, epoch ON machines
  FOR EACH ROW EXECUTE FUNCTION machines_hold();

-- The history of a machine shows why it is held, although its state stays joining.
CREATE TRIGGER machines_record_hold AFTER UPDATE OF held ON machines FOR EACH ROW
  WHEN (OLD.held <> NEW.held AND NEW.held <> '' AND OLD.state = NEW.state AND OLD.epoch = NEW.epoch
    AND OLD.host_boot = NEW.host_boot)
  EXECUTE FUNCTION machines_record();

-- Machines in service are known, so that an approval does not wait for their next registration.
UPDATE machines m SET equipment = machine_equipment(m) WHERE m.host_boot <> '' AND m.state <> 'retired';
