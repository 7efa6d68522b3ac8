-- Quotas close the offers that they have refused, calls that the cloud throttles wait together, and a breaker without an
-- end knows the settings that were refused (adr/0103). A berthd of the version before reads only breakers of the scopes
-- that it knows, and writes none of the columns: a row without settings gets the hash of the present ones from the leader.
ALTER TABLE breakers
  ADD COLUMN covers   text[] NOT NULL DEFAULT '{}',
  ADD COLUMN settings text NOT NULL DEFAULT '',
  DROP CONSTRAINT breakers_scope,
  ADD CONSTRAINT breakers_scope CHECK (scope IN ('offering', 'provider', 'pool', 'join', 'quota', 'throttle'));
COMMENT ON COLUMN breakers.covers IS 'of scope quota: the offers that the quota has refused, as provider/region/type/market';
COMMENT ON COLUMN breakers.settings IS 'without until: hash of the settings that the cloud refused; empty: not known';
COMMENT ON COLUMN breakers.until IS 'null: until the settings change, or a forced launch succeeds';

-- The first send of a launch looks for refusals of its offering.
CREATE INDEX launches_refused ON launches (provider, region, type, answered_at)
  WHERE state = 'failed' AND error_kind = 'capacity';
