-- Members whose unfinished line, such as a progress bar, somebody follows, and that line (adr/0105).
--
-- A row is a lease of a follower, with a picture of the last second, so the table needs no log: followers renew their
-- leases every few seconds, and agents send further pictures. Versions before this one ignore it.
CREATE UNLOGGED TABLE followed_members (
  alloc      bigint PRIMARY KEY,
  job        uuid NOT NULL,
  attempt    integer NOT NULL,
  rank       integer NOT NULL,
  machine_id text NOT NULL,
  until      timestamptz NOT NULL,
  at         timestamptz,
  stderr     boolean NOT NULL DEFAULT false,
  line       text NOT NULL DEFAULT '' CONSTRAINT followed_members_line CHECK (octet_length(line) <= 4096)
) WITH (fillfactor = 50);
CREATE INDEX followed_members_machine ON followed_members (machine_id);
COMMENT ON TABLE followed_members IS 'members whose unfinished line somebody follows; shown to users, and nothing is decided by it';
COMMENT ON COLUMN followed_members.until IS 'end of the lease, which replicas renew for their followers; later the agent reads no further lines';
COMMENT ON COLUMN followed_members.at IS 'when the line changed, by the clock of the machine; null: the agent has sent none';
COMMENT ON COLUMN followed_members.line IS 'last unfinished line that the agent sent; empty: the output has none';
