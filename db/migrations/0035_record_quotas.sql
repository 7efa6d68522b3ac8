-- What a tenant may hold, over time. berth-check compares it with what the tenant held
-- (invariant 11 of docs/checking.md).
CREATE TABLE tenant_log (
  seq             bigint PRIMARY KEY DEFAULT nextval('ledger'),
  at              timestamptz NOT NULL DEFAULT clock_timestamp(),
  tenant          text NOT NULL,
  parent          text,
  limit_cpu_m     bigint,
  limit_mem_mb    bigint,
  limit_gpu_milli bigint,
  max_running     bigint,
  deleted         boolean NOT NULL DEFAULT false
);
COMMENT ON TABLE tenant_log IS 'append-only: the parent and the limits of each tenant from each number of the ledger on; null is no limit';

CREATE FUNCTION tenants_record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    INSERT INTO tenant_log (tenant, parent, deleted) VALUES (OLD.id, OLD.parent, true);
  ELSE
    INSERT INTO tenant_log (tenant, parent, limit_cpu_m, limit_mem_mb, limit_gpu_milli, max_running)
    VALUES (NEW.id, NEW.parent, NEW.limit_cpu_m, NEW.limit_mem_mb, NEW.limit_gpu_milli, NEW.max_running);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER tenants_record AFTER INSERT OR DELETE ON tenants
  FOR EACH ROW EXECUTE FUNCTION tenants_record();
CREATE TRIGGER tenants_record_change AFTER UPDATE ON tenants
  FOR EACH ROW
  WHEN ((OLD.parent, OLD.limit_cpu_m, OLD.limit_mem_mb, OLD.limit_gpu_milli, OLD.max_running)
    IS DISTINCT FROM (NEW.parent, NEW.limit_cpu_m, NEW.limit_mem_mb, NEW.limit_gpu_milli, NEW.max_running))
  EXECUTE FUNCTION tenants_record();

-- What stood before the log began.
INSERT INTO tenant_log (tenant, parent, limit_cpu_m, limit_mem_mb, limit_gpu_milli, max_running)
SELECT id, parent, limit_cpu_m, limit_mem_mb, limit_gpu_milli, max_running
FROM tenants
ORDER BY id;
