-- Webhooks about ended jobs name the cost on machines of clouds (adr/0075). A berthd of the version before sends the
-- payload as it is stored.
CREATE OR REPLACE FUNCTION jobs_notify() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  of_all double precision;
  of_last double precision;
BEGIN
  IF NEW.state IN ('succeeded', 'failed', 'canceled') THEN
    SELECT sum(c.cost), sum(c.cost) FILTER (WHERE c.attempt = NEW.attempt)
    INTO of_all, of_last
    FROM (SELECT t.attempt, attempt_cost(t.job, t.attempt) AS cost FROM attempts t WHERE t.job = NEW.id) c;
  END IF;
  INSERT INTO notices (job, seq, hook, tenant, url, status, body)
  SELECT NEW.id, NEW.event_seq, h.n - 1, NEW.tenant, h.hook ->> 'url', NEW.state,
    jsonb_build_object('type', 'job.' || NEW.state, 'timestamp', NEW.state_at, 'data', jsonb_strip_nulls(jsonb_build_object(
      'id', NEW.id, 'kind', nullif(NEW.kind, 'job'), 'name', NEW.name, 'tenant', NEW.tenant, 'status', NEW.state, 'reason', NEW.reason,
      'dead_letter', nullif(NEW.dead_letter, false), 'labels', nullif(NEW.labels, '{}'), 'attempt', NEW.attempt, 'exit_code', NEW.exit_code,
      'submitted_at', NEW.submitted_at, 'started_at', NEW.started_at, 'finished_at', NEW.finished_at,
      'cost', of_all, 'attempt_cost', of_last)))
  FROM job_specs s
  CROSS JOIN jsonb_array_elements(s.spec -> 'notify') WITH ORDINALITY AS h (hook, n)
  WHERE s.job = NEW.id AND h.hook -> 'on' ? NEW.state;
  RETURN NULL;
END $$;

-- Settled costs by pool, beside those by tenant. The pool of a launch does not change.
CREATE TABLE pool_spend (
  pool    text NOT NULL,
  day     date NOT NULL,
  settled bigint NOT NULL CONSTRAINT pool_spend_settled CHECK (settled >= 0),
  PRIMARY KEY (pool, day)
);
COMMENT ON TABLE pool_spend IS 'settled costs of the launches of each pool, by day of UTC, in micro-dollars; without launches that were deleted before migration 0062';

-- launch_days returns the costs of a launch from done to until, by day. Their sum is the difference of the cumulative
-- costs, see launches_bill.
CREATE FUNCTION launch_days(price double precision, since timestamptz, done timestamptz, until timestamptz)
RETURNS TABLE (day date, cost bigint) LANGUAGE sql STABLE AS $$
  SELECT d.day, launch_cost(price, since, least(until, d.day_end)) - launch_cost(price, since, greatest(done, d.day_start))
  FROM (
    SELECT g::date AS day, g AT TIME ZONE 'UTC' AS day_start, (g + interval '1 day') AT TIME ZONE 'UTC' AS day_end
    FROM generate_series(date_trunc('day', done AT TIME ZONE 'UTC'), until AT TIME ZONE 'UTC', interval '1 day') g
  ) d
$$;

-- No launch is settled between the reading of the costs and the creation of the trigger.
LOCK TABLE launches IN SHARE ROW EXCLUSIVE MODE;

INSERT INTO pool_spend (pool, day, settled)
SELECT l.pool, d.day, sum(d.cost)
FROM launches l
CROSS JOIN LATERAL launch_days(l.price, coalesce(l.sent_at, l.created_at), coalesce(l.sent_at, l.created_at), l.settled_to) d
WHERE l.settled > 0
GROUP BY l.pool, d.day;

CREATE FUNCTION launches_bill_pool() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  since timestamptz := coalesce(NEW.sent_at, NEW.created_at);
BEGIN
  INSERT INTO pool_spend (pool, day, settled)
  SELECT NEW.pool, d.day, d.cost
  FROM launch_days(NEW.price, since, coalesce(OLD.settled_to, since), NEW.settled_to) d
  ORDER BY d.day
  ON CONFLICT (pool, day) DO UPDATE SET settled = pool_spend.settled + excluded.settled;
  RETURN NULL;
END $$;
CREATE TRIGGER launches_bill_pool AFTER UPDATE ON launches FOR EACH ROW
  WHEN (NEW.settled_to IS DISTINCT FROM OLD.settled_to) EXECUTE FUNCTION launches_bill_pool();
