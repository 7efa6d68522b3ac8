-- Pools of machines get rules: the tenants whose jobs they accept. The table exists since the first
-- migration and was empty. Every machine is in a pool that has a row: default, if no other is named.
-- A berthd of the version before neither reads the rules nor writes them; the triggers below hold
-- them for its statements too. Join tokens get a pattern of machine names, in the same way.
-- In the order of writers, which insert allocations before they update machines.
LOCK TABLE allocations, machines, join_tokens, pools IN SHARE ROW EXCLUSIVE MODE;
ALTER TABLE pools ALTER COLUMN provider SET DEFAULT '';
ALTER TABLE pools
  ADD COLUMN tenants     text[] CONSTRAINT pools_tenants CHECK (cardinality(tenants) > 0),
  ADD COLUMN description text NOT NULL DEFAULT '',
  ADD COLUMN version     bigint NOT NULL DEFAULT 1,
  ADD COLUMN created_at  timestamptz NOT NULL DEFAULT now(),
  ADD COLUMN updated_at  timestamptz NOT NULL DEFAULT now();
COMMENT ON TABLE pools IS 'sets of machines with rules; a pool that a machine or a join token names for the first time is created without rules';
COMMENT ON COLUMN pools.tenants IS 'the pool accepts jobs of these tenants and of all tenants below them; null: of all tenants';
COMMENT ON COLUMN pools.version IS 'increases with each change, so that concurrent changes are detected';

CREATE FUNCTION tenant_within(tenant text, roots text[]) RETURNS boolean LANGUAGE sql STABLE AS $$
  WITH RECURSIVE up (id) AS (
    SELECT tenant
    UNION
    SELECT t.parent FROM up JOIN tenants t ON t.id = up.id WHERE t.parent IS NOT NULL
  )
  SELECT EXISTS (SELECT 1 FROM up WHERE id = ANY (roots));
$$;
COMMENT ON FUNCTION tenant_within IS 'true for a tenant among the roots or below one of them';

CREATE FUNCTION pool_is_open(pool text) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT NOT EXISTS (SELECT 1 FROM pools p WHERE p.id = pool AND p.tenants IS NOT NULL);
$$;
COMMENT ON FUNCTION pool_is_open IS 'true for a pool without rules, which machines may enter and leave by the word of their agents';

-- A pool that is named has a row, which cannot be deleted before this transaction has ended.
CREATE FUNCTION pools_keep(pool text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  LOOP
    PERFORM 1 FROM pools p WHERE p.id = pool FOR KEY SHARE;
    EXIT WHEN FOUND;
    INSERT INTO pools (id) VALUES (pool) ON CONFLICT DO NOTHING;
  END LOOP;
END $$;

-- The agent of a machine that joined without a pool names one at each registration. It cannot
-- choose a pool with rules, and cannot leave one: both need a join token for the pool.
CREATE FUNCTION machines_choose_pool() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.pool = '' THEN
    NEW.pool := 'default';
  END IF;
  IF TG_OP = 'UPDATE' THEN
    IF NEW.pool <> OLD.pool AND NEW.joined_pool = '' AND NEW.host_boot <> ''
       AND NOT (pool_is_open(NEW.pool) AND (OLD.host_boot = '' OR pool_is_open(OLD.pool))) THEN
      NEW.pool := OLD.pool;
    END IF;
    IF NEW.pool = OLD.pool AND OLD.state <> 'retired' THEN
      RETURN NEW;
    END IF;
  END IF;
  PERFORM pools_keep(NEW.pool);
  RETURN NEW;
END $$;
CREATE TRIGGER machines_choose_pool BEFORE INSERT OR UPDATE OF pool ON machines
  FOR EACH ROW EXECUTE FUNCTION machines_choose_pool();

CREATE FUNCTION join_tokens_keep_pool() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pools_keep(NEW.pool);
  RETURN NEW;
END $$;
CREATE TRIGGER join_tokens_keep_pool BEFORE INSERT ON join_tokens
  FOR EACH ROW WHEN (NEW.pool <> '') EXECUTE FUNCTION join_tokens_keep_pool();

-- A join token may name the machines that it admits, whichever version of berthd answers the join.
ALTER TABLE join_tokens ADD COLUMN machines text NOT NULL DEFAULT '';
COMMENT ON COLUMN join_tokens.machines IS 'pattern of the names of machines that may join; * stands for any characters; empty: any name';

CREATE FUNCTION join_token_admits(pattern text, machine text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT pattern = '' OR machine LIKE replace(pattern, '*', '%');
$$;

CREATE FUNCTION join_tokens_match() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.used_by IS NOT NULL AND NOT join_token_admits(NEW.machines, NEW.used_by) THEN
    RAISE EXCEPTION 'join token % does not admit machine %', NEW.id, NEW.used_by USING ERRCODE = 'BT013';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER join_tokens_match BEFORE INSERT OR UPDATE OF used_by ON join_tokens
  FOR EACH ROW EXECUTE FUNCTION join_tokens_match();

INSERT INTO pools (id)
SELECT 'default'
UNION SELECT pool FROM machines WHERE pool <> ''
UNION SELECT pool FROM join_tokens WHERE pool <> ''
ON CONFLICT DO NOTHING;
UPDATE machines SET pool = 'default' WHERE pool = '';

-- Each placement asks whether any pool has rules.
CREATE INDEX pools_restricted ON pools (id) WHERE tenants IS NOT NULL;

-- A pool accepts the jobs of its tenants only, whichever process writes. The name of the trigger
-- puts it after allocations_take, which locks the machines.
CREATE FUNCTION allocations_tenants() RETURNS trigger LANGUAGE plpgsql
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM pools WHERE tenants IS NOT NULL) AND EXISTS (
    SELECT 1
    FROM new_rows n
    JOIN machines m ON m.id = n.machine_id
    JOIN pools p ON p.id = m.pool
    JOIN jobs j ON j.id = n.job
    WHERE counts(n.state) AND p.tenants IS NOT NULL AND NOT tenant_within(j.tenant, p.tenants)) THEN
    RAISE EXCEPTION 'the pool of a machine does not take jobs of this tenant' USING ERRCODE = 'BT012';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER allocations_tenants AFTER INSERT ON allocations REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION allocations_tenants();
