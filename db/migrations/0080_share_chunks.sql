-- Content that several checkpoints share is stored once (docs/adr/0098-unchanged-content-is-stored-once.md).
--
-- Large files of checkpoints consist of chunks, which belong to a tenant. Triggers count the references to a chunk, and
-- its bytes once, so a berthd of the version before, which knows no chunks, prunes and archives checkpoints with chunks
-- correctly. It registers no checkpoint with chunks.

CREATE TABLE chunks (
  tenant       text NOT NULL,
  sha256       bytea NOT NULL CONSTRAINT chunks_sha256 CHECK (octet_length(sha256) = 32),
  bytes        integer NOT NULL CONSTRAINT chunks_bytes CHECK (bytes BETWEEN 1 AND 4194304),
  refs         integer NOT NULL DEFAULT 0 CONSTRAINT chunks_refs CHECK (refs >= 0),
  unused_since timestamptz NOT NULL DEFAULT clock_timestamp(),
  broken       boolean NOT NULL DEFAULT false,
  job          uuid NOT NULL,
  attempt      integer NOT NULL,
  rank         integer NOT NULL,
  copy         text NOT NULL,
  PRIMARY KEY (tenant, sha256)
);
CREATE INDEX chunks_unused ON chunks (unused_since) WHERE refs = 0;
COMMENT ON TABLE chunks IS 'parts of checkpoint files in the object store, each stored once for its tenant';
COMMENT ON COLUMN chunks.refs IS 'rows of chunk_refs; kept by a trigger';
COMMENT ON COLUMN chunks.unused_since IS 'with refs = 0: when the last reference ended, or an attempt last stored the chunk';
COMMENT ON COLUMN chunks.broken IS 'the object is missing or has another content: the next attempt that has the content replaces the copy';
COMMENT ON COLUMN chunks.job IS 'job that stored the copy, as attempt and rank: parts of its key; the job may be archived';
COMMENT ON COLUMN chunks.copy IS 'random part of the key of the copy';

CREATE TABLE chunk_refs (
  job     uuid NOT NULL,
  step    bigint NOT NULL,
  attempt integer NOT NULL,
  rank    integer NOT NULL,
  sha256  bytea NOT NULL,
  tenant  text NOT NULL,
  PRIMARY KEY (job, step, attempt, rank, sha256)
);
CREATE INDEX chunk_refs_chunk ON chunk_refs (tenant, sha256);
COMMENT ON TABLE chunk_refs IS 'the chunks of each registered part of a checkpoint that is partial or verified';

CREATE TABLE chunk_loads (
  job     uuid NOT NULL,
  attempt integer NOT NULL,
  rank    integer NOT NULL,
  sha256  bytea NOT NULL,
  tenant  text NOT NULL,
  bytes   integer NOT NULL,
  copy    text NOT NULL,
  stored  boolean NOT NULL DEFAULT false,
  at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (job, attempt, rank, sha256)
);
CREATE INDEX chunk_loads_chunk ON chunk_loads (tenant, sha256);
COMMENT ON TABLE chunk_loads IS 'chunks that a member stores, or has stored and not yet registered; deleted with the registration, an hour after the attempt, or after a day';
COMMENT ON COLUMN chunk_loads.copy IS 'random part of the key that this member alone may write';
COMMENT ON COLUMN chunk_loads.at IS 'when the member last announced or stored the chunk';
COMMENT ON COLUMN chunk_loads.stored IS 'the server has compared the object with the hash: the member has the content';

ALTER TABLE checkpoint_shards
  ADD COLUMN chunked_bytes bigint NOT NULL DEFAULT 0,
  ADD COLUMN stored_bytes bigint;
COMMENT ON COLUMN checkpoint_shards.chunked_bytes IS 'the part of bytes in files of chunks';
COMMENT ON COLUMN checkpoint_shards.stored_bytes IS 'bytes that no other checkpoint had when the part was registered; null: all';
ALTER TABLE checkpoints
  ADD COLUMN chunked_bytes bigint NOT NULL DEFAULT 0,
  ADD COLUMN stored_bytes bigint;
COMMENT ON COLUMN checkpoints.chunked_bytes IS 'sum over the shards; these bytes are counted by chunks';
COMMENT ON COLUMN checkpoints.stored_bytes IS 'sum over the shards; null: all bytes';

-- Each statement locks its chunks in the order of their hashes before it counts. A chunk counts for its tenant from its
-- first reference to its last.
CREATE FUNCTION chunk_refs_counted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  named integer;
  counted integer;
BEGIN
  IF TG_OP = 'INSERT' THEN
    PERFORM 1 FROM chunks c
      WHERE (c.tenant, c.sha256) IN (SELECT n.tenant, n.sha256 FROM new_rows n)
      ORDER BY c.tenant, c.sha256 FOR NO KEY UPDATE;
    WITH n AS (
      SELECT tenant, sha256, count(*)::integer AS refs FROM new_rows GROUP BY tenant, sha256
    ), u AS (
      UPDATE chunks c SET refs = c.refs + n.refs FROM n WHERE c.tenant = n.tenant AND c.sha256 = n.sha256
      RETURNING c.tenant, c.bytes, c.refs = n.refs AS first
    ), s AS (
      INSERT INTO storage_changes (tenant, kind, amount)
      SELECT tenant, 'checkpoints', sum(bytes) FROM u WHERE first GROUP BY tenant
    )
    SELECT (SELECT count(*) FROM n), (SELECT count(*) FROM u) INTO named, counted;
    IF named <> counted THEN
      RAISE EXCEPTION '% of % chunks have no row', named - counted, named;
    END IF;
  ELSIF EXISTS (SELECT 1 FROM old_rows) THEN
    PERFORM 1 FROM chunks c
      WHERE (c.tenant, c.sha256) IN (SELECT o.tenant, o.sha256 FROM old_rows o)
      ORDER BY c.tenant, c.sha256 FOR NO KEY UPDATE;
    WITH o AS (
      SELECT tenant, sha256, count(*)::integer AS refs FROM old_rows GROUP BY tenant, sha256
    ), u AS (
      UPDATE chunks c SET refs = c.refs - o.refs, unused_since = clock_timestamp()
      FROM o WHERE c.tenant = o.tenant AND c.sha256 = o.sha256
      RETURNING c.tenant, c.bytes, c.refs
    )
    INSERT INTO storage_changes (tenant, kind, amount)
    SELECT tenant, 'checkpoints', -sum(bytes) FROM u WHERE refs = 0 GROUP BY tenant;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER chunk_refs_added AFTER INSERT ON chunk_refs
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION chunk_refs_counted();
CREATE TRIGGER chunk_refs_ended AFTER DELETE ON chunk_refs
  REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION chunk_refs_counted();

CREATE FUNCTION guard_used_chunk() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'chunk % of tenant % has % references', encode(OLD.sha256, 'hex'), OLD.tenant, OLD.refs;
END $$;
CREATE TRIGGER chunks_used BEFORE DELETE ON chunks
  FOR EACH ROW WHEN (OLD.refs > 0) EXECUTE FUNCTION guard_used_chunk();

-- The references of a checkpoint end with it, whoever prunes, rejects or archives it.
CREATE FUNCTION checkpoint_refs_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    IF EXISTS (SELECT 1 FROM new_rows WHERE state IN ('pruned', 'bad')) THEN
      DELETE FROM chunk_refs r USING new_rows n
      WHERE n.state IN ('pruned', 'bad') AND r.job = n.job AND r.step = n.step AND r.attempt = n.attempt;
    END IF;
  ELSE
    DELETE FROM chunk_refs r USING old_rows o
    WHERE r.job = o.job AND r.step = o.step AND r.attempt = o.attempt;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER checkpoints_let_chunks_go AFTER UPDATE ON checkpoints
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION checkpoint_refs_ended();
CREATE TRIGGER checkpoints_deleted_with_refs AFTER DELETE ON checkpoints
  REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION checkpoint_refs_ended();

-- As in migration 0030, without the bytes in chunks.
CREATE OR REPLACE FUNCTION checkpoints_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    INSERT INTO storage_changes (tenant, kind, amount)
    SELECT j.tenant, 'checkpoints', sum(x.amount)
    FROM (
      SELECT job, bytes - chunked_bytes AS amount FROM new_rows WHERE state IN ('partial', 'verified')
      UNION ALL
      SELECT job, chunked_bytes - bytes FROM old_rows WHERE state IN ('partial', 'verified')
    ) x
    JOIN jobs j ON j.id = x.job
    GROUP BY j.tenant
    HAVING sum(x.amount) <> 0;
  ELSE
    INSERT INTO storage_changes (tenant, kind, amount)
    SELECT j.tenant, 'checkpoints', -sum(o.bytes - o.chunked_bytes)
    FROM old_rows o
    JOIN jobs j ON j.id = o.job
    WHERE o.state IN ('partial', 'verified')
    GROUP BY j.tenant
    HAVING sum(o.bytes - o.chunked_bytes) <> 0;
  END IF;
  RETURN NULL;
END $$;

CREATE OR REPLACE VIEW stored_rows (tenant, kind, amount) AS
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
  SELECT x.tenant, 'checkpoints', sum(x.bytes)::bigint
  FROM (
    SELECT j.tenant, c.bytes - c.chunked_bytes AS bytes
    FROM checkpoints c
    JOIN jobs j ON j.id = c.job
    WHERE c.state IN ('partial', 'verified')
    UNION ALL
    SELECT tenant, bytes FROM chunks WHERE refs > 0
  ) x
  GROUP BY x.tenant;
