-- Who submitted a job. The column actor names who changed it last. Jobs from before, and jobs
-- that the version before submits, have none.
ALTER TABLE jobs ADD COLUMN submitted_by text;
COMMENT ON COLUMN jobs.submitted_by IS 'actor of the submit, such as user:alice or schedule:nightly; children have that of their parent; null: submitted by an earlier version';
