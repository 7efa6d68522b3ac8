-- What jobs have left and other jobs take as their inputs.

CREATE TABLE job_inputs (
  job     uuid NOT NULL,
  input   integer NOT NULL,
  source  uuid NOT NULL,
  attempt integer NOT NULL,
  rank    integer NOT NULL,
  name    text NOT NULL,
  PRIMARY KEY (job, input),
  CONSTRAINT job_inputs_output FOREIGN KEY (source, attempt, rank, name) REFERENCES outputs (job, attempt, rank, name)
);
COMMENT ON TABLE job_inputs IS 'which output an input of a job is: chosen once, so that each attempt reads the same; goes with the job''s row';
COMMENT ON COLUMN job_inputs.input IS 'its place among the inputs of the spec, from 0';
COMMENT ON CONSTRAINT job_inputs_output ON job_inputs IS 'no output goes while a row of a job names it';
CREATE INDEX job_inputs_source ON job_inputs (source);
