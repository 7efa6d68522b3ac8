-- A value of the job's progress file next to each checkpoint, by which checkpoint.keep_best
-- chooses. A berthd of the version before registers no values and prunes by age alone.
ALTER TABLE checkpoint_shards ADD COLUMN metric_value double precision;
COMMENT ON COLUMN checkpoint_shards.metric_value IS 'value of checkpoint.keep_best.metric that the member had reported when it saved the step; null: none';
ALTER TABLE checkpoints ADD COLUMN metric_value double precision;
COMMENT ON COLUMN checkpoints.metric_value IS 'that of the lowest member with a value, set when the step is verified';
