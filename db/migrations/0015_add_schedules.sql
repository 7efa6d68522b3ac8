-- Schedules: when to submit what. The rows are the truth; Temporal's schedules
-- are clocks that are made from them.

CREATE TABLE schedules (
  id             uuid PRIMARY KEY,
  tenant         text NOT NULL,
  name           text NOT NULL,
  spec           jsonb NOT NULL,
  paused         boolean NOT NULL,
  note           text NOT NULL DEFAULT '',
  revision       text NOT NULL,
  clock_revision text NOT NULL DEFAULT '',
  active_since   timestamptz NOT NULL DEFAULT now(),
  forgotten_to   timestamptz,
  created_by     text NOT NULL,
  created_at     timestamptz NOT NULL DEFAULT now(),
  updated_at     timestamptz NOT NULL DEFAULT now(),
  deleted_at     timestamptz
);
COMMENT ON TABLE schedules IS 'a deleted one stays until its clock is gone';
COMMENT ON COLUMN schedules.spec IS 'as the user wrote it, with defaults; whether it is paused is a column';
COMMENT ON COLUMN schedules.revision IS 'random, another at each change that the clock must know';
COMMENT ON COLUMN schedules.clock_revision IS 'the revision that the clock has; where it is another one, the clock is to be set';
COMMENT ON COLUMN schedules.active_since IS 'what came before is no time of the schedule: it was made, or resumed, then';
COMMENT ON COLUMN schedules.forgotten_to IS 'the fires of times up to then may have been pruned';
CREATE UNIQUE INDEX schedules_name ON schedules (tenant, name) WHERE deleted_at IS NULL;
CREATE INDEX schedules_unset ON schedules (id) WHERE revision <> clock_revision OR deleted_at IS NOT NULL;
COMMENT ON INDEX schedules_unset IS 'the leader''s outbox: clocks to be set or removed';

CREATE TABLE schedule_fires (
  schedule   uuid NOT NULL REFERENCES schedules ON DELETE CASCADE,
  at         timestamptz NOT NULL,
  source     text NOT NULL CHECK (source IN ('clock', 'backfill', 'run')),
  status     text NOT NULL CHECK (status IN ('due', 'buffered', 'submitted', 'skipped', 'refused', 'missed')),
  overlap    text CHECK (overlap IN ('skip', 'buffer_one', 'allow', 'cancel_other')),
  job        uuid,
  reason     jsonb,
  over       boolean NOT NULL,
  decided_at timestamptz,
  PRIMARY KEY (schedule, at),
  CONSTRAINT schedule_fires_jobs CHECK ((status = 'submitted') = (job IS NOT NULL))
);
COMMENT ON TABLE schedule_fires IS 'one row for each time that was fired: what makes a repeated fire one';
COMMENT ON COLUMN schedule_fires.at IS 'the time it stands for, which may be long before it was fired';
COMMENT ON COLUMN schedule_fires.overlap IS 'in place of the schedule''s';
COMMENT ON COLUMN schedule_fires.over IS 'it is decided and its job has ended, as far as anybody has looked';
CREATE INDEX schedule_fires_open ON schedule_fires (schedule, at) WHERE NOT over;
COMMENT ON INDEX schedule_fires_open IS 'what a fire may overlap with; what waits to be submitted';
CREATE INDEX schedule_fires_prune ON schedule_fires (decided_at) WHERE over;

CREATE TABLE schedule_uploads (
  schedule uuid NOT NULL REFERENCES schedules ON DELETE CASCADE,
  tenant   text NOT NULL,
  address  text NOT NULL,
  PRIMARY KEY (schedule, address)
);
COMMENT ON TABLE schedule_uploads IS 'uploads that a schedule will need: they are kept as long as it is';
CREATE INDEX schedule_uploads_address ON schedule_uploads (tenant, address);
