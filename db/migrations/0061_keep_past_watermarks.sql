-- A machine whose key the database does not know returns by a watermark that the database has lost
-- (adr/0069). Every failover makes the database leap, also one that has lost nothing, and a leap deletes the
-- branches of watermarks. This table keeps how far the database knew them. It is filled by a trigger, and so
-- by the version before, too.
CREATE TABLE watermark_past (
  branch  text PRIMARY KEY,
  granted bigint NOT NULL
);
COMMENT ON TABLE watermark_past IS 'branches of watermarks that a leap has ended, and the highest number on each that the database knew then: higher ones were lost';
COMMENT ON COLUMN watermark_past.branch IS 'empty: all branches that were ended before this table existed, which prove no loss';

INSERT INTO watermark_past (branch, granted) SELECT '', leapt_to - 1 FROM cluster;

CREATE FUNCTION watermark_branches_keep_past() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO watermark_past AS p (branch, granted) VALUES (OLD.branch, OLD.granted)
  ON CONFLICT (branch) DO UPDATE SET granted = greatest(p.granted, excluded.granted);
  RETURN NULL;
END $$;
CREATE TRIGGER watermark_branches_keep_past AFTER DELETE ON watermark_branches
  FOR EACH ROW EXECUTE FUNCTION watermark_branches_keep_past();
