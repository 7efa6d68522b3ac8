-- A sign of the database's age that a restored backup cannot carry: each number
-- is written to the object store before it is granted here. docs/adr/0033.

ALTER TABLE cluster
  ADD COLUMN branch        text NOT NULL DEFAULT '',
  ADD COLUMN leapt_to      bigint NOT NULL DEFAULT 1,
  ADD COLUMN watermark_key bytea NOT NULL
    DEFAULT decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex');
COMMENT ON COLUMN cluster.branch IS 'the branch of watermarks that grows now; empty before the first one';
COMMENT ON COLUMN cluster.leapt_to IS 'number of the watermark after the latest leap: smaller ones are all accounted for';
COMMENT ON COLUMN cluster.watermark_key IS 'signs watermarks; never leaves the database';

CREATE TABLE watermark_branches (
  branch     text PRIMARY KEY,
  granted    bigint NOT NULL,
  pending    bigint NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT watermark_branches_order CHECK (pending >= granted)
);
COMMENT ON TABLE watermark_branches IS 'one row per leader''s term: the highest watermark granted on it, and the highest that may be in the object store';
