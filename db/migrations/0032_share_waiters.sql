-- The members that each replica waits for. docs/adr/0030.
--
-- Replicas write their row every few seconds and the leader reads all of them. A row
-- that a crash of the database loses is written again, so the table needs no log.
CREATE UNLOGGED TABLE waiter_sets (
  replica text PRIMARY KEY,
  members bigint[] NOT NULL,
  at      timestamptz NOT NULL
);
COMMENT ON TABLE waiter_sets IS 'the members that each replica waits for; one row a replica, removed when it stops';
COMMENT ON COLUMN waiter_sets.members IS 'allocations for which the replica holds an activity';
COMMENT ON COLUMN waiter_sets.at IS 'when the replica last confirmed the row; an old row is of a replica that died';
