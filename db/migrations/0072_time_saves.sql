-- How long a job and its machine took to save each checkpoint. A berthd of the version before registers neither time.
ALTER TABLE checkpoint_shards
  ADD COLUMN write_ms bigint CHECK (write_ms >= 0),
  ADD COLUMN store_ms bigint CHECK (store_ms >= 0);
COMMENT ON COLUMN checkpoint_shards.write_ms IS 'time from the creation of the step''s folder until its file DONE; null: not measured';
COMMENT ON COLUMN checkpoint_shards.store_ms IS 'time from the first file that the agent hashed until it registered the step; null: not measured';
ALTER TABLE checkpoints ADD COLUMN write_ms bigint, ADD COLUMN store_ms bigint;
COMMENT ON COLUMN checkpoints.write_ms IS 'that of the slowest member, set with its shard';
COMMENT ON COLUMN checkpoints.store_ms IS 'that of the slowest member, set with its shard';
