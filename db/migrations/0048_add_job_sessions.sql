-- Sessions of users in running containers: berth exec, cp, attach and port-forward. A machine dials
-- out only, so the row pairs the two connections of a session: the user's, which a replica of
-- berthd holds, and the agent's, which may arrive at another replica (adr/0051). A berthd or an
-- agent of the version before knows no sessions and ignores both tables.
CREATE TABLE job_sessions (
  id           uuid PRIMARY KEY,
  tenant       text NOT NULL,
  job          uuid NOT NULL,
  attempt      integer NOT NULL,
  rank         integer NOT NULL,
  alloc        bigint NOT NULL,
  machine_id   text NOT NULL,
  epoch        bigint NOT NULL,
  token        text NOT NULL,
  actor        text NOT NULL,
  kind         text NOT NULL CONSTRAINT job_sessions_kind CHECK (kind IN ('exec', 'attach', 'forward', 'files')),
  request      jsonb NOT NULL,
  nonce        text NOT NULL,
  state        text NOT NULL DEFAULT 'asked' CONSTRAINT job_sessions_state CHECK (state IN ('asked', 'waiting', 'open')),
  replica      text NOT NULL DEFAULT '',
  replica_url  text NOT NULL DEFAULT '',
  replica_cert text NOT NULL DEFAULT '',
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at   timestamptz NOT NULL
);
COMMENT ON TABLE job_sessions IS 'sessions of users in running containers, from the request to the end; the row is deleted at the end, and acts keeps the record';
COMMENT ON COLUMN job_sessions.tenant IS 'of the job, as attempt, rank and alloc; a session never outlives its allocation';
COMMENT ON COLUMN job_sessions.epoch IS 'of the machine when the session was requested: an agent of another epoch cannot join';
COMMENT ON COLUMN job_sessions.token IS 'id of the token that requested the session; no other token can connect to it';
COMMENT ON COLUMN job_sessions.nonce IS 'handed to the agent with the order, which proves by it that it got this order; good for one connection';
COMMENT ON COLUMN job_sessions.state IS 'asked: nobody is connected. waiting: the user is, and the machine has the order. open: both are';
COMMENT ON COLUMN job_sessions.replica IS 'process of berthd that holds the connection of the user; replica_url is its address for the other replicas';
COMMENT ON COLUMN job_sessions.replica_cert IS 'SHA-256 of the TLS certificate of that replica, in hex; empty: it speaks plain HTTP';
COMMENT ON COLUMN job_sessions.expires_at IS 'the replica of an open session renews it; an expired session is deleted';
CREATE INDEX job_sessions_waiting ON job_sessions (machine_id) WHERE state = 'waiting';
CREATE INDEX job_sessions_tenant ON job_sessions (tenant);
CREATE INDEX job_sessions_expiry ON job_sessions (expires_at);

CREATE TABLE acts (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at         timestamptz NOT NULL DEFAULT clock_timestamp(),
  event      text NOT NULL CONSTRAINT acts_event CHECK (event IN ('asked', 'began', 'ended')),
  session    uuid NOT NULL,
  tenant     text NOT NULL,
  actor      text NOT NULL,
  token      text NOT NULL,
  kind       text NOT NULL,
  job        uuid NOT NULL,
  attempt    integer NOT NULL,
  member     integer NOT NULL,
  machine_id text NOT NULL,
  command    text NOT NULL DEFAULT '',
  reason     text NOT NULL DEFAULT '',
  bytes_in   bigint NOT NULL DEFAULT 0,
  bytes_out  bigint NOT NULL DEFAULT 0,
  exit       integer,
  cause      text NOT NULL DEFAULT ''
);
COMMENT ON TABLE acts IS 'append-only: the sessions of users in containers, one row each for the request, the begin and the end';
COMMENT ON COLUMN acts.actor IS 'user:NAME, with the name of the token';
COMMENT ON COLUMN acts.reason IS 'given by the user, with --reason';
COMMENT ON COLUMN acts.bytes_in IS 'with ended: bytes from the user to the container; bytes_out: the other way';
COMMENT ON COLUMN acts.exit IS 'with ended: exit code of the command; null: no command, or its end is unknown';
COMMENT ON COLUMN acts.cause IS 'with ended: why the session ended, see wire.SessionCause';
CREATE INDEX acts_job ON acts (job);

CREATE FUNCTION refuse_change_of_acts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'acts is append-only' USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER acts_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON acts
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change_of_acts();
