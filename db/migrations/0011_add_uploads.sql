-- Archives that tenants have stored, by the address of their content.

CREATE TABLE uploads (
  tenant     text NOT NULL,
  address    text NOT NULL,
  folder     text NOT NULL,
  files      integer NOT NULL,
  bytes      bigint NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  used_at    timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant, address)
);
COMMENT ON TABLE uploads IS 'archives in the object store; who knows the content knows the address, but another tenant''s is never found';
COMMENT ON COLUMN uploads.folder IS 'of this copy in the object store; another copy of the same content has another';
COMMENT ON COLUMN uploads.bytes IS 'of all files together, unpacked';
COMMENT ON COLUMN uploads.used_at IS 'when it was last sent, asked for or named by a new job';
CREATE INDEX uploads_used ON uploads (used_at);

CREATE TABLE job_uploads (
  job     uuid NOT NULL,
  address text NOT NULL,
  PRIMARY KEY (job, address)
);
COMMENT ON TABLE job_uploads IS 'which uploads of its tenant a job needs; goes with the job''s row';
CREATE INDEX job_uploads_address ON job_uploads (address);

COMMENT ON COLUMN doomed_objects.since IS 'from then on its folder is nobody''s; in the future while somebody may still be writing there';
