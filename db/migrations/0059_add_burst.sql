-- Policy and money of machines of clouds (adr/0071): which tenants may launch, the offers with their
-- prices, and the spend. All amounts are whole micro-dollars, so that sums add up. A berthd of the
-- version before names none of the columns; the triggers below settle its launches too.
CREATE TABLE burst_policies (
  tenant     text PRIMARY KEY REFERENCES tenants (id) ON DELETE CASCADE,
  policy     jsonb NOT NULL,
  version    bigint NOT NULL DEFAULT 1,
  updated_at timestamptz NOT NULL DEFAULT now(),
  updated_by text NOT NULL
);
COMMENT ON TABLE burst_policies IS 'rules of tenants for machines of clouds, as spec.Burst; a tenant with a policy neither of its own nor above it launches none';
COMMENT ON COLUMN burst_policies.version IS 'increases with each change, so that concurrent changes are detected';

CREATE TABLE offers (
  provider       text NOT NULL,
  region         text NOT NULL,
  zone           text NOT NULL,
  type           text NOT NULL,
  market         text NOT NULL CONSTRAINT offers_market CHECK (market IN ('on_demand', 'spot')),
  cpus           integer NOT NULL,
  memory_mib     bigint NOT NULL,
  gpus           integer NOT NULL,
  gpu_type       text NOT NULL,
  price          double precision NOT NULL CONSTRAINT offers_price CHECK (price >= 0 AND price < 'infinity'),
  price_override double precision CONSTRAINT offers_price_override CHECK (price_override > 0 AND price_override < 'infinity'),
  source         text NOT NULL,
  as_of          date NOT NULL,
  loaded_at      timestamptz NOT NULL DEFAULT now(),
  loaded_by      text NOT NULL,
  PRIMARY KEY (provider, region, zone, type, market)
);
COMMENT ON TABLE offers IS 'machine types that clouds offer, with dated prices, as loaded last';
COMMENT ON COLUMN offers.price IS 'US dollars an hour; 0: unknown';
COMMENT ON COLUMN offers.price_override IS 'price of an own contract, in place of price; null: none. It outlives a new load';
COMMENT ON COLUMN offers.as_of IS 'when the price was valid';

-- The outstanding reservations are in launches, and what was settled is here by day. Periods are sums of
-- days, so a changed period and a moved tenant need no change of rows.
CREATE TABLE spend (
  tenant  text NOT NULL,
  day     date NOT NULL,
  settled bigint NOT NULL CONSTRAINT spend_settled CHECK (settled >= 0),
  PRIMARY KEY (tenant, day)
);
COMMENT ON TABLE spend IS 'settled costs of the launches of each tenant, without tenants below it, by day of UTC, in micro-dollars';
COMMENT ON COLUMN spend.tenant IS 'empty: launches that an admin requested by hand';

CREATE TABLE spend_alerts (
  tenant text NOT NULL REFERENCES tenants (id) ON DELETE CASCADE,
  period timestamptz NOT NULL,
  level  text NOT NULL CONSTRAINT spend_alerts_level CHECK (level IN ('warn', 'stop_new', 'drain')),
  at     timestamptz NOT NULL DEFAULT now(),
  used   bigint NOT NULL,
  most   double precision NOT NULL,
  PRIMARY KEY (tenant, period, level)
);
COMMENT ON TABLE spend_alerts IS 'levels of a spend limit that were reached, once for each period that starts then';
COMMENT ON COLUMN spend_alerts.used IS 'micro-dollars that were settled or reserved';
COMMENT ON COLUMN spend_alerts.most IS 'limit at that time, in US dollars';

ALTER TABLE launches
  ADD COLUMN tenant     text NOT NULL DEFAULT '',
  ADD COLUMN reserved   bigint NOT NULL DEFAULT 0 CONSTRAINT launches_reserved CHECK (reserved >= 0),
  ADD COLUMN settled    bigint NOT NULL DEFAULT 0 CONSTRAINT launches_settled CHECK (settled >= 0),
  ADD COLUMN settled_to timestamptz;
COMMENT ON COLUMN launches.tenant IS 'tenant that pays; empty: an admin requested the launch by hand';
COMMENT ON COLUMN launches.reserved IS 'micro-dollars that are reserved and not settled; 0 once the launch is gone or failed';
COMMENT ON COLUMN launches.settled IS 'micro-dollars that the instance has cost up to settled_to';
COMMENT ON COLUMN launches.settled_to IS 'end of the time that is settled; null: none';
CREATE INDEX launches_tenant ON launches (tenant) WHERE state NOT IN ('gone', 'failed');
COMMENT ON INDEX launches_tenant IS 'reservations and machines of a tenant';

CREATE FUNCTION launch_cost(price double precision, since timestamptz, until timestamptz) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
  SELECT ceil(price::numeric * 1000000 * greatest(0, extract(epoch FROM until - since)) / 3600)::bigint;
$$;
COMMENT ON FUNCTION launch_cost IS 'cost of an instance from since to until, in micro-dollars, rounded up';

CREATE FUNCTION burst_period(policy jsonb, at timestamptz) RETURNS timestamptz LANGUAGE sql STABLE AS $$
  SELECT date_trunc(coalesce(policy -> 'spend' ->> 'period', 'month'), at, 'UTC');
$$;
COMMENT ON FUNCTION burst_period IS 'start of the period of a policy''s spend that contains the time';

CREATE FUNCTION burst_spent(root text, since timestamptz, OUT reserved bigint, OUT settled bigint, OUT machines bigint)
LANGUAGE sql STABLE AS $$
  WITH RECURSIVE down (id) AS (
    SELECT root
    UNION
    SELECT t.id FROM down JOIN tenants t ON t.parent = down.id
  )
  SELECT coalesce(sum(l.reserved), 0)::bigint,
    (SELECT coalesce(sum(s.settled), 0)::bigint
     FROM down JOIN spend s ON s.tenant = down.id
     WHERE s.day >= (since AT TIME ZONE 'UTC')::date),
    count(l.machine)
  FROM down
  JOIN launches l ON l.tenant = down.id AND l.state NOT IN ('gone', 'failed');
$$;
COMMENT ON FUNCTION burst_spent IS 'spend of a tenant and all tenants below it since a time, in micro-dollars, and the number of their machines';

-- A launch for a tenant is admitted by a policy, with a known price, and within the money of each tenant
-- above it. Launches of one subtree are admitted one at a time: each locks the policies of its path.
CREATE FUNCTION launches_reserve() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  path text[];
  over record;
BEGIN
  IF NEW.tenant = '' THEN
    RETURN NEW;
  END IF;
  IF NOT NEW.price > 0 OR NEW.reserved < launch_cost(NEW.price, NEW.created_at, NEW.created_at + interval '1 hour') THEN
    RAISE EXCEPTION 'launch % of machine % reserves less than an hour of its price', NEW.n, NEW.machine
      USING ERRCODE = 'BT016';
  END IF;
  WITH RECURSIVE up (id, parent) AS (
    SELECT t.id, t.parent FROM tenants t WHERE t.id = NEW.tenant
    UNION
    SELECT t.id, t.parent FROM up JOIN tenants t ON t.id = up.parent
  )
  SELECT array_agg(up.id) INTO path FROM up;
  PERFORM 1 FROM burst_policies p WHERE p.tenant = ANY (path) ORDER BY p.tenant FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'tenant % has no burst policy', NEW.tenant USING ERRCODE = 'BT016';
  END IF;
  SELECT p.tenant, p.policy -> 'spend' ->> 'limit' AS most INTO over
  FROM burst_policies p
  CROSS JOIN LATERAL burst_spent(p.tenant, burst_period(p.policy, clock_timestamp())) s
  WHERE p.tenant = ANY (path) AND p.policy ? 'spend'
    AND s.reserved + s.settled + NEW.reserved > (p.policy -> 'spend' ->> 'limit')::numeric
      * coalesce((p.policy -> 'spend' ->> 'stop_new')::numeric, 0.9) * 1000000
  LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'launch % of machine % exceeds the spend of tenant %, limit % US dollars', NEW.n, NEW.machine,
      over.tenant, over.most USING ERRCODE = 'BT016';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER launches_reserve BEFORE INSERT ON launches FOR EACH ROW EXECUTE FUNCTION launches_reserve();

-- Costs are settled when settled_to is moved on, and when the launch ends. A launch without an instance
-- costs nothing. Costs are cumulative, so the parts of days add up to the cost of the launch.
CREATE FUNCTION launches_bill() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  since timestamptz := coalesce(NEW.sent_at, NEW.created_at);
  done  timestamptz := coalesce(OLD.settled_to, since);
  until timestamptz;
BEGIN
  IF (NEW.tenant, NEW.price, NEW.settled, NEW.reserved) IS DISTINCT FROM (OLD.tenant, OLD.price, OLD.settled, OLD.reserved)
     OR OLD.settled_to IS NOT NULL AND since IS DISTINCT FROM coalesce(OLD.sent_at, OLD.created_at) THEN
    RAISE EXCEPTION 'tenant, price and costs of launch % of machine % cannot change', NEW.n, NEW.machine
      USING ERRCODE = 'BT016';
  END IF;
  until := CASE
    WHEN NEW.instance = '' OR OLD.state IN ('gone', 'failed') THEN NULL
    WHEN NEW.state = 'gone' THEN NEW.ended_first_at
    WHEN NEW.state = 'failed' THEN coalesce(NEW.ended_first_at, clock_timestamp())
    WHEN NEW.settled_to IS DISTINCT FROM OLD.settled_to THEN least(NEW.settled_to, NEW.ended_first_at, clock_timestamp())
  END;
  NEW.settled_to := OLD.settled_to;
  IF until > done THEN
    INSERT INTO spend (tenant, day, settled)
    SELECT NEW.tenant, d.day, launch_cost(NEW.price, since, least(until, d.day_end))
      - launch_cost(NEW.price, since, greatest(done, d.day_start))
    FROM (
      SELECT g::date AS day, g AT TIME ZONE 'UTC' AS day_start, (g + interval '1 day') AT TIME ZONE 'UTC' AS day_end
      FROM generate_series(date_trunc('day', done AT TIME ZONE 'UTC'), until AT TIME ZONE 'UTC', interval '1 day') g
    ) d
    ORDER BY d.day
    ON CONFLICT (tenant, day) DO UPDATE SET settled = spend.settled + excluded.settled;
    NEW.settled := launch_cost(NEW.price, since, until);
    NEW.settled_to := until;
  END IF;
  NEW.reserved := CASE WHEN NEW.state IN ('gone', 'failed') THEN 0
    ELSE greatest(0, OLD.reserved - (NEW.settled - OLD.settled)) END;
  RETURN NEW;
END $$;
CREATE TRIGGER launches_bill BEFORE UPDATE ON launches FOR EACH ROW EXECUTE FUNCTION launches_bill();

-- A job on a machine of a cloud costs the share of the machine that it holds: the greatest of its shares of
-- CPU, memory and GPUs, from its reservation until it is freed.
CREATE FUNCTION attempt_cost(of_job uuid, of_attempt integer) RETURNS double precision LANGUAGE sql STABLE AS $$
  SELECT sum(launch_cost(l.price * least(1, greatest(a.cpu_m / nullif(m.cpu_m, 0)::float8,
      a.mem_mb / nullif(m.mem_mb, 0)::float8, a.gpu_milli / nullif(m.gpu_milli, 0)::float8)),
    a.reserved_at, least(l.ended_first_at, a.orphaned_at,
      CASE WHEN counts(a.state) THEN clock_timestamp() ELSE coalesce(least(a.exited_at, a.released_at), a.reserved_at) END)))
    / 1000000.0::float8
  FROM allocations a
  JOIN machines m ON m.id = a.machine_id
  CROSS JOIN LATERAL (
    SELECT c.price, c.ended_first_at
    FROM launches c
    WHERE c.machine = a.machine_id AND c.created_at <= a.reserved_at
    ORDER BY c.n DESC
    LIMIT 1
  ) l
  WHERE a.job = of_job AND a.attempt = of_attempt AND l.price > 0;
$$;
COMMENT ON FUNCTION attempt_cost IS 'cost of an attempt on machines of clouds with known prices, in US dollars; null: it ran on none';
