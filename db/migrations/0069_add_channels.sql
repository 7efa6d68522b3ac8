-- Notification channels (adr/0097): a tenant is notified of its jobs, and operators of machines, in a chat, by mail or
-- at a URL. A berthd of the version before neither reads nor delivers these rows; they wait for one of this version.

LOCK TABLE jobs, machines, gpu_devices, notices, spend_alerts IN SHARE ROW EXCLUSIVE MODE;

CREATE TABLE channels (
  id            bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
  tenant        text NOT NULL,
  name          text NOT NULL,
  kind          text NOT NULL CONSTRAINT channels_kind CHECK (kind IN ('slack', 'email', 'webhook')),
  secret        text NOT NULL DEFAULT '',
  url           text NOT NULL DEFAULT '',
  recipients    text[] NOT NULL DEFAULT '{}',
  events        text[] NOT NULL DEFAULT '{}',
  created_at    timestamptz NOT NULL DEFAULT now(),
  updated_at    timestamptz NOT NULL DEFAULT now(),
  updated_by    text NOT NULL,
  due_at        timestamptz NOT NULL DEFAULT now(),
  batch         bigint NOT NULL DEFAULT 0,
  tries         integer NOT NULL DEFAULT 0,
  claimed_until timestamptz,
  failing_since timestamptz,
  failed_at     timestamptz,
  last_error    text NOT NULL DEFAULT '',
  delivered_at  timestamptz,
  PRIMARY KEY (tenant, name)
);
COMMENT ON TABLE channels IS 'destinations of notifications, and the state of their delivery';
COMMENT ON COLUMN channels.secret IS 'name of the tenant''s secret with the address of the chat; only for slack';
COMMENT ON COLUMN channels.url IS 'address of the calls; only for webhook';
COMMENT ON COLUMN channels.recipients IS 'mail addresses; only for email';
COMMENT ON COLUMN channels.events IS 'types of the notifications that the channel gets without being named by a job: of all jobs of the tenant and of the tenants below, and of all machines';
COMMENT ON COLUMN channels.due_at IS 'earliest time of the next try';
COMMENT ON COLUMN channels.batch IS 'number of the last message; the notifications of a message have its number';
COMMENT ON COLUMN channels.tries IS 'tries of the present message';
COMMENT ON COLUMN channels.claimed_until IS 'end of the lease of the process that delivers the present message; null: none does';
COMMENT ON COLUMN channels.failing_since IS 'time of the first failure since the last delivery; null: the last try succeeded';

CREATE TABLE notifications (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  uid        uuid NOT NULL DEFAULT gen_random_uuid(),
  channel    bigint NOT NULL,
  type       text NOT NULL,
  body       jsonb NOT NULL,
  batch      bigint,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE notifications IS 'notifications that are still to be delivered; a row is deleted after its delivery, or a day later';
COMMENT ON COLUMN notifications.uid IS 'by which receivers recognize repeats; also in a database that was restored, or created again, no other notification has it';
COMMENT ON COLUMN notifications.channel IS 'channels.id; without a foreign key, so that the change of a job locks no channel';
COMMENT ON COLUMN notifications.batch IS 'number of the message that has this notification; null: not yet part of one';
CREATE INDEX notifications_channel ON notifications (channel, id);
COMMENT ON INDEX notifications_channel IS 'the notifications of one channel in their order';
CREATE INDEX notifications_batch ON notifications (channel, batch) WHERE batch IS NOT NULL;
COMMENT ON INDEX notifications_batch IS 'the notifications of the present message of a channel, however many others wait';

-- A berthd of the version before writes a call for each hook, also for one that names a channel and no URL.
CREATE FUNCTION notices_need_url() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RETURN NULL;
END $$;
CREATE TRIGGER notices_need_url BEFORE INSERT ON notices FOR EACH ROW
  WHEN (nullif(NEW.url, '') IS NULL) EXECUTE FUNCTION notices_need_url();

-- job_notice returns the payload about the present state of a job, as webhooks and channels send it.
CREATE FUNCTION job_notice(j jobs) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
  of_all double precision;
  of_last double precision;
BEGIN
  IF j.state IN ('succeeded', 'failed', 'canceled') THEN
    SELECT sum(c.cost), sum(c.cost) FILTER (WHERE c.attempt = j.attempt)
    INTO of_all, of_last
    FROM (SELECT t.attempt, attempt_cost(t.job, t.attempt) AS cost FROM attempts t WHERE t.job = j.id) c;
  END IF;
  RETURN jsonb_build_object('type', 'job.' || j.state, 'timestamp', j.state_at, 'data', jsonb_strip_nulls(jsonb_build_object(
    'id', j.id, 'kind', nullif(j.kind, 'job'), 'name', j.name, 'tenant', j.tenant, 'status', j.state, 'reason', j.reason,
    'dead_letter', nullif(j.dead_letter, false), 'labels', nullif(j.labels, '{}'), 'attempt', j.attempt, 'exit_code', j.exit_code,
    'submitted_at', j.submitted_at, 'started_at', j.started_at, 'finished_at', j.finished_at,
    'cost', of_all, 'attempt_cost', of_last)));
END $$;

-- channels_for returns the channels of the tenant and of the tenants above it that have one of the types among their
-- events, and the nearest channel of each name in named.
CREATE FUNCTION channels_for(of_tenant text, types text[], named text[]) RETURNS bigint[] LANGUAGE sql STABLE AS $$
  WITH RECURSIVE up (id, parent, depth) AS (
    SELECT t.id, t.parent, 0 FROM tenants t WHERE t.id = of_tenant
    UNION
    SELECT t.id, t.parent, up.depth + 1 FROM up JOIN tenants t ON t.id = up.parent
  ), nearest AS (
    SELECT DISTINCT ON (c.name) c.id
    FROM up
    JOIN channels c ON c.tenant = up.id
    WHERE c.name = ANY (named)
    ORDER BY c.name, up.depth
  )
  SELECT coalesce(array_agg(c.id), '{}')
  FROM up
  JOIN channels c ON c.tenant = up.id
  WHERE c.events && types OR c.id IN (SELECT id FROM nearest)
$$;

-- notify_channels adds a notification for each of the channels.
CREATE FUNCTION notify_channels(ids bigint[], body jsonb) RETURNS void LANGUAGE sql AS $$
  INSERT INTO notifications (channel, type, body)
  SELECT i, body ->> 'type', body
  FROM unnest(ids) AS i
$$;

-- Hooks of notify name a URL or a channel.
CREATE OR REPLACE FUNCTION jobs_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO notices (job, seq, hook, tenant, url, status, body)
  SELECT NEW.id, NEW.event_seq, h.n - 1, NEW.tenant, h.hook ->> 'url', NEW.state, job_notice(NEW)
  FROM job_specs s
  CROSS JOIN jsonb_array_elements(s.spec -> 'notify') WITH ORDINALITY AS h (hook, n)
  WHERE s.job = NEW.id AND h.hook -> 'on' ? NEW.state AND nullif(h.hook ->> 'url', '') IS NOT NULL;
  RETURN NULL;
END $$;

CREATE FUNCTION jobs_notify_channels() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  types text[] := ARRAY['job.' || NEW.state];
  named text[];
  ids bigint[];
BEGIN
  IF NOT EXISTS (SELECT FROM channels) THEN
    RETURN NULL;
  END IF;
  IF NEW.dead_letter THEN
    types := types || 'job.dead_letter'::text;
  END IF;
  IF NEW.notify IS NOT NULL AND NEW.state = ANY (NEW.notify) THEN
    SELECT array_agg(h.hook ->> 'channel')
    INTO named
    FROM job_specs s
    CROSS JOIN jsonb_array_elements(s.spec -> 'notify') AS h (hook)
    WHERE s.job = NEW.id AND h.hook -> 'on' ? NEW.state AND h.hook ? 'channel';
  END IF;
  ids := channels_for(NEW.tenant, types, named);
  IF ids <> '{}' THEN
    PERFORM notify_channels(ids, job_notice(NEW));
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER jobs_notify_channels AFTER UPDATE ON jobs FOR EACH ROW
  WHEN (NEW.state <> OLD.state AND NEW.parent IS NULL
    AND (NEW.state IN ('succeeded', 'failed', 'canceled') OR NEW.notify IS NOT NULL))
  EXECUTE FUNCTION jobs_notify_channels();

-- Machines belong to no tenant: each channel with the type among its events is notified. Only admins can choose such
-- types.
CREATE FUNCTION notify_of_machine(type text, data jsonb) RETURNS void LANGUAGE sql AS $$
  INSERT INTO notifications (channel, type, body)
  SELECT c.id, type, jsonb_build_object('type', type, 'timestamp', clock_timestamp(), 'data', jsonb_strip_nulls(data))
  FROM channels c
  WHERE c.events @> ARRAY[type]
$$;

CREATE FUNCTION machines_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM notify_of_machine('machine.' || NEW.state, jsonb_build_object('machine', NEW.id, 'pool', NEW.pool,
    'detail', coalesce(nullif(NEW.drain_reason, ''), nullif(NEW.reason, '')), 'drain_deadline', NEW.drain_deadline));
  RETURN NULL;
END $$;
CREATE TRIGGER machines_notify AFTER UPDATE OF state ON machines FOR EACH ROW
  WHEN (OLD.state <> NEW.state AND (NEW.state IN ('lost', 'draining') OR NEW.state = 'ready' AND OLD.state <> 'suspect'))
  EXECUTE FUNCTION machines_notify();

CREATE FUNCTION gpu_devices_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM notify_of_machine(CASE WHEN NEW.healthy THEN 'gpu.healthy' ELSE 'gpu.unhealthy' END, jsonb_build_object(
    'machine', NEW.machine_id, 'gpu', NEW.idx, 'detail', nullif(NEW.reason, '')));
  RETURN NULL;
END $$;
CREATE TRIGGER gpu_devices_notify AFTER UPDATE OF healthy ON gpu_devices FOR EACH ROW
  WHEN (OLD.healthy <> NEW.healthy) EXECUTE FUNCTION gpu_devices_notify();

-- Limits of spend concern the tenant of the limit, and the tenants above it.
CREATE FUNCTION spend_alerts_notify() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  type text := 'spend.' || NEW.level;
BEGIN
  PERFORM notify_channels(channels_for(NEW.tenant, ARRAY[type], NULL), jsonb_build_object('type', type, 'timestamp', clock_timestamp(),
    'data', jsonb_build_object('tenant', NEW.tenant, 'level', NEW.level, 'period', NEW.period,
      'used', round(NEW.used / 1000000.0, 2), 'limit', NEW.most)));
  RETURN NULL;
END $$;
CREATE TRIGGER spend_alerts_notify AFTER INSERT ON spend_alerts FOR EACH ROW EXECUTE FUNCTION spend_alerts_notify();
