-- What attempts are blamed on: the machine of the rank that decided, and which
-- failures count against a machine.

ALTER TABLE attempts ADD COLUMN blamed text;
COMMENT ON COLUMN attempts.blamed IS 'the machine of the rank that decided the outcome';

ALTER TABLE allocations ADD COLUMN alone boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN allocations.alone IS 'its machine died or fell silent, no drain explains it, and no other job ran there';

CREATE TABLE machine_faults (
  job        uuid NOT NULL,
  attempt    integer NOT NULL,
  machine_id text NOT NULL,
  tenant     text NOT NULL,
  rule       text NOT NULL,
  at         timestamptz NOT NULL DEFAULT now(),
  died       boolean NOT NULL DEFAULT false,
  host_boot  text NOT NULL DEFAULT '',
  forgiven   boolean NOT NULL DEFAULT false,
  PRIMARY KEY (job, attempt, machine_id)
);
COMMENT ON TABLE machine_faults IS 'failures that count against a machine; written by Settle with its verdict, and outliving the job';
COMMENT ON COLUMN machine_faults.died IS 'the machine died soon after the job began there, and nothing else ran there: this counts against the job';
COMMENT ON COLUMN machine_faults.host_boot IS 'the boot that fell silent; a machine that is heard again in the same one had not died';
COMMENT ON COLUMN machine_faults.forgiven IS 'an operator has opened the machine for work again since';
CREATE INDEX machine_faults_recent ON machine_faults (at);
COMMENT ON INDEX machine_faults_recent IS 'the leader looks for lemons in the last hours every second';
