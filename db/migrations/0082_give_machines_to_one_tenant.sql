-- The machines of a pool may be used by one tenant at a time (adr/0113). An older berthd neither reads the rule nor
-- writes it, and the trigger below holds the rule for its placements too.
-- In the order of commits, which read pools before they insert allocations.
LOCK TABLE pools, allocations IN ACCESS EXCLUSIVE MODE;
ALTER TABLE pools ADD COLUMN one_tenant boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN pools.one_tenant IS 'each machine of the pool is used by the jobs of one tenant at a time';
ALTER TABLE allocations ADD COLUMN one_tenant boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN allocations.one_tenant IS 'committed under the rule one_tenant of the machine''s pool; false in rows of versions without the rule';

-- Each placement asks whether any pool has the rule.
CREATE INDEX pools_one_tenant ON pools (id) WHERE one_tenant;

-- The name of the trigger puts it after allocations_take, which locks the machines: of two transactions that place jobs
-- of two tenants on one machine, the second waits for the first and then sees its allocation.
CREATE FUNCTION allocations_whole() RETURNS trigger LANGUAGE plpgsql
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM pools WHERE one_tenant) AND EXISTS (
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
  RETURN NULL;
END $$;
CREATE TRIGGER allocations_whole AFTER INSERT ON allocations REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION allocations_whole();
