-- A machine whose container engine does not answer gets no new work until it does.
ALTER TABLE machines ADD COLUMN engine_silent_since timestamptz;
COMMENT ON COLUMN machines.engine_silent_since IS 'since when the container engine has not answered the agent, by the clock of the database; null: it answers';
