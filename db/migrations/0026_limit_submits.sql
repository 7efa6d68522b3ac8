-- What a tenant may submit: how often, and with which priority.

ALTER TABLE tenants
  ADD COLUMN max_priority integer CONSTRAINT tenants_max_priority CHECK (max_priority BETWEEN 0 AND 1000),
  ADD CONSTRAINT tenants_submit_rps CHECK (submit_rps > 0);
COMMENT ON COLUMN tenants.submit_rps IS 'submits a second of it and those below it, over all replicas; null: the default of berthd';
COMMENT ON COLUMN tenants.max_priority IS 'greatest priority of jobs that it and those below it submit; null: no limit. Jobs that exist keep theirs';

CREATE UNLOGGED TABLE submit_leases (
  tenant text PRIMARY KEY,
  due    timestamptz NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE submit_leases IS 'how much of its rate of submits each tenant has taken; replicas take blocks. Unlogged: after a crash every tenant starts with a full burst';
COMMENT ON COLUMN submit_leases.due IS 'submits taken so far, as the time at which a tenant that submits at its rate would have taken the last of them; never later than now, unless a clock went back';

-- Rates are a token bucket each: a bucket holds at most bursts[i] submits and
-- gains rates[i] a second. A block is taken from the buckets of a tenant and of all
-- above it that have a rate, or from none of them.
CREATE FUNCTION take_submits(ids text[], rates double precision[], bursts double precision[], most integer,
  OUT granted integer, OUT wait_ms bigint)
LANGUAGE plpgsql AS $$
DECLARE
  seen   timestamptz[] := '{}';
  due_at timestamptz;
  moment timestamptz;
  room   double precision;
BEGIN
  granted := most;
  wait_ms := 0;
  FOR i IN 1..cardinality(ids) LOOP -- ids are sorted: the order of locks
    INSERT INTO submit_leases AS l (tenant, due)
    VALUES (ids[i], 'epoch')
    ON CONFLICT (tenant) DO UPDATE SET due = l.due
    RETURNING due INTO due_at;
    moment := clock_timestamp();
    due_at := greatest(least(due_at, moment), moment - make_interval(secs => bursts[i] / rates[i]));
    seen[i] := due_at;
    room := extract(epoch FROM moment - due_at) * rates[i] + 1e-6;
    granted := least(granted, floor(room)::integer);
    IF room < 1 THEN
      wait_ms := greatest(wait_ms, ceil((1 - room) / rates[i] * 1000)::bigint);
    END IF;
  END LOOP;
  IF granted < 1 THEN
    RETURN;
  END IF;
  FOR i IN 1..cardinality(ids) LOOP
    UPDATE submit_leases
    SET due = seen[i] + make_interval(secs => granted / rates[i])
    WHERE tenant = ids[i];
  END LOOP;
END;
$$;
COMMENT ON FUNCTION take_submits IS 'takes up to most submits from the buckets of ids; granted 0: none, and after wait_ms one may be there';
