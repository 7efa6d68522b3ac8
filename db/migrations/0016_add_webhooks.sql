-- Webhooks: what is to be told to whom, written by the statement that changed
-- the job, so that a change without its notice cannot be. Jobs that ask for none
-- have a null in notify, and the trigger's condition is all that they pay.

ALTER TABLE jobs ADD COLUMN notify text[];
COMMENT ON COLUMN jobs.notify IS 'statuses that any webhook of the job wants to be told of; null for elements and steps, since webhooks are told of the whole';

CREATE TABLE notices (
  job        uuid NOT NULL,
  seq        bigint NOT NULL,
  hook       integer NOT NULL,
  tenant     text NOT NULL,
  url        text NOT NULL,
  status     text NOT NULL,
  body       jsonb NOT NULL,
  tries      integer NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL DEFAULT now(),
  due_at     timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (job, seq, hook)
);
COMMENT ON TABLE notices IS 'calls of webhooks that are still to be made; a row goes when its call was answered, or was given up';
COMMENT ON COLUMN notices.seq IS 'of the job''s event that it tells; with job and hook it makes the call''s id, the same at each try';
COMMENT ON COLUMN notices.due_at IS 'of one that is being sent: when another process may take it over';
CREATE INDEX notices_due ON notices (tenant, due_at);
COMMENT ON INDEX notices_due IS 'by tenant first: each gets its part of the calls, however many another has waiting';

CREATE FUNCTION jobs_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO notices (job, seq, hook, tenant, url, status, body)
  SELECT NEW.id, NEW.event_seq, h.n - 1, NEW.tenant, h.hook ->> 'url', NEW.state,
    jsonb_build_object('type', 'job.' || NEW.state, 'timestamp', NEW.state_at, 'data', jsonb_strip_nulls(jsonb_build_object(
      'id', NEW.id, 'kind', nullif(NEW.kind, 'job'), 'name', NEW.name, 'tenant', NEW.tenant, 'status', NEW.state, 'reason', NEW.reason,
      'dead_letter', nullif(NEW.dead_letter, false), 'labels', nullif(NEW.labels, '{}'), 'attempt', NEW.attempt, 'exit_code', NEW.exit_code,
      'submitted_at', NEW.submitted_at, 'started_at', NEW.started_at, 'finished_at', NEW.finished_at)))
  FROM job_specs s
  CROSS JOIN jsonb_array_elements(s.spec -> 'notify') WITH ORDINALITY AS h (hook, n)
  WHERE s.job = NEW.id AND h.hook -> 'on' ? NEW.state;
  RETURN NULL;
END $$;
CREATE TRIGGER jobs_notify AFTER UPDATE ON jobs FOR EACH ROW
  WHEN (NEW.notify IS NOT NULL AND NEW.state <> OLD.state AND NEW.state = ANY (NEW.notify))
  EXECUTE FUNCTION jobs_notify();
