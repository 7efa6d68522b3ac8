-- Lost chunks are found before a restore (docs/adr/0098-unchanged-content-is-stored-once.md). A berthd of the version
-- before stores chunks without a look: the time of the row counts as one.
ALTER TABLE chunks ADD COLUMN looked_at timestamptz NOT NULL DEFAULT now();
CREATE INDEX chunks_looked ON chunks (looked_at);
COMMENT ON COLUMN chunks.looked_at IS 'when the leader last looked for the object in the store, or the object was stored';

ALTER TABLE chunk_loads ADD COLUMN step bigint;
COMMENT ON COLUMN chunk_loads.step IS 'step of the checkpoint for which the member last announced the chunk; null: announced by the version before';
