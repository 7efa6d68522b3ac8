-- The data that each tenant stores, by kind, and its limits. docs/adr/0029.
--
-- Triggers record each change as a row of storage_changes; the leader adds these rows to
-- tenant_storage. Writers of any version of berthd are counted alike, and lock no
-- row of their tenant. The triggers are created first: each of them locks out
-- writers of its table until the rows in it are counted.

ALTER TABLE tenants
  ADD COLUMN storage jsonb CONSTRAINT tenants_storage CHECK (jsonb_typeof(storage) = 'object');
COMMENT ON COLUMN tenants.storage IS 'limits of stored data of it and those below it: bytes by kind (uploads, logs, outputs, checkpoints, total), and a number of secrets; null: no limit';

ALTER TABLE uploads ADD COLUMN stored_bytes bigint;
COMMENT ON COLUMN uploads.stored_bytes IS 'of the archive in the object store; null: stored by an older version, and counted by bytes';

ALTER TABLE allocations ADD COLUMN log_cut boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN allocations.log_cut IS 'the log exceeded a storage quota: its last line says so, and later lines are dropped';

CREATE TABLE tenant_storage (
  tenant text NOT NULL,
  kind   text NOT NULL CONSTRAINT tenant_storage_kind CHECK (kind IN ('uploads', 'logs', 'outputs', 'checkpoints', 'secrets')),
  amount bigint NOT NULL,
  PRIMARY KEY (tenant, kind)
);
COMMENT ON TABLE tenant_storage IS 'what each tenant stores, without those below it: bytes, and a number of secrets. Only the leader writes here; storage_changes are not in it yet';

CREATE TABLE storage_changes (
  id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant text NOT NULL,
  kind   text NOT NULL,
  amount bigint NOT NULL
);
COMMENT ON TABLE storage_changes IS 'changes of stored data since the leader last added them to tenant_storage; written by triggers in the transaction of the change';

-- Rows of uploads, secrets, outputs and log_chunks never change the columns that
-- count, so that only inserts and deletes of these tables have triggers.
CREATE FUNCTION uploads_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO storage_changes (tenant, kind, amount)
    SELECT tenant, 'uploads', sum(coalesce(stored_bytes, bytes)) FROM new_rows GROUP BY tenant;
  ELSE
    INSERT INTO storage_changes (tenant, kind, amount)
    SELECT tenant, 'uploads', -sum(coalesce(stored_bytes, bytes)) FROM old_rows GROUP BY tenant;
  END IF;
  RETURN NULL;
END $$;

CREATE FUNCTION secrets_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO storage_changes (tenant, kind, amount)
    SELECT tenant, 'secrets', count(*) FROM new_rows GROUP BY tenant;
  ELSE
    INSERT INTO storage_changes (tenant, kind, amount)
    SELECT tenant, 'secrets', -count(*) FROM old_rows GROUP BY tenant;
  END IF;
  RETURN NULL;
END $$;

-- The tenant of a job, archived or not.
CREATE FUNCTION tenant_of(of_job uuid) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT coalesce((SELECT j.tenant FROM jobs j WHERE j.id = of_job), (SELECT a.tenant FROM archived_jobs a WHERE a.id = of_job))
$$;

CREATE FUNCTION log_chunks_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO storage_changes (tenant, kind, amount)
    SELECT x.tenant, 'logs', x.amount
    FROM (SELECT tenant_of(job) AS tenant, sum(bytes) AS amount FROM new_rows GROUP BY job) x
    WHERE x.tenant IS NOT NULL;
  ELSE
    INSERT INTO storage_changes (tenant, kind, amount)
    SELECT x.tenant, 'logs', -x.amount
    FROM (SELECT tenant_of(job) AS tenant, sum(bytes) AS amount FROM old_rows GROUP BY job) x
    WHERE x.tenant IS NOT NULL;
  END IF;
  RETURN NULL;
END $$;

-- A cached step shares the objects of the job whose outputs it takes, under attempt 0:
-- an object counts once, from its first row to its last. No two transactions
-- delete rows of one object: they hold the lock for outputs alone.
CREATE FUNCTION outputs_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO storage_changes (tenant, kind, amount)
    SELECT x.tenant, 'outputs', x.amount
    FROM (SELECT tenant_of(job) AS tenant, sum(stored_bytes) AS amount FROM new_rows WHERE attempt > 0 GROUP BY job) x
    WHERE x.tenant IS NOT NULL;
  ELSE
    INSERT INTO storage_changes (tenant, kind, amount)
    SELECT x.tenant, 'outputs', -sum(x.stored_bytes)
    FROM (
      SELECT DISTINCT ON (o.object) o.object, tenant_of(o.job) AS tenant, o.stored_bytes
      FROM old_rows o
      WHERE NOT EXISTS (SELECT 1 FROM outputs k WHERE k.object = o.object)
      ORDER BY o.object, o.job
    ) x
    WHERE x.tenant IS NOT NULL
    GROUP BY x.tenant;
  END IF;
  RETURN NULL;
END $$;

-- Objects of pruned and bad checkpoints are deleted, soon or when their attempt is
-- swept: only the others count. A row is inserted with no bytes, and deleted before
-- its job.
CREATE FUNCTION checkpoints_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    INSERT INTO storage_changes (tenant, kind, amount)
    SELECT j.tenant, 'checkpoints', sum(x.amount)
    FROM (
      SELECT job, bytes AS amount FROM new_rows WHERE state IN ('partial', 'verified')
      UNION ALL
      SELECT job, -bytes FROM old_rows WHERE state IN ('partial', 'verified')
    ) x
    JOIN jobs j ON j.id = x.job
    GROUP BY j.tenant
    HAVING sum(x.amount) <> 0;
  ELSE
    INSERT INTO storage_changes (tenant, kind, amount)
    SELECT j.tenant, 'checkpoints', -sum(o.bytes)
    FROM old_rows o
    JOIN jobs j ON j.id = o.job
    WHERE o.state IN ('partial', 'verified')
    GROUP BY j.tenant
    HAVING sum(o.bytes) <> 0;
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER uploads_stored AFTER INSERT ON uploads
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION uploads_counted();
CREATE TRIGGER uploads_deleted AFTER DELETE ON uploads
  REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION uploads_counted();
CREATE TRIGGER secrets_stored AFTER INSERT ON secrets
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION secrets_counted();
CREATE TRIGGER secrets_deleted AFTER DELETE ON secrets
  REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION secrets_counted();
CREATE TRIGGER log_chunks_stored AFTER INSERT ON log_chunks
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION log_chunks_counted();
CREATE TRIGGER log_chunks_deleted AFTER DELETE ON log_chunks
  REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION log_chunks_counted();
CREATE TRIGGER outputs_stored AFTER INSERT ON outputs
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION outputs_counted();
CREATE TRIGGER outputs_deleted AFTER DELETE ON outputs
  REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION outputs_counted();
CREATE TRIGGER checkpoints_changed AFTER UPDATE ON checkpoints
  REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION checkpoints_counted();
CREATE TRIGGER checkpoints_deleted AFTER DELETE ON checkpoints
  REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION checkpoints_counted();

-- The sum of all rows that count, by tenant and kind: what tenant_storage with
-- storage_changes must come to. It reads whole tables.
CREATE VIEW stored_rows (tenant, kind, amount) AS
  SELECT tenant, 'uploads', sum(coalesce(stored_bytes, bytes))::bigint FROM uploads GROUP BY tenant
  UNION ALL
  SELECT tenant, 'secrets', count(*) FROM secrets GROUP BY tenant
  UNION ALL
  SELECT o.tenant, 'logs', sum(c.bytes)::bigint
  FROM (SELECT job, sum(bytes) AS bytes FROM log_chunks GROUP BY job) c
  JOIN (SELECT id, tenant FROM jobs UNION ALL SELECT id, tenant FROM archived_jobs) o ON o.id = c.job
  GROUP BY o.tenant
  UNION ALL
  SELECT o.tenant, 'outputs', sum(x.stored_bytes)::bigint
  FROM (SELECT DISTINCT ON (object) object, job, stored_bytes FROM outputs ORDER BY object, job) x
  JOIN (SELECT id, tenant FROM jobs UNION ALL SELECT id, tenant FROM archived_jobs) o ON o.id = x.job
  GROUP BY o.tenant
  UNION ALL
  SELECT j.tenant, 'checkpoints', sum(c.bytes)::bigint
  FROM checkpoints c
  JOIN jobs j ON j.id = c.job
  WHERE c.state IN ('partial', 'verified')
  GROUP BY j.tenant;
COMMENT ON VIEW stored_rows IS 'stored data by tenant and kind, summed from the rows themselves; berth-check compares it with the counters';

INSERT INTO tenant_storage (tenant, kind, amount)
SELECT tenant, kind, amount FROM stored_rows;

-- The limits that bind a tenant: its own and those of the tenants above it.
CREATE FUNCTION storage_limits(of_tenant text) RETURNS jsonb LANGUAGE sql STABLE AS $$
  WITH RECURSIVE line (id, parent, storage) AS (
    SELECT id, parent, storage FROM tenants WHERE id = of_tenant
    UNION ALL
    SELECT t.id, t.parent, t.storage FROM line l JOIN tenants t ON t.id = l.parent
  )
  SELECT jsonb_agg(jsonb_build_object('tenant', l.id, 'kind', k.key, 'most', k.value))
  FROM line l
  CROSS JOIN jsonb_each(l.storage) k
  WHERE l.storage IS NOT NULL
$$;
