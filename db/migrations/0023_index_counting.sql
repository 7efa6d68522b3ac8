-- The sums of what counts on machines are compared with their counters every few
-- seconds. Without this that is a look at every allocation that is not archived.
CREATE INDEX allocations_counting ON allocations (machine_id) WHERE state IN ('reserved', 'active', 'kept', 'orphaned');
COMMENT ON INDEX allocations_counting IS 'what counts against machines: a few of all that ran';
