-- One tenant a GPU. A claim that was committed under the rule names the tenant of its job; the
-- tenant is null in claims of the version before, of clusters that share GPUs across tenants, and of
-- whole GPUs. So an older leader commits as before, and no row needs a backfill.
ALTER TABLE gpu_claims ADD COLUMN tenant text;
COMMENT ON COLUMN gpu_claims.tenant IS 'tenant of the job, if the claim may share its device with claims of that tenant only; null: committed without this rule, or the whole device';

CREATE OR REPLACE VIEW device_allocations AS
  SELECT alloc_id, machine_id, idx, milli, tenant FROM gpu_claims;

-- As before, and a claim with a tenant is refused next to a live claim of another tenant, whatever
-- its version.
CREATE OR REPLACE FUNCTION gpu_claims_take() RETURNS trigger LANGUAGE plpgsql
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
  IF EXISTS (SELECT 1 FROM new_rows WHERE tenant IS NOT NULL) AND EXISTS (
    SELECT 1
    FROM new_rows c
    JOIN allocations a ON a.machine_id = c.machine_id AND a.forgotten_at IS NULL AND counts(a.state)
    JOIN gpu_claims o ON o.alloc_id = a.id AND o.machine_id = c.machine_id AND o.idx = c.idx
    JOIN jobs j ON j.id = a.job
    WHERE c.tenant IS NOT NULL AND j.tenant <> c.tenant) THEN
    RAISE EXCEPTION 'a GPU is shared by another tenant' USING ERRCODE = 'BT011';
  END IF;
  RETURN NULL;
END $$;
