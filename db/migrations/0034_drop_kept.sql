-- No version has ever written the allocation state kept: room for a gang's repair is a
-- row of earmarks. The check of the rows that exist is not needed, so none is made.
ALTER TABLE allocations
  DROP CONSTRAINT allocations_state,
  ADD CONSTRAINT allocations_state CHECK (state IN ('reserved', 'active', 'exited', 'orphaned', 'released')) NOT VALID;
COMMENT ON TABLE allocations IS 'one rank of one attempt on one machine. reserved, active and orphaned count against the machine; exited and released do not. orders is the full set the machine was given';
CREATE OR REPLACE FUNCTION counts(state text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT state IN ('reserved', 'active', 'orphaned');
$$;
