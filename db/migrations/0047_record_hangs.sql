-- Hung gangs are judged as a whole. The agent of each member reports when the member has shown no
-- sign of life for stall.after, and when it shows one again; the leader orders a gang to stop in
-- which no member shows any, and the agents then store evidence.
--
-- A berthd of the version before writes none of these columns and reads none: its leader passes
-- no such verdict. Rows of its attempts have nulls, which count as alive.

ALTER TABLE allocations
  ADD COLUMN quiet_at   timestamptz,
  ADD COLUMN quiet_boot text,
  ADD COLUMN quiet_seq  bigint,
  ADD COLUMN hang       jsonb;
COMMENT ON COLUMN allocations.quiet_at IS 'set: the member showed no sign of life for stall.after when its agent reported this, and has shown none since';
COMMENT ON COLUMN allocations.quiet_boot IS 'the agent process that wrote quiet_at and quiet_seq: the word of an earlier process counts for nothing';
COMMENT ON COLUMN allocations.quiet_seq IS 'of that process''s last report: an older report changes nothing';
COMMENT ON COLUMN allocations.hang IS 'what the machine found when the attempt was judged to hang, before it stopped the member';
CREATE INDEX allocations_quiet ON allocations (job) WHERE quiet_at IS NOT NULL AND state = 'active';

ALTER TABLE attempts ADD COLUMN hang jsonb;
COMMENT ON COLUMN attempts.hang IS 'of an attempt that ended by a hang: the member that differs from the others, and the evidence of some members; the rest is in allocations.hang';
