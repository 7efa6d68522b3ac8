-- What gangs need: where their ranks reach each other, how long some wait for
-- the others, and for how long room was kept for their repair.

ALTER TABLE machines
  ADD COLUMN network    text NOT NULL DEFAULT '',
  ADD COLUMN port_first integer NOT NULL DEFAULT 0,
  ADD COLUMN port_last  integer NOT NULL DEFAULT 0,
  ADD CONSTRAINT machines_ports CHECK (port_first BETWEEN 0 AND 65535 AND port_last BETWEEN port_first AND 65535);
COMMENT ON COLUMN machines.network IS 'members of a gang are on machines of one network: the hosts'' own, that of one container engine, or a named one';
COMMENT ON COLUMN machines.port_first IS 'of the ports for members of gangs; 0: the default range';

ALTER TABLE allocations ADD COLUMN prepared_at timestamptz;
COMMENT ON COLUMN allocations.prepared_at IS 'when the machine had it ready to start: a gang waits for its last rank';
COMMENT ON COLUMN allocations.port IS 'reserved for a member of a gang on its machine, until it is settled';

ALTER TABLE earmark_log
  ADD COLUMN made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  ADD COLUMN gone_at timestamptz;
COMMENT ON COLUMN earmarks.victim IS 'holds the room until it has stopped: until then nothing is kept; null: it was free. The beneficiary itself: a gang''s own room, kept for its repair';

CREATE OR REPLACE FUNCTION earmarks_record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO earmark_log (id, beneficiary, machine_id, gpu_idx, milli, victim, victim_attempt)
    VALUES (NEW.id, NEW.beneficiary, NEW.machine_id, NEW.gpu_idx, NEW.milli, NEW.victim, NEW.victim_attempt);
  ELSE
    UPDATE earmark_log SET until_seq = nextval('ledger'), gone_at = clock_timestamp() WHERE id = OLD.id;
  END IF;
  RETURN NULL;
END $$;
