-- The database names its object store, so that berthd notices another or an emptied bucket
-- (docs/adr/0098-unchanged-content-is-stored-once.md). The first berthd of this version to start records the id of the
-- store. A berthd of the version before does not compare the id.
ALTER TABLE cluster
  ADD COLUMN store_id text CONSTRAINT cluster_store_id CHECK (store_id ~ '^[A-Z2-7]{26}$');
COMMENT ON COLUMN cluster.store_id IS 'id of the object store, as the object @berth-store in it contains; null: none is recorded yet';
