-- Launches that ended long ago are deleted, and their costs stay in spend. This table keeps the sum of the deleted
-- ones, so that the costs of days and of launches can be compared at any time. It is filled by a trigger, and so by
-- the version before, too.
CREATE TABLE pruned_spend (
  tenant  text PRIMARY KEY,
  settled bigint NOT NULL
);
COMMENT ON TABLE pruned_spend IS 'settled costs of the deleted launches of each tenant, without tenants below it, in micro-dollars';
COMMENT ON COLUMN pruned_spend.tenant IS 'empty: launches that an admin requested by hand';
COMMENT ON COLUMN pruned_spend.settled IS 'negative: the tenant was deleted before this table existed, and the days of its launches are those of its parent';

CREATE FUNCTION launches_keep_spend() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.settled > 0 THEN
    INSERT INTO pruned_spend AS p (tenant, settled) VALUES (OLD.tenant, OLD.settled)
    ON CONFLICT (tenant) DO UPDATE SET settled = p.settled + excluded.settled;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER launches_keep_spend AFTER DELETE ON launches FOR EACH ROW EXECUTE FUNCTION launches_keep_spend();

-- The launches that were deleted before this table existed. The trigger above holds a lock under which none is deleted
-- meanwhile. The difference is negative for a deleted tenant: its days were added to those of its parent, where they
-- count as costs of deleted launches.
INSERT INTO pruned_spend (tenant, settled)
SELECT tenant, coalesce(s.settled, 0) - coalesce(l.settled, 0)
FROM (SELECT tenant, sum(settled)::bigint AS settled FROM spend GROUP BY tenant) s
FULL JOIN (SELECT tenant, sum(settled)::bigint AS settled FROM launches GROUP BY tenant) l USING (tenant)
WHERE coalesce(s.settled, 0) <> coalesce(l.settled, 0);

-- After a restore, only an end that was requested since is carried out before the provider was listed.
ALTER TABLE launches ADD COLUMN stop_incarnation bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN launches.stop_incarnation IS 'of the database when the end was requested last; 0: not requested, or by the version before';
