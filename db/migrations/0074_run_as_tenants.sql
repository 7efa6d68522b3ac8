-- New clusters run containers as users of their tenants. docs/adr/0093, docs/adr/0100.
-- A cluster with tokens or machines existed before: its images may expect the user that they name, often root.
UPDATE cluster SET container_user = 'tenant' WHERE NOT EXISTS (SELECT FROM tokens) AND NOT EXISTS (SELECT FROM machines);
COMMENT ON COLUMN cluster.container_user IS 'user of containers if the job file has no user: tenant on new clusters, image on clusters from before migration 0074';
