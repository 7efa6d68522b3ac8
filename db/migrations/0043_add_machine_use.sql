-- The measured use of each machine, for display alone: berth top shows it next to the reserved amounts.
--
-- A row is a picture of the last seconds, which agents send again, so the table needs no log: a
-- crash of the database empties it for a minute. It is a table of its own, so that reports take no
-- lock on machines and run none of their triggers. Versions before this one ignore it.
CREATE UNLOGGED TABLE machine_use (
  machine_id text PRIMARY KEY REFERENCES machines (id) ON DELETE CASCADE,
  at         timestamptz NOT NULL,
  use        jsonb NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE machine_use IS 'the last measured use of each machine; one row a machine, shown to users, and nothing is decided by it';
COMMENT ON COLUMN machine_use.at IS 'when the report arrived; an old row comes from an agent that does not measure now';
COMMENT ON COLUMN machine_use.use IS 'cpu_milli and memory_mib of all jobs, and gpus: uuid, busy and memory_mib of each device';
