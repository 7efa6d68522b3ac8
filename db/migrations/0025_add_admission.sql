-- Whether new work may start is the newest row; no row: it may. Old rows are kept:
-- they say who stopped a cluster, when and why.
CREATE TABLE admission_changes (
  id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  paused boolean NOT NULL,
  reason text NOT NULL DEFAULT '' CHECK (length(reason) <= 1000),
  actor  text NOT NULL,
  at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE admission_changes IS 'pauses and resumptions of admission by operators; the newest row holds';

-- A settled rank is released, so this holds the ranks of attempts that nobody has
-- settled yet: a few, whatever the history.
CREATE INDEX allocations_sealed ON allocations (sealed_at) WHERE state = 'exited' AND sealed_at IS NOT NULL;
COMMENT ON INDEX allocations_sealed IS 'ended and stored, not settled: counted twice a second while starts pass';
