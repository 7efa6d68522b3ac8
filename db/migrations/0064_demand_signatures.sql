-- The signatures that the images of a tenant's jobs must have.
ALTER TABLE tenants
  ADD COLUMN image_signatures jsonb CONSTRAINT tenants_image_signatures
    CHECK (jsonb_typeof(image_signatures) = 'array' AND jsonb_array_length(image_signatures) BETWEEN 1 AND 20);
COMMENT ON COLUMN tenants.image_signatures IS 'rules (spec.SignatureRule) about signatures of images of its jobs and of those below it; null: none. Agents verify the signatures before each start';
