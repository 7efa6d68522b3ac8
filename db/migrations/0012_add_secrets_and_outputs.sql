-- Secrets of tenants, sealed by a key that is not in the database, and what jobs have stored as their outputs.

CREATE TABLE secrets (
  tenant     text NOT NULL,
  name       text NOT NULL,
  key_id     text NOT NULL,
  sealed     bytea NOT NULL,
  version    bigint NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant, name)
);
COMMENT ON COLUMN secrets.key_id IS 'which key of the servers'' key file opens it';
COMMENT ON COLUMN secrets.sealed IS 'AES-256-GCM, bound to tenant and name';
COMMENT ON COLUMN secrets.version IS 'grows with each value; sealing the same value with another key does not change it';
CREATE INDEX secrets_by_key ON secrets (key_id);

CREATE TABLE outputs (
  job          uuid NOT NULL,
  attempt      integer NOT NULL,
  rank         integer NOT NULL,
  name         text NOT NULL,
  address      text NOT NULL,
  files        integer NOT NULL,
  bytes        bigint NOT NULL,
  stored_bytes bigint NOT NULL,
  sha256       text NOT NULL,
  object       text NOT NULL,
  created_at   timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (job, attempt, rank, name)
);
COMMENT ON TABLE outputs IS 'archives that ranks have stored of what they were to leave; like logs they stay when the job is archived';
COMMENT ON COLUMN outputs.sha256 IS 'of the stored archive; address is of its content';
