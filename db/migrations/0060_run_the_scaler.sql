-- The leader runs the scaler (adr/0072). A berthd of the version before names none of the columns.
ALTER TABLE launches ADD COLUMN empty_since timestamptz;
COMMENT ON COLUMN launches.empty_since IS 'since when the leader has seen no use of the machine; null: used, or not yet joined';

ALTER TABLE breakers
  ADD COLUMN probe    text NOT NULL DEFAULT '',
  ADD COLUMN probe_at timestamptz;
COMMENT ON COLUMN breakers.probe IS 'launch that tries the scope since its time has passed, as machine/n; empty: none does';
COMMENT ON COLUMN breakers.probe_at IS 'when the launch of probe was requested; null: none was';

-- The first send of a launch looks for other sends and for successes of its offering.
CREATE INDEX launches_sent ON launches (provider, region, type) WHERE state = 'sent';
CREATE INDEX launches_answered ON launches (provider, region, type, answered_at) WHERE instance <> '';

-- Growth is counted by tenant, and over all launches of the scaler.
CREATE INDEX launches_grown ON launches (tenant, created_at);
CREATE INDEX launches_scaled ON launches (created_at) WHERE actor = 'scaler';

-- Settled launches in the order in which they are deleted.
CREATE INDEX launches_settled ON launches (state_at) WHERE state IN ('gone', 'failed');

CREATE TABLE burst_notes (
  job      uuid PRIMARY KEY,
  code     text NOT NULL CONSTRAINT burst_notes_code CHECK (code <> ''),
  machines text[] NOT NULL DEFAULT '{}',
  until    timestamptz,
  start    timestamptz,
  cost     double precision NOT NULL DEFAULT 0,
  at       timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE burst_notes IS 'decision of the scaler on each waiting job that it has examined, for people; the leader replaces them';
COMMENT ON COLUMN burst_notes.machines IS 'machines that were launched for the job, or that boot and have room for it';
COMMENT ON COLUMN burst_notes.until IS 'with code closed: when the first offer may be tried again; null: not known';
COMMENT ON COLUMN burst_notes.start IS 'planned start on machines that exist; null: none is planned';
COMMENT ON COLUMN burst_notes.cost IS 'expected cost of the run in the cloud, in US dollars; 0: not known';
