-- A renewal reads the lease row alone. What ends a machine's session ends its
-- lease in the same transaction, whichever version of the program does it.
CREATE FUNCTION machines_end_lease() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE machine_leases SET epoch = NEW.epoch, agent_boot = '' WHERE machine_id = NEW.id;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION machines_end_lease IS 'makes the lease of a machine''s session useless to its agent: no agent has the boot id ''''';
CREATE TRIGGER machines_end_lease AFTER UPDATE OF state, epoch ON machines FOR EACH ROW
    WHEN ((NEW.state IN ('lost', 'retired') OR NEW.agent_boot = '') AND (NEW.state, NEW.epoch) IS DISTINCT FROM (OLD.state, OLD.epoch))
    EXECUTE FUNCTION machines_end_lease();

UPDATE machine_leases l
SET epoch = m.epoch, agent_boot = ''
FROM machines m
WHERE m.id = l.machine_id AND (m.state IN ('lost', 'retired') OR m.epoch <> l.epoch);

COMMENT ON TABLE machine_leases IS 'the only row a sync without reports updates, and the only one a renewal reads';
COMMENT ON COLUMN machine_leases.agent_boot IS 'the process that may renew the lease, and whose reports seq counts; empty: the session is over';

-- A leader's writes lock its row FOR KEY SHARE. With the term in a unique index a
-- change of the term waits for them, and a renewal of the lease does not.
CREATE UNIQUE INDEX leases_term ON leases (name, epoch);
