-- What the history checker reads (docs/checking.md). Times of a wall clock do
-- not order commits: a transaction that began first may be the one that waited.
-- So what takes and frees capacity is numbered from one sequence, under the
-- lock that orders it: whoever takes what another has freed has the higher
-- number. The sequence must not be cached by sessions, or this would not hold.
CREATE SEQUENCE ledger CACHE 1;
COMMENT ON SEQUENCE ledger IS 'numbers of what happened to machines and to the capacity taken there, in the order in which it did';

ALTER TABLE allocations
  ADD COLUMN taken_seq bigint,
  ADD COLUMN orphaned_seq bigint,
  ADD COLUMN freed_seq bigint,
  ADD COLUMN freed_from text,
  ADD COLUMN freed_by text CONSTRAINT allocations_freed_by CHECK (freed_by IN ('agent', 'boot', 'provider', 'operator', 'unclaimed', 'hold'));
ALTER TABLE allocations ALTER COLUMN taken_seq SET DEFAULT nextval('ledger');
COMMENT ON COLUMN allocations.taken_seq IS 'number in the ledger; the writer holds the lock of the machine. Null for rows from before the ledger';
COMMENT ON COLUMN allocations.freed_from IS 'the state in which it last counted against its machine';
COMMENT ON COLUMN allocations.freed_by IS 'on whose word its capacity became free: the agent''s, a new boot''s, the provider''s, an operator''s; unclaimed needs none, for nothing ever ran; hold is the end of a hold for a repair';

ALTER TABLE attempts ADD COLUMN budget text CONSTRAINT attempts_budget CHECK (budget IN ('none', 'user', 'infra'));
COMMENT ON COLUMN attempts.budget IS 'what Settle charged the attempt to';

CREATE OR REPLACE FUNCTION allocations_keep() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.machine_id <> OLD.machine_id OR NEW.cpu_m <> OLD.cpu_m OR NEW.mem_mb <> OLD.mem_mb
     OR NEW.disk_mb <> OLD.disk_mb OR NEW.gpu_milli <> OLD.gpu_milli THEN
    RAISE EXCEPTION 'allocation %: machine and amounts do not change', OLD.id USING ERRCODE = 'BT006';
  END IF;
  IF counts(NEW.state) AND NOT counts(OLD.state) THEN
    RAISE EXCEPTION 'allocation %: % cannot become % again', OLD.id, OLD.state, NEW.state USING ERRCODE = 'BT007';
  END IF;
  IF counts(OLD.state) AND NOT counts(NEW.state) THEN
    NEW.freed_seq := nextval('ledger');
    NEW.freed_from := OLD.state;
    NEW.freed_by := coalesce(NEW.freed_by, CASE OLD.state WHEN 'reserved' THEN 'unclaimed' WHEN 'kept' THEN 'hold' END);
  ELSIF NEW.state = 'orphaned' AND OLD.state <> 'orphaned' THEN
    NEW.orphaned_seq := nextval('ledger');
  END IF;
  RETURN NEW;
END $$;

CREATE TABLE machine_events (
  machine_id text NOT NULL,
  seq        bigint NOT NULL DEFAULT nextval('ledger'),
  at         timestamptz NOT NULL DEFAULT clock_timestamp(),
  gpu        integer,
  state      text NOT NULL,
  reason     text NOT NULL DEFAULT '',
  epoch      bigint NOT NULL DEFAULT 0,
  host_boot  text NOT NULL DEFAULT '',
  cpu_m      bigint NOT NULL DEFAULT 0,
  mem_mb     bigint NOT NULL DEFAULT 0,
  disk_mb    bigint NOT NULL DEFAULT 0,
  gpu_milli  bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (machine_id, seq)
);
COMMENT ON TABLE machine_events IS 'append-only: what a machine was from each number of the ledger on, or, where gpu is set, whether that device was healthy or not';

CREATE FUNCTION machines_record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO machine_events (machine_id, state, reason, epoch, host_boot, cpu_m, mem_mb, disk_mb, gpu_milli)
  VALUES (NEW.id, NEW.state, NEW.reason, NEW.epoch, NEW.host_boot, NEW.cpu_m, NEW.mem_mb, NEW.disk_mb, NEW.gpu_milli);
  RETURN NULL;
END $$;
CREATE TRIGGER machines_record_join AFTER INSERT ON machines FOR EACH ROW EXECUTE FUNCTION machines_record();
CREATE TRIGGER machines_record_change AFTER UPDATE ON machines FOR EACH ROW
  WHEN ((OLD.state, OLD.epoch, OLD.host_boot, OLD.cpu_m, OLD.mem_mb, OLD.disk_mb, OLD.gpu_milli)
    IS DISTINCT FROM (NEW.state, NEW.epoch, NEW.host_boot, NEW.cpu_m, NEW.mem_mb, NEW.disk_mb, NEW.gpu_milli))
  EXECUTE FUNCTION machines_record();

CREATE FUNCTION gpu_devices_record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO machine_events (machine_id, gpu, state, reason)
  VALUES (NEW.machine_id, NEW.idx, CASE WHEN NEW.healthy THEN 'healthy' ELSE 'unhealthy' END, NEW.reason);
  RETURN NULL;
END $$;
CREATE TRIGGER gpu_devices_record_first AFTER INSERT ON gpu_devices FOR EACH ROW EXECUTE FUNCTION gpu_devices_record();
CREATE TRIGGER gpu_devices_record_change AFTER UPDATE ON gpu_devices FOR EACH ROW
  WHEN (OLD.healthy IS DISTINCT FROM NEW.healthy) EXECUTE FUNCTION gpu_devices_record();

-- What stood before the ledger began.
INSERT INTO machine_events (machine_id, state, reason, epoch, host_boot, cpu_m, mem_mb, disk_mb, gpu_milli)
SELECT id, state, reason, epoch, host_boot, cpu_m, mem_mb, disk_mb, gpu_milli FROM machines ORDER BY id;
INSERT INTO machine_events (machine_id, gpu, state, reason)
SELECT machine_id, idx, CASE WHEN healthy THEN 'healthy' ELSE 'unhealthy' END, reason FROM gpu_devices ORDER BY machine_id, idx;
