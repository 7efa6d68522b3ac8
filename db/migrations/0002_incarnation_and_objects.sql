-- Which life of the database this is, and which objects are nobody's any more.

ALTER TABLE cluster
  ADD COLUMN incarnation bigint NOT NULL DEFAULT 1,
  ADD COLUMN system      text NOT NULL DEFAULT '';
COMMENT ON COLUMN cluster.incarnation IS 'grows when the server''s own identity or timeline changed: a backup was restored, or a standby took over';
COMMENT ON COLUMN cluster.system IS 'identity and timeline of the server as last seen; empty before the first look';

CREATE TABLE doomed_objects (
  prefix text PRIMARY KEY,
  since  timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE doomed_objects IS 'folders of the object store that no row leads to any more; a row goes once its folder has';

ALTER TABLE attempts ADD COLUMN swept_at timestamptz;
COMMENT ON COLUMN attempts.swept_at IS 'what it left in the object store without a row was removed';
CREATE INDEX attempts_unswept ON attempts (ended_at) WHERE swept_at IS NULL AND ended_at IS NOT NULL;
