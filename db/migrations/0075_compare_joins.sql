-- A machine is compared with the offer of its launch when it joins, and an offering whose machines have less is closed
-- (adr/0101). A berthd of the version before writes no shape, which means an unknown one, and reads only breakers of the
-- scopes that it knows.
ALTER TABLE launches ADD COLUMN shape jsonb NOT NULL DEFAULT '{}';
COMMENT ON COLUMN launches.shape IS 'capacity of the offer when the launch was requested (cpus, memory_mib, gpus, gpu_type); {}: there was no offer';

ALTER TABLE breakers
  DROP CONSTRAINT breakers_scope,
  ADD CONSTRAINT breakers_scope CHECK (scope IN ('offering', 'provider', 'pool', 'join'));
