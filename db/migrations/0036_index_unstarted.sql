-- The jobs of a tenant whose workflows have not started. A tenant that submits faster than
-- workflows start is slowed down (docs/operate/limits.md), and that look is taken while
-- the control plane is busiest.
CREATE INDEX jobs_unstarted ON jobs (tenant) WHERE state = 'submitted' AND parent IS NULL AND NOT blocked;
COMMENT ON INDEX jobs_unstarted IS 'jobs that wait for their workflow, without elements and steps';
