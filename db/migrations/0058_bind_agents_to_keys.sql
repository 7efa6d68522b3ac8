-- The credentials of an agent are bound to a key that is made on its machine, and have an end (adr/0069).
-- Replicas of the version before read and write tokens as before: they obey the end of a credential, and
-- the triggers hold the rules for them, too.
CREATE TABLE machine_keys (
  key        bytea PRIMARY KEY CONSTRAINT machine_keys_ed25519 CHECK (octet_length(key) = 32),
  machine_id text NOT NULL,
  number     bigint NOT NULL DEFAULT 0 CONSTRAINT machine_keys_number CHECK (number >= 0),
  until      timestamptz,
  bound_at   timestamptz NOT NULL DEFAULT now(),
  revoked_at timestamptz
);
CREATE INDEX machine_keys_machine ON machine_keys (machine_id);
COMMENT ON TABLE machine_keys IS 'public keys of machines; the private key never leaves its machine';
COMMENT ON COLUMN machine_keys.key IS 'Ed25519; a key belongs to one machine for good';
COMMENT ON COLUMN machine_keys.number IS 'of the last renewal with the key; a renewal with a lower number is a replay';
COMMENT ON COLUMN machine_keys.until IS 'after this, the key renews no credential; null: its credential has no end yet';
COMMENT ON COLUMN machine_keys.revoked_at IS 'the key and all its credentials are void; set when one of its tokens is revoked';

CREATE FUNCTION machine_keys_keep() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.key <> OLD.key OR NEW.machine_id <> OLD.machine_id OR NEW.number < OLD.number
     OR OLD.revoked_at IS NOT NULL AND NEW.revoked_at IS DISTINCT FROM OLD.revoked_at THEN
    RAISE EXCEPTION 'key of machine %: its machine stays, its number rises, and a revocation is final', OLD.machine_id
      USING ERRCODE = 'BT017';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER machine_keys_keep BEFORE UPDATE ON machine_keys FOR EACH ROW EXECUTE FUNCTION machine_keys_keep();

-- In the order of writers.
LOCK TABLE machines, tokens IN ACCESS EXCLUSIVE MODE;
ALTER TABLE tokens
  ADD COLUMN key     bytea,
  ADD COLUMN number  bigint NOT NULL DEFAULT 0,
  ADD COLUMN used_at timestamptz,
  ADD CONSTRAINT tokens_key FOREIGN KEY (key) REFERENCES machine_keys NOT VALID;
COMMENT ON COLUMN tokens.key IS 'key of the machine that renews this credential; null: a token of a user, or of an agent that has no key';
COMMENT ON COLUMN tokens.number IS 'of the renewal that made this credential; 0: a join, or an agent without a key';
COMMENT ON COLUMN tokens.used_at IS 'first use of a credential with a key, at which the earlier credentials of the key get an early end';
CREATE INDEX tokens_key ON tokens (key) WHERE key IS NOT NULL;
CREATE INDEX tokens_machine ON tokens (machine_id) WHERE machine_id IS NOT NULL;

-- A token is bound to one key, once, and to no key that is revoked. The lock on the key waits for a
-- revocation under way.
CREATE FUNCTION tokens_keep_key() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  k machine_keys;
BEGIN
  IF TG_OP = 'UPDATE' AND OLD.key IS NOT NULL AND NEW.key IS DISTINCT FROM OLD.key THEN
    RAISE EXCEPTION 'token %: it is bound to a key already', OLD.id USING ERRCODE = 'BT017';
  END IF;
  IF NEW.key IS NULL THEN
    RETURN NEW;
  END IF;
  SELECT * INTO k FROM machine_keys WHERE key = NEW.key FOR SHARE;
  IF k.machine_id IS DISTINCT FROM NEW.machine_id OR NEW.role <> 'machine' THEN
    RAISE EXCEPTION 'token %: its key belongs to another machine', NEW.id USING ERRCODE = 'BT017';
  END IF;
  IF k.revoked_at IS NOT NULL AND NEW.revoked_at IS NULL THEN
    RAISE EXCEPTION 'token %: its key is revoked', NEW.id USING ERRCODE = 'BT017';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER tokens_keep_key BEFORE INSERT OR UPDATE OF key ON tokens FOR EACH ROW EXECUTE FUNCTION tokens_keep_key();

-- Whoever revokes one credential of a machine means the machine: an operator cannot know which of two
-- credentials the agent uses at the moment.
CREATE FUNCTION tokens_revoke_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE machine_keys SET revoked_at = NEW.revoked_at WHERE key = NEW.key AND revoked_at IS NULL;
  RETURN NULL;
END $$;
CREATE TRIGGER tokens_revoke_key AFTER UPDATE OF revoked_at ON tokens FOR EACH ROW
  WHEN (OLD.revoked_at IS NULL AND NEW.revoked_at IS NOT NULL AND NEW.key IS NOT NULL)
  EXECUTE FUNCTION tokens_revoke_key();

-- A machine that a restored database did not know came back by its key. It needs an approval in every pool.
ALTER TABLE machines ADD COLUMN returned boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN machines.returned IS 'the restored database did not know the machine: it needs an approval in every pool, until it joins again';

-- As machines_hold does for pools that demand approvals. The name puts the trigger before machines_hold.
CREATE FUNCTION machines_held_returned() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' AND NEW.host_boot = '' AND NEW.epoch > OLD.epoch AND NEW.state = 'joining' THEN
    NEW.returned := false; -- another host may be behind the name
  END IF;
  IF NEW.returned AND NEW.state IN ('ready', 'suspect') AND NEW.held = '' AND NEW.approved IS NULL THEN
    NEW.held := 'the restored database does not know the machine: waits for approval';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER machines_held_returned BEFORE INSERT OR UPDATE OF state, pool, held, epoch ON machines
  FOR EACH ROW EXECUTE FUNCTION machines_held_returned();
