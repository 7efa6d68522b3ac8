-- Programs read the figures of an event from a column of their own instead of its text.
-- A new column without a default rewrites nothing. Rows of older programs have null.
ALTER TABLE job_events ADD COLUMN facts jsonb;
COMMENT ON COLUMN job_events.facts IS 'rank, machine, step and bytes, as far as the kind has them; null: none, or written before the column was';
