-- A rank whose end is on record and whose machine is then given up is sealed
-- without it. What it had not stored is lost, and that is not its program's fault.
ALTER TABLE allocations ADD COLUMN cut_off boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN allocations.cut_off IS 'sealed for its machine, which was given up before it had stored all that the rank left';
