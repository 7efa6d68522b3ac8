-- The stage of each member that is being prepared on its machine, for display alone. It is a
-- table of its own, so that reports of stages take no lock on allocations but the one of the
-- foreign key, and run none of their triggers. Versions before this one ignore the table.
CREATE TABLE member_stages (
  alloc_id bigint PRIMARY KEY REFERENCES allocations (id) ON DELETE CASCADE,
  boot     text NOT NULL,
  seq      bigint NOT NULL,
  stage    jsonb NOT NULL,
  since    timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 70);
COMMENT ON TABLE member_stages IS 'the last reported stage of each member before its container existed; shown while the job is scheduled, and nothing is decided by it';
COMMENT ON COLUMN member_stages.boot IS 'agent process that reported the stage';
COMMENT ON COLUMN member_stages.seq IS 'number of the report, which rises within an agent process; an older report changes nothing';
COMMENT ON COLUMN member_stages.stage IS 'name, input, percent, try and problem';
COMMENT ON COLUMN member_stages.since IS 'when this stage, with this input, was first reported';
