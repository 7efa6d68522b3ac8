-- Machines that do not meet the security floors take no jobs of untrusted tenants (adr/0119). Agents report facts about
-- the container engine, and the leader judges them. An older berthd neither stores facts nor judges: the verdict names
-- the process of the agent that it is about, so a registration by an older berthd leaves the machine without a verdict.
-- The trigger below holds the rule for placements of an older berthd too.
-- In the order of commits, which lock machines before they insert allocations, and tenants last.
LOCK TABLE machines, machine_events, allocations, tenants IN ACCESS EXCLUSIVE MODE;

ALTER TABLE tenants ADD COLUMN untrusted boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN tenants.untrusted IS 'jobs of the tenant, and of all tenants below it, start only on machines that meet the security floors';
-- Each placement asks whether any tenant is untrusted.
CREATE INDEX tenants_untrusted ON tenants (id) WHERE untrusted;

CREATE FUNCTION tenant_untrusted(tenant text) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT EXISTS (SELECT 1 FROM tenants t WHERE t.untrusted)
    AND tenant_within(tenant, ARRAY(SELECT t.id FROM tenants t WHERE t.untrusted));
$$;
COMMENT ON FUNCTION tenant_untrusted IS 'true if the tenant or a tenant above it is untrusted';

CREATE TABLE machine_hosts (
  machine_id text PRIMARY KEY REFERENCES machines (id) ON DELETE CASCADE,
  agent_boot text NOT NULL,
  at         timestamptz NOT NULL,
  facts      jsonb NOT NULL,
  judged_by  text NOT NULL DEFAULT '',
  findings   jsonb
) WITH (fillfactor = 50);
COMMENT ON TABLE machine_hosts IS 'the container engine of each machine, as its agent reported it last';
COMMENT ON COLUMN machine_hosts.agent_boot IS 'process of the agent that reported';
COMMENT ON COLUMN machine_hosts.at IS 'when the last report arrived';
COMMENT ON COLUMN machine_hosts.facts IS 'versions and settings; the agent reports, and the leader judges';
COMMENT ON COLUMN machine_hosts.judged_by IS 'identifies the floors of the verdict in the row of machines; empty: to be judged';
COMMENT ON COLUMN machine_hosts.findings IS 'the leader''s findings about these facts, also those that an operator has waived; null: none about these facts yet';

CREATE TABLE machine_waivers (
  machine_id text NOT NULL REFERENCES machines (id) ON DELETE CASCADE,
  component  text NOT NULL,
  version    text NOT NULL,
  until      timestamptz NOT NULL,
  reason     text NOT NULL,
  actor      text NOT NULL,
  at         timestamptz NOT NULL DEFAULT clock_timestamp(),
  findings   jsonb NOT NULL,
  PRIMARY KEY (machine_id, component)
);
COMMENT ON TABLE machine_waivers IS 'statements of operators that a version is secure although it is older than the floor';
COMMENT ON COLUMN machine_waivers.version IS 'the version to which the statement applies; a report of another version ends it, and one without a version does not';
COMMENT ON COLUMN machine_waivers.until IS 'the end of the statement';
COMMENT ON COLUMN machine_waivers.findings IS 'the findings that the statement covers: the leader''s at the time of the statement';

ALTER TABLE machines
  ADD COLUMN floor_findings   jsonb,
  ADD COLUMN floor_boot       text NOT NULL DEFAULT '',
  ADD COLUMN floor_until      timestamptz,
  ADD COLUMN floor_conditions text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN machines.floor_findings IS 'the leader''s verdict: reasons for which the machine does not meet the security floors, without those that an operator has waived; null: not judged yet';
COMMENT ON COLUMN machines.floor_boot IS 'process of the agent to which the verdict applies; another process leaves the machine without a verdict';
COMMENT ON COLUMN machines.floor_until IS 'end of the first waiver on which the verdict rests; null: it rests on none';
COMMENT ON COLUMN machines.floor_conditions IS 'conditions of the verdict, which are labels of the machine: below_floor, unconfined';

CREATE FUNCTION floors_met(findings jsonb, judged text, boot text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT coalesce(findings = '[]' AND judged = boot, false);
$$;
COMMENT ON FUNCTION floors_met IS 'true for a verdict without findings about the present process of the agent, regardless of the end of waivers';

CREATE FUNCTION meets_floors(m machines) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT floors_met(m.floor_findings, m.floor_boot, m.agent_boot)
    AND (m.floor_until IS NULL OR m.floor_until > clock_timestamp());
$$;
COMMENT ON FUNCTION meets_floors IS 'true for a machine that takes jobs of untrusted tenants';

-- After a join under the name of an earlier machine another host may be behind the name, as in migration 0057.
CREATE FUNCTION machines_forget_host() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM machine_hosts WHERE machine_id = NEW.id;
  DELETE FROM machine_waivers WHERE machine_id = NEW.id;
  RETURN NULL;
END $$;
CREATE TRIGGER machines_forget_host AFTER UPDATE OF epoch ON machines FOR EACH ROW
  WHEN (NEW.host_boot = '' AND NEW.epoch > OLD.epoch AND NEW.state = 'joining')
  EXECUTE FUNCTION machines_forget_host();

CREATE FUNCTION machine_labels(m machines) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
  SELECT (m.labels - ARRAY['below_floor', 'unconfined'])
    || coalesce((SELECT jsonb_object_agg(c, 'true') FROM unnest(m.floor_conditions) c), '{}');
$$;
COMMENT ON FUNCTION machine_labels IS 'labels of a machine: those of its agent and its join token, and the conditions of the leader''s verdict, which neither can set';

ALTER TABLE machine_events ADD COLUMN meets_floors boolean;
COMMENT ON COLUMN machine_events.meets_floors IS 'the machine met the security floors; null: the row is of a version without floors';

-- A change of the verdict is an event. The writer of a verdict puts its text into the setting berth.note.
CREATE OR REPLACE FUNCTION machines_record() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  author text := coalesce(current_setting('berth.actor', true), '');
BEGIN
  IF author = '' THEN
    IF NEW.reason LIKE 'retired by %' AND NEW.state = 'retired' THEN
      author := substr(NEW.reason, length('retired by ') + 1);
    ELSIF NEW.reason LIKE 'confirmed dead by %' AND NEW.state = 'lost' THEN
      author := substr(NEW.reason, length('confirmed dead by ') + 1);
    ELSIF NEW.state IN ('suspect', 'lost') THEN
      author := 'leader';
    ELSIF TG_OP = 'INSERT' THEN
      author := 'agent:' || NEW.id;
    -- A drain, or its end, by a program that names no actor.
    ELSIF (OLD.drain_reason, OLD.drain_deadline) IS NOT DISTINCT FROM (NEW.drain_reason, NEW.drain_deadline) THEN
      author := 'agent:' || NEW.id;
    END IF;
  END IF;
  INSERT INTO machine_events (machine_id, state, reason, epoch, host_boot, cpu_m, mem_mb, disk_mb, gpu_milli, actor,
    drain_deadline, meets_floors)
  VALUES (NEW.id, NEW.state, coalesce(nullif(current_setting('berth.note', true), ''), NEW.reason), NEW.epoch,
    NEW.host_boot, NEW.cpu_m, NEW.mem_mb, NEW.disk_mb, NEW.gpu_milli, author,
    CASE WHEN NEW.state = 'draining' THEN NEW.drain_deadline END,
    floors_met(NEW.floor_findings, NEW.floor_boot, NEW.agent_boot));
  RETURN NULL;
END $$;
DROP TRIGGER machines_record_change ON machines;
-- Plain columns: a call of floors_met would be planned anew for each statement that updates machines.
CREATE TRIGGER machines_record_change AFTER UPDATE ON machines FOR EACH ROW
  WHEN ((OLD.state, OLD.epoch, OLD.host_boot, OLD.cpu_m, OLD.mem_mb, OLD.disk_mb, OLD.gpu_milli, OLD.drain_reason,
      OLD.drain_deadline, OLD.floor_findings, OLD.floor_boot = OLD.agent_boot)
    IS DISTINCT FROM (NEW.state, NEW.epoch, NEW.host_boot, NEW.cpu_m, NEW.mem_mb, NEW.disk_mb, NEW.gpu_milli,
      NEW.drain_reason, NEW.drain_deadline, NEW.floor_findings, NEW.floor_boot = NEW.agent_boot))
  EXECUTE FUNCTION machines_record();

ALTER TABLE allocations ADD COLUMN untrusted boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN allocations.untrusted IS 'the tenant was untrusted at the commit; false in rows of versions without the rule';

-- The name of the trigger puts it after allocations_take, which locks the machines: a verdict waits for the lock too.
CREATE FUNCTION allocations_untrusted() RETURNS trigger LANGUAGE plpgsql
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM tenants WHERE untrusted) AND EXISTS (
    SELECT 1
    FROM new_rows n
    JOIN machines m ON m.id = n.machine_id
    JOIN jobs j ON j.id = n.job
    WHERE counts(n.state) AND NOT meets_floors(m) AND tenant_untrusted(j.tenant)) THEN
    RAISE EXCEPTION 'a machine does not meet the security floors for an untrusted tenant' USING ERRCODE = 'BT020';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER allocations_untrusted AFTER INSERT ON allocations REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION allocations_untrusted();
