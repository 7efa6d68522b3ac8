-- Machines that Berth creates in clouds (adr/0064). A launch is one request for one instance, from the
-- request to the proof of its end. A berthd of the version before ignores both tables: a machine gets
-- its row in machines when its agent joins, as before.
CREATE TABLE launches (
  machine        text NOT NULL CONSTRAINT launches_machine CHECK (machine <> ''),
  n              integer NOT NULL CONSTRAINT launches_n CHECK (n >= 1),
  state          text NOT NULL DEFAULT 'requested' CONSTRAINT launches_state CHECK (state IN
                   ('requested', 'sent', 'unresolved', 'running', 'serving', 'draining', 'terminating', 'gone', 'failed')),
  pool           text NOT NULL,
  provider       text NOT NULL,
  region         text NOT NULL,
  zone           text NOT NULL DEFAULT '',
  type           text NOT NULL,
  market         text NOT NULL CONSTRAINT launches_market CHECK (market IN ('on_demand', 'spot')),
  price          double precision NOT NULL DEFAULT 0,
  incarnation    bigint NOT NULL,
  token          text NOT NULL CONSTRAINT launches_token UNIQUE,
  request_hash   text NOT NULL DEFAULT '',
  request_key    text NOT NULL DEFAULT '',
  request        bytea,
  join_token     text NOT NULL DEFAULT '',
  sends          integer NOT NULL DEFAULT 0,
  refusals       integer NOT NULL DEFAULT 0,
  sent_at        timestamptz,
  last_sent_at   timestamptz,
  doubt_at       timestamptz,
  answered_at    timestamptz,
  instance       text NOT NULL DEFAULT '',
  instance_state text NOT NULL DEFAULT '',
  seen_at        timestamptz,
  joined_at      timestamptz,
  stop_at        timestamptz,
  stop_deadline  timestamptz,
  stop_reason    text NOT NULL DEFAULT '',
  stop_actor     text NOT NULL DEFAULT '',
  terminates     integer NOT NULL DEFAULT 0,
  terminate_at   timestamptz,
  ended_first_at timestamptz,
  ended_last_at  timestamptz,
  error_kind     text NOT NULL DEFAULT '',
  error          text NOT NULL DEFAULT '',
  reason         text NOT NULL DEFAULT '',
  request_id     text NOT NULL DEFAULT '',
  actor          text NOT NULL,
  created_at     timestamptz NOT NULL DEFAULT now(),
  state_at       timestamptz NOT NULL DEFAULT now(),
  due_at         timestamptz DEFAULT now(),
  PRIMARY KEY (machine, n),
  CONSTRAINT launches_sent CHECK (sends = 0 OR request_hash <> '' AND sent_at IS NOT NULL AND last_sent_at IS NOT NULL),
  CONSTRAINT launches_refusals CHECK (refusals BETWEEN 0 AND sends),
  CONSTRAINT launches_instance CHECK (state NOT IN ('running', 'serving', 'draining', 'gone') OR instance <> ''),
  CONSTRAINT launches_gone CHECK (state <> 'gone' OR coalesce(ended_last_at >= ended_first_at + interval '60 seconds', false)),
  CONSTRAINT launches_due CHECK ((state IN ('gone', 'failed')) = (due_at IS NULL))
);
COMMENT ON TABLE launches IS 'requests for instances of clouds, one row each, from the request to the proof of the end (adr/0064)';
COMMENT ON COLUMN launches.machine IS 'name under which the instance joins; it is in machines only after the join';
COMMENT ON COLUMN launches.n IS 'number of the launch among those of the machine; n + 1 exists only once n is gone or failed';
COMMENT ON COLUMN launches.price IS 'US dollars an hour when the launch was requested; 0: unknown';
COMMENT ON COLUMN launches.incarnation IS 'of the database when the launch was requested; part of the token';
COMMENT ON COLUMN launches.token IS 'idempotency token of the request to the cloud';
COMMENT ON COLUMN launches.request_hash IS 'SHA-256 of the request; every send has the same one. Empty: never sent';
COMMENT ON COLUMN launches.request_key IS 'id of the key that request is sealed with';
COMMENT ON COLUMN launches.request IS 'the sealed request, with the secret of the join token; null: never sent, or no longer needed';
COMMENT ON COLUMN launches.join_token IS 'id of the join token in the request';
COMMENT ON COLUMN launches.sends IS 'calls that were committed before they were made; refusals of them were answered with a refusal';
COMMENT ON COLUMN launches.doubt_at IS 'send before the last one whose outcome was unknown when the last one was committed; null: none';
COMMENT ON COLUMN launches.stop_at IS 'when the end of the machine was requested; null: not requested';
COMMENT ON COLUMN launches.ended_first_at IS 'first of the uninterrupted reads that showed the instance terminated, ended_last_at the last one';
COMMENT ON COLUMN launches.reason IS 'why the launch is in its state';
COMMENT ON COLUMN launches.request_id IS 'idempotency key of the call that requested the launch';
COMMENT ON COLUMN launches.due_at IS 'when the next step of its workflow is due; null: settled';

CREATE UNIQUE INDEX launches_open ON launches (machine) WHERE state NOT IN ('gone', 'failed');
COMMENT ON INDEX launches_open IS 'at most one launch of a machine is not settled';
CREATE INDEX launches_due ON launches (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX launches_instance ON launches (instance) WHERE instance <> '';

CREATE FUNCTION launches_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.state <> 'requested' OR NEW.sends <> 0
     OR NEW.n <= (SELECT max(l.n) FROM launches l WHERE l.machine = NEW.machine) THEN
    RAISE EXCEPTION 'launch % of machine % is not a later one, or does not start as requested', NEW.n, NEW.machine
      USING ERRCODE = 'BT015';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER launches_insert BEFORE INSERT ON launches FOR EACH ROW EXECUTE FUNCTION launches_insert();

CREATE FUNCTION launches_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.state <> OLD.state THEN
    IF NOT (OLD.state, NEW.state) IN (
      ('requested', 'sent'), ('requested', 'failed'), ('requested', 'unresolved'),
      ('sent', 'running'), ('sent', 'terminating'), ('sent', 'failed'), ('sent', 'unresolved'),
      ('unresolved', 'running'), ('unresolved', 'terminating'), ('unresolved', 'failed'),
      ('running', 'serving'), ('running', 'terminating'),
      ('serving', 'draining'), ('serving', 'terminating'),
      ('draining', 'terminating'),
      ('terminating', 'gone'), ('terminating', 'failed')) THEN
      RAISE EXCEPTION 'launch % of machine % cannot change from % to %', NEW.n, NEW.machine, OLD.state, NEW.state
        USING ERRCODE = 'BT015';
    END IF;
    NEW.state_at := clock_timestamp();
  END IF;
  IF (NEW.machine, NEW.n, NEW.pool, NEW.provider, NEW.region, NEW.zone, NEW.type, NEW.market, NEW.incarnation, NEW.token)
     IS DISTINCT FROM (OLD.machine, OLD.n, OLD.pool, OLD.provider, OLD.region, OLD.zone, OLD.type, OLD.market,
       OLD.incarnation, OLD.token)
     OR OLD.request_hash <> '' AND (NEW.request_hash <> OLD.request_hash OR NEW.join_token <> OLD.join_token
       OR NEW.request IS DISTINCT FROM OLD.request AND NEW.request IS NOT NULL)
     OR OLD.instance <> '' AND NEW.instance <> OLD.instance THEN
    RAISE EXCEPTION 'the request of launch % of machine % cannot change', NEW.n, NEW.machine USING ERRCODE = 'BT015';
  END IF;
  IF NEW.sends < OLD.sends OR NEW.sends > OLD.sends AND NEW.state <> 'sent' THEN
    RAISE EXCEPTION 'launch % of machine % is % and cannot be sent', NEW.n, NEW.machine, NEW.state USING ERRCODE = 'BT015';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER launches_update BEFORE UPDATE ON launches FOR EACH ROW EXECUTE FUNCTION launches_update();

-- Offerings and accounts that refuse launches for now, known to all replicas.
CREATE TABLE breakers (
  scope  text NOT NULL CONSTRAINT breakers_scope CHECK (scope IN ('offering', 'provider', 'pool')),
  key    text NOT NULL,
  until  timestamptz,
  step   integer NOT NULL DEFAULT 1 CONSTRAINT breakers_step CHECK (step >= 1),
  reason text NOT NULL,
  at     timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (scope, key)
);
COMMENT ON TABLE breakers IS 'refusals of clouds: no launch is sent to the scope until the time';
COMMENT ON COLUMN breakers.until IS 'null: until an admin closes the breaker';
COMMENT ON COLUMN breakers.step IS 'number of refusals in a row, from which the time grows';

-- After the restore of a backup, a launch could repeat the name of a machine whose row is lost. A
-- provider therefore launches nothing before its instances were listed once by the restored database.
CREATE TABLE cloud_listings (
  provider    text PRIMARY KEY,
  incarnation bigint NOT NULL,
  listed_at   timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE cloud_listings IS 'first complete listing of the instances of each provider in the latest incarnation of the database that had one';
COMMENT ON COLUMN cloud_listings.incarnation IS 'of the database when its instances were listed and those without a row were adopted';
