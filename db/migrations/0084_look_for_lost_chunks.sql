-- Lost chunks are found before a restore (docs/adr/0098-unchanged-content-is-stored-once.md). A berthd of the version
-- before stores chunks without a look: the time of the row counts as one.
ALTER TABLE chunks ADD COLUMN looked_at timestamptz NOT NULL DEFAULT now();
COMMENT ON COLUMN chunks.looked_at IS 'when the leader last looked for the object in the store, or the object was stored';

-- A leap puts all chunks and loads in doubt at once: it raises cluster.incarnation and writes none of their rows. Rows of
-- now, and rows that a berthd of the version before adds, are of the present incarnation; both columns are added without
-- a pass over the table.
DO $$
BEGIN
  EXECUTE (SELECT format('ALTER TABLE chunks ADD COLUMN incarnation bigint NOT NULL DEFAULT %s', incarnation) FROM cluster);
  EXECUTE (SELECT format('ALTER TABLE chunk_loads ADD COLUMN incarnation bigint NOT NULL DEFAULT %s', incarnation) FROM cluster);
END $$;
CREATE INDEX chunks_looked ON chunks (incarnation, looked_at);
COMMENT ON COLUMN chunks.incarnation IS 'of the database when the object was last found intact or stored; below cluster.incarnation: the copy is in doubt';
COMMENT ON COLUMN chunk_loads.incarnation IS 'of the database when the member announced the chunk; below cluster.incarnation: the key is not used any more';

ALTER TABLE chunk_loads ADD COLUMN step bigint;
COMMENT ON COLUMN chunk_loads.step IS 'step of the checkpoint for which the member last announced the chunk; null: announced by the version before';
