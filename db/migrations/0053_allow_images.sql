-- The registries and repositories that the images of a tenant's jobs may come from.
ALTER TABLE tenants
  ADD COLUMN images text[] CONSTRAINT tenants_images CHECK (cardinality(images) BETWEEN 1 AND 100);
COMMENT ON COLUMN tenants.images IS 'registries and repositories that images of its jobs and of those below it may come from; null: no limit. Judged at submit and at each claim';
