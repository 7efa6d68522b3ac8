-- Taints keep jobs off machines that they do not tolerate (adr/0113). Operators set taints on machines and pools. An
-- older berthd neither reads nor writes them, and the trigger below holds them for its placements too.
-- In the order of commits, which lock machines and read pools before they insert allocations.
LOCK TABLE machines, pools, allocations IN ACCESS EXCLUSIVE MODE;
ALTER TABLE machines
  ADD COLUMN taints      text[] NOT NULL DEFAULT '{}',
  ADD COLUMN pool_taints text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN machines.taints IS 'taints of the machine, KEY[=VALUE]:EFFECT: no job starts there that does not tolerate each of them';
COMMENT ON COLUMN machines.pool_taints IS 'copy of the taints of its pool, which have the same effect';
ALTER TABLE pools ADD COLUMN taints text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN pools.taints IS 'taints of each machine of the pool, as in machines';

-- Each placement asks whether any machine has taints.
CREATE INDEX machines_tainted ON machines (id) WHERE taints <> '{}' OR pool_taints <> '{}';

CREATE FUNCTION tolerates(request jsonb, taints text[]) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT NOT EXISTS (
    SELECT 1
    FROM unnest(taints) AS t (taint),
      LATERAL (SELECT split_part(t.taint, ':', 1) AS mark, split_part(t.taint, ':', 2) AS effect) m,
      LATERAL (SELECT split_part(m.mark, '=', 1) AS key) k
    WHERE NOT coalesce(request->'tolerations', '[]') ?|
      ARRAY['*', t.taint, m.mark, k.key, k.key || ':' || m.effect]);
$$;
COMMENT ON FUNCTION tolerates IS 'true if the tolerations of a request cover each taint';

-- The name of the trigger puts it after machines_choose_pool, which keeps the pool from changes.
CREATE FUNCTION machines_take_taints() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.pool_taints := coalesce((SELECT p.taints FROM pools p WHERE p.id = NEW.pool), '{}');
  RETURN NEW;
END $$;
CREATE TRIGGER machines_take_taints BEFORE INSERT OR UPDATE OF pool ON machines
  FOR EACH ROW EXECUTE FUNCTION machines_take_taints();

-- The name of the trigger puts it after allocations_take, which locks the machines.
CREATE FUNCTION allocations_tolerate() RETURNS trigger LANGUAGE plpgsql
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM machines WHERE taints <> '{}' OR pool_taints <> '{}') AND EXISTS (
    SELECT 1
    FROM new_rows n
    JOIN machines m ON m.id = n.machine_id
    JOIN jobs j ON j.id = n.job
    JOIN classes c ON c.class = j.class
    WHERE counts(n.state) AND NOT tolerates(c.request, m.taints || m.pool_taints)) THEN
    RAISE EXCEPTION 'a job does not tolerate a taint of its machine' USING ERRCODE = 'BT019';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER allocations_tolerate AFTER INSERT ON allocations REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION allocations_tolerate();

-- The version before would drop the tolerations of a job file that it copies, and the copy would never start on a machine
-- that it needs. Format 5 is the one of migration 0081.
CREATE OR REPLACE FUNCTION format_of(file jsonb) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN file ? 'hold_on_failure' OR file #> '{placement,tolerations}' IS NOT NULL OR jsonb_path_exists(file,
      '$.**.jobs.* ? (exists(@.hold_on_failure) || exists(@.placement.tolerations))') THEN 5
    WHEN file ? 'groups' OR jsonb_path_exists(file, '$.**.jobs.* ? (exists(@.groups))') THEN 4
    WHEN file ?| '{user,read_only_root}' OR jsonb_path_exists(file,
      '$.**.jobs.* ? (exists(@.user) || exists(@.read_only_root))') THEN 3
    WHEN file ? 'alternatives' OR jsonb_path_exists(file, '$.**.jobs.* ? (exists(@.alternatives))') THEN 2
    WHEN file ?| '{stall,network}' OR jsonb_path_exists(file,
      '$.**.jobs.* ? (exists(@.when) || exists(@.final) || exists(@.array.from) || exists(@.stall) || exists(@.network))')
    THEN 1 ELSE 0 END
$$;

CREATE OR REPLACE FUNCTION refuse_old_copy(what text, file jsonb, known integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF known < format_of(file) THEN
    RAISE EXCEPTION '% has when, final, array.from, stall, network, alternatives, user, read_only_root, groups, hold_on_failure or tolerations, which this berthd does not know: a newer one must run it; repeat the call, or upgrade this berthd', what
      USING ERRCODE = '57T01';
  END IF;
END $$;
