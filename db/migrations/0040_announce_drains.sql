-- Jobs learn of a drain of their machine, and the history of a machine names its actors.
-- Rows of older programs have null or '' in the new columns: their drains are not announced
-- again, and their actors are not known.

ALTER TABLE machines ADD COLUMN drain_notice bigint, ADD COLUMN drain_actor text NOT NULL DEFAULT '';
COMMENT ON COLUMN machines.drain_notice IS 'number of the latest drain; a drain with another reason or deadline has another number. Null: not drained since the column exists';
COMMENT ON COLUMN machines.drain_actor IS 'author of the latest drain, such as operator:NAME; empty: not known';

ALTER TABLE allocations ADD COLUMN drain_notice bigint;
COMMENT ON COLUMN allocations.drain_notice IS 'drain_notice of the machine that the job was last notified of; null: of none';

ALTER TABLE machine_events ADD COLUMN actor text NOT NULL DEFAULT '', ADD COLUMN drain_deadline timestamptz;
COMMENT ON COLUMN machine_events.actor IS 'author of the change: operator:NAME, leader or agent:MACHINE; empty: not known';
COMMENT ON COLUMN machine_events.drain_deadline IS 'time when running jobs are moved away from the draining machine; null: never';

-- A writer names itself in the transaction's setting berth.actor.
CREATE FUNCTION machines_number_drain() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.drain_notice := nextval('ledger');
  NEW.drain_actor := coalesce(current_setting('berth.actor', true), '');
  RETURN NEW;
END $$;
CREATE TRIGGER machines_number_drain BEFORE UPDATE OF drain_reason, drain_deadline ON machines FOR EACH ROW
  WHEN (NEW.drain_reason IS NOT NULL
    AND (OLD.drain_reason, OLD.drain_deadline) IS DISTINCT FROM (NEW.drain_reason, NEW.drain_deadline))
  EXECUTE FUNCTION machines_number_drain();

CREATE OR REPLACE FUNCTION machines_record() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  author text := coalesce(current_setting('berth.actor', true), '');
BEGIN
  IF author = '' THEN
    IF NEW.reason LIKE 'retired by %' AND NEW.state = 'retired' THEN
      author := substr(NEW.reason, length('retired by ') + 1);
    ELSIF NEW.reason LIKE 'confirmed dead by %' AND NEW.state = 'lost' THEN
      author := substr(NEW.reason, length('confirmed dead by ') + 1);
    ELSIF NEW.state IN ('suspect', 'lost') THEN
      author := 'leader';
    ELSIF TG_OP = 'INSERT' THEN
      author := 'agent:' || NEW.id;
    -- A drain, or its end, by a program that names no actor.
    ELSIF (OLD.drain_reason, OLD.drain_deadline) IS NOT DISTINCT FROM (NEW.drain_reason, NEW.drain_deadline) THEN
      author := 'agent:' || NEW.id;
    END IF;
  END IF;
  INSERT INTO machine_events (machine_id, state, reason, epoch, host_boot, cpu_m, mem_mb, disk_mb, gpu_milli, actor,
    drain_deadline)
  VALUES (NEW.id, NEW.state, NEW.reason, NEW.epoch, NEW.host_boot, NEW.cpu_m, NEW.mem_mb, NEW.disk_mb, NEW.gpu_milli, author,
    CASE WHEN NEW.state = 'draining' THEN NEW.drain_deadline END);
  RETURN NULL;
END $$;
DROP TRIGGER machines_record_change ON machines;
CREATE TRIGGER machines_record_change AFTER UPDATE ON machines FOR EACH ROW
  WHEN ((OLD.state, OLD.epoch, OLD.host_boot, OLD.cpu_m, OLD.mem_mb, OLD.disk_mb, OLD.gpu_milli, OLD.drain_reason,
      OLD.drain_deadline)
    IS DISTINCT FROM (NEW.state, NEW.epoch, NEW.host_boot, NEW.cpu_m, NEW.mem_mb, NEW.disk_mb, NEW.gpu_milli,
      NEW.drain_reason, NEW.drain_deadline))
  EXECUTE FUNCTION machines_record();

CREATE OR REPLACE FUNCTION gpu_devices_record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO machine_events (machine_id, gpu, state, reason, actor)
  VALUES (NEW.machine_id, NEW.idx, CASE WHEN NEW.healthy THEN 'healthy' ELSE 'unhealthy' END, NEW.reason,
    'agent:' || NEW.machine_id);
  RETURN NULL;
END $$;
