-- What the caches of machines hold and what jobs need, for placement to prefer
-- one by the other. Nothing rests on it: rows may be old, or missing.

ALTER TABLE jobs ADD COLUMN data bigint[];
COMMENT ON COLUMN jobs.data IS 'keys of the code and the inputs that its spec names, see berth.DataKey; null: it has none, and no outputs of other jobs either. Those are in job_inputs';

CREATE FUNCTION content_key(tenant text, address text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT ('x' || left(encode(sha256(convert_to(tenant || E'\narchive\n' || replace(address, 'sha256:', ''), 'UTF8')), 'hex'), 16))::bit(64)::bigint;
$$;
COMMENT ON FUNCTION content_key IS 'berth.ArchiveKey; a test compares them';

CREATE TABLE machine_caches (
  machine_id text PRIMARY KEY,
  keys       bigint[] NOT NULL,
  mib        bigint[] NOT NULL,
  xid        xid8 NOT NULL DEFAULT pg_current_xact_id(),
  CONSTRAINT machine_caches_pairs CHECK (cardinality(keys) = cardinality(mib))
);
COMMENT ON TABLE machine_caches IS 'the largest entries of each machine''s cache, as its agent told last; written when they are others, and kept apart from the row that each start and end writes';
CREATE INDEX machine_caches_feed ON machine_caches (xid);
