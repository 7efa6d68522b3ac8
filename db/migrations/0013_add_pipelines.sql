-- Pipelines: a parent row, a step a row, needs in deps. A step that must wait for
-- others is blocked: it is submitted, and nobody starts its workflow.

ALTER TABLE jobs
  ADD COLUMN step    text,
  ADD COLUMN blocked boolean NOT NULL DEFAULT false,
  ADD CONSTRAINT jobs_pipeline_step UNIQUE (parent, step);
COMMENT ON COLUMN jobs.step IS 'of a step of a pipeline: its name there';
COMMENT ON COLUMN jobs.blocked IS 'a step that waits for others: no workflow is started, and no deadline counts';
COMMENT ON TABLE deps IS 'which steps of a pipeline must have succeeded before a step starts';
CREATE INDEX deps_needs ON deps (needs);

-- As before, and a pipeline has steps before its coordinator has looked.
CREATE OR REPLACE FUNCTION parent_transitions() RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
  SELECT ARRAY[
    'submitted>queued', 'submitted>canceling', 'submitted>canceled',
    'queued>running', 'queued>canceling', 'queued>succeeded', 'queued>failed',
    'running>canceling', 'running>succeeded', 'running>failed',
    'canceling>canceled', 'canceling>succeeded', 'canceling>failed'
  ];
$$;
