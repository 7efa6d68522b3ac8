-- Maintenance windows: drains that are planned ahead. A berthd of the version before ignores the
-- tables; the trigger below keeps its placements out of windows too.
CREATE TABLE maintenance (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  reason     text NOT NULL,
  starts_at  timestamptz NOT NULL,
  ends_at    timestamptz NOT NULL,
  grace_s    int NOT NULL CHECK (grace_s >= 0),
  lead_s     int NOT NULL CHECK (lead_s >= 0),
  undrain    boolean NOT NULL,
  actor      text NOT NULL,
  version    bigint NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE maintenance IS 'maintenance windows of machines';
COMMENT ON COLUMN maintenance.grace_s IS 'seconds before the start at which the machines are drained and their jobs are asked to stop';
COMMENT ON COLUMN maintenance.lead_s IS 'seconds before that from which no job without a time limit starts on the machines';
COMMENT ON COLUMN maintenance.undrain IS 'healthy machines return to service at the end';
COMMENT ON COLUMN maintenance.actor IS 'author of the window, such as operator:NAME';
COMMENT ON COLUMN maintenance.version IS 'increases with each change';

CREATE TABLE maintenance_machines (
  maintenance  bigint NOT NULL REFERENCES maintenance ON DELETE CASCADE,
  machine_id   text NOT NULL REFERENCES machines,
  closes_at    timestamptz NOT NULL,
  ends_at      timestamptz NOT NULL,
  state        text NOT NULL DEFAULT 'planned' CHECK (state IN ('planned', 'active', 'done', 'canceled')),
  drain_notice bigint,
  note         text NOT NULL DEFAULT '',
  PRIMARY KEY (maintenance, machine_id)
);
COMMENT ON TABLE maintenance_machines IS 'the machines of maintenance windows, with copies of the times';
COMMENT ON COLUMN maintenance_machines.closes_at IS 'starts_at of the window less its grace';
COMMENT ON COLUMN maintenance_machines.drain_notice IS 'number of the drain that the window has made, which its end may undo; null: none';
COMMENT ON COLUMN maintenance_machines.note IS 'why the machine has not returned, or how the window ended; for people';

-- Each placement asks for the open windows of its machines. Without windows the index is empty.
CREATE INDEX maintenance_machines_open ON maintenance_machines (machine_id) WHERE state IN ('planned', 'active');

-- No work starts inside a window, whichever process writes. The name of the trigger puts it after
-- allocations_take, which locks the machines, as the writers of windows do.
CREATE FUNCTION allocations_windows() RETURNS trigger LANGUAGE plpgsql
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM maintenance_machines WHERE state IN ('planned', 'active')) AND EXISTS (
    SELECT 1
    FROM new_rows n
    JOIN maintenance_machines w ON w.machine_id = n.machine_id AND w.state IN ('planned', 'active')
    WHERE counts(n.state) AND w.closes_at <= clock_timestamp() AND w.ends_at > clock_timestamp()) THEN
    RAISE EXCEPTION 'a machine is in a maintenance window' USING ERRCODE = 'BT014';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER allocations_windows AFTER INSERT ON allocations REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION allocations_windows();
