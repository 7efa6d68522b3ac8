-- The users of containers: a range of numbers for each tenant. docs/adr/0093.
--
-- Images may expect the user that they name, often root: the operator opts in to users of tenants.
ALTER TABLE cluster
  ADD COLUMN container_user text NOT NULL DEFAULT 'image'
    CONSTRAINT cluster_container_user CHECK (container_user IN ('tenant', 'image')),
  ADD COLUMN container_uids int8range NOT NULL DEFAULT '[2010000000,2110000000)',
  ADD COLUMN uids_per_tenant integer NOT NULL DEFAULT 1000,
  ADD CONSTRAINT cluster_container_uids CHECK (lower(container_uids) >= 1000 AND upper(container_uids) <= 2147483647
    AND uids_per_tenant BETWEEN 1 AND upper(container_uids) - lower(container_uids));
COMMENT ON COLUMN cluster.container_user IS 'user of containers if the job file has no user: tenant or image';
COMMENT ON COLUMN cluster.container_uids IS 'numbers from which tenants get ranges of users; a change does not affect existing ranges';
COMMENT ON COLUMN cluster.uids_per_tenant IS 'size of the range of each tenant that gets one from now on';

-- A range is never given to another tenant: files on shared folders may outlive their tenant.
CREATE TABLE tenant_uids (
  uids      int8range NOT NULL PRIMARY KEY CHECK (NOT isempty(uids) AND lower(uids) >= 1000 AND upper(uids) <= 2147483647),
  tenant    text UNIQUE,
  given_at  timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT tenant_uids_disjoint EXCLUDE USING gist (uids WITH &&)
);
COMMENT ON TABLE tenant_uids IS 'range of user and group numbers of each tenant; rows stay when their tenant is deleted';
COMMENT ON COLUMN tenant_uids.uids IS 'the range; it overlaps no other one and never changes';
COMMENT ON COLUMN tenant_uids.tenant IS 'owner; null: the tenant was deleted, or a restored database may have lost the owner';
COMMENT ON COLUMN tenant_uids.given_at IS 'when the range was taken';

CREATE FUNCTION tenant_uids_stay() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' AND NEW.uids = OLD.uids AND (NEW.tenant IS NULL OR NEW.tenant = OLD.tenant) THEN
    RETURN NEW;
  END IF;
  RAISE EXCEPTION 'users % of tenant % cannot be changed, deleted or given to another tenant', OLD.uids, OLD.tenant
    USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER tenant_uids_stay BEFORE UPDATE OR DELETE ON tenant_uids FOR EACH ROW EXECUTE FUNCTION tenant_uids_stay();

ALTER TABLE tenants ADD COLUMN any_user boolean;
COMMENT ON COLUMN tenants.any_user IS 'whether jobs may run as the user of their image or as any other one, root included; null: as the tenant above, at the top as container_user of the cluster says';

-- The version before would drop the user and the read-only root of a job file that it copies (migration 0051).
CREATE OR REPLACE FUNCTION format_of(file jsonb) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN file ?| '{user,read_only_root}' OR jsonb_path_exists(file,
      '$.**.jobs.* ? (exists(@.user) || exists(@.read_only_root))') THEN 3
    WHEN file ? 'alternatives' OR jsonb_path_exists(file, '$.**.jobs.* ? (exists(@.alternatives))') THEN 2
    WHEN file ?| '{stall,network}' OR jsonb_path_exists(file,
      '$.**.jobs.* ? (exists(@.when) || exists(@.final) || exists(@.array.from) || exists(@.stall) || exists(@.network))')
    THEN 1 ELSE 0 END
$$;

CREATE OR REPLACE FUNCTION refuse_old_copy(what text, file jsonb, known integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF known < format_of(file) THEN
    RAISE EXCEPTION '% has when, final, array.from, stall, network, alternatives, user or read_only_root, which this berthd does not know: a newer one must run it; repeat the call, or upgrade this berthd', what
      USING ERRCODE = '57T01';
  END IF;
END $$;

DROP TRIGGER jobs_copied ON jobs;
CREATE TRIGGER jobs_copied BEFORE INSERT ON jobs FOR EACH ROW
  WHEN (NEW.retry_of IS NOT NULL AND NEW.format < 3)
  EXECUTE FUNCTION jobs_copied();

CREATE OR REPLACE FUNCTION schedule_fires_copied() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM refuse_old_copy('schedule ' || s.name, coalesce(s.spec -> 'pipeline', s.spec -> 'job'), j.format)
  FROM schedules s, jobs j
  WHERE s.id = NEW.schedule AND j.id = NEW.job AND j.format < 3;
  RETURN NEW;
END $$;
