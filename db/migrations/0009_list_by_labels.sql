-- Lists by a label walk this instead of all of history. It outlives the move of
-- a job into the archive; what the job is besides, its own row tells.
CREATE TABLE job_labels (
  key          text NOT NULL,
  value        text NOT NULL,
  submitted_at timestamptz NOT NULL,
  job          uuid NOT NULL,
  tenant       text NOT NULL,
  PRIMARY KEY (key, value, submitted_at, job)
);
COMMENT ON TABLE job_labels IS 'labels of jobs without a parent, live or archived, in the order of lists; kept by a trigger on jobs';
CREATE INDEX job_labels_of_tenant ON job_labels (tenant, key, value, submitted_at, job);

CREATE FUNCTION jobs_label() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    DELETE FROM job_labels l
    USING jsonb_each_text(OLD.labels) o
    WHERE l.key = o.key AND l.value = o.value AND l.submitted_at = OLD.submitted_at AND l.job = OLD.id;
  END IF;
  INSERT INTO job_labels (key, value, submitted_at, job, tenant)
  SELECT n.key, n.value, NEW.submitted_at, NEW.id, NEW.tenant
  FROM jsonb_each_text(NEW.labels) n;
  RETURN NULL;
END $$;
CREATE TRIGGER jobs_label_insert AFTER INSERT ON jobs FOR EACH ROW WHEN (NEW.labels <> '{}' AND NEW.parent IS NULL) EXECUTE FUNCTION jobs_label();
CREATE TRIGGER jobs_label_update AFTER UPDATE OF labels ON jobs FOR EACH ROW WHEN (NEW.labels <> OLD.labels AND NEW.parent IS NULL) EXECUTE FUNCTION jobs_label();

INSERT INTO job_labels (key, value, submitted_at, job, tenant)
SELECT l.key, l.value, j.submitted_at, j.id, j.tenant
FROM (
  SELECT id, tenant, submitted_at, labels FROM jobs WHERE parent IS NULL
  UNION ALL
  SELECT id, tenant, submitted_at, labels FROM archived_jobs WHERE parent IS NULL
) j, jsonb_each_text(j.labels) l;
