-- Backups (adr/0083). A running backup holds back the deletion of objects and of old rows. A restored cluster is
-- quarantined until an operator adopts it.
CREATE TABLE backups (
  id         text PRIMARY KEY,
  actor      text NOT NULL,
  started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at timestamptz NOT NULL,
  ended_at   timestamptz,
  whole      boolean NOT NULL DEFAULT false,
  CONSTRAINT backups_whole CHECK (ended_at IS NOT NULL OR NOT whole)
);
COMMENT ON TABLE backups IS 'runs of berthd backup create, one row each';
COMMENT ON COLUMN backups.actor IS 'user and host that run the backup';
COMMENT ON COLUMN backups.expires_at IS 'end of the lease, which the backup renews; until then a backup that has not ended holds back deletions';
COMMENT ON COLUMN backups.ended_at IS 'when the backup has ended by itself; null: it runs, or was killed';
COMMENT ON COLUMN backups.whole IS 'the backup was completed';
CREATE INDEX backups_running ON backups (expires_at) WHERE ended_at IS NULL;
COMMENT ON INDEX backups_running IS 'the backups that may hold back deletions, which every deletion reads';

ALTER TABLE cluster
  ADD COLUMN quarantined_at timestamptz,
  ADD COLUMN backup_taken_at timestamptz;
COMMENT ON COLUMN cluster.quarantined_at IS 'when the database was restored by berthd backup restore; null once an operator has adopted it. Until then there is no leader, and machines get no orders';
COMMENT ON COLUMN cluster.backup_taken_at IS 'start of the backup that the database was last restored from';

CREATE TABLE unknown_containers (
  machine_id text NOT NULL,
  alloc      bigint NOT NULL,
  job        uuid NOT NULL,
  attempt    integer NOT NULL,
  rank       integer NOT NULL,
  running    boolean NOT NULL,
  seen_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (machine_id, alloc, job)
);
COMMENT ON TABLE unknown_containers IS 'containers that machines reported to a quarantined cluster and that no row knows: work of the time after the backup. The next restore clears the table';
