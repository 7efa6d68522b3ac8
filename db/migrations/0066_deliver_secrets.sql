-- How a container receives its secrets where the job file has no secrets_as. docs/adr/0084.
-- A cluster with tokens existed before: its jobs may read their secrets as variables.
ALTER TABLE cluster
  ADD COLUMN secrets_as text NOT NULL DEFAULT 'both'
    CONSTRAINT cluster_secrets_as CHECK (secrets_as IN ('file', 'env', 'both'));
COMMENT ON COLUMN cluster.secrets_as IS 'how containers receive secrets if the job file has no secrets_as: file on new clusters, both on clusters from before this migration';
UPDATE cluster SET secrets_as = 'file' WHERE NOT EXISTS (SELECT FROM tokens) AND NOT EXISTS (SELECT FROM machines);
