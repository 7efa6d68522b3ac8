-- The control plane resolves the tags of images to digests after the submit (adr/0120). A submit adds a row while a
-- berthd resolves images, and an older berthd adds none: the first machine then decides, as before. The new columns
-- are null in rows that were resolved by an older berthd.
ALTER TABLE jobs
  ADD COLUMN image_digest_by text CONSTRAINT jobs_image_digest_by CHECK (image_digest_by IN ('submit', 'machine', 'retry')),
  ADD COLUMN image_digest_at timestamptz;
COMMENT ON COLUMN jobs.image_digest_by IS 'who found image_digest: the control plane after the submit, a machine, or retry: the job that this one retries; null: none, or an older berthd';
COMMENT ON COLUMN jobs.image_digest_at IS 'when image_digest was found at the registry or on a machine; null as image_digest_by';

CREATE TABLE image_requests (
  job        uuid PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE, -- an older berthd archives jobs without these rows
  tenant     text NOT NULL,
  image      text NOT NULL,
  login      text NOT NULL DEFAULT '',
  state      text NOT NULL DEFAULT 'waiting' CONSTRAINT image_requests_state
    CHECK (state IN ('waiting', 'resolving', 'refused', 'unresolvable', 'given_up')),
  created_at timestamptz NOT NULL DEFAULT now(),
  due_at     timestamptz NOT NULL DEFAULT now() + interval '1 second',
  tries      integer NOT NULL DEFAULT 0,
  claim      uuid,
  reason     text NOT NULL DEFAULT '',
  CONSTRAINT image_requests_claim CHECK ((claim IS NOT NULL) = (state = 'resolving'))
);
COMMENT ON TABLE image_requests IS 'images of jobs whose tag is to be resolved to a digest; a row leaves with the digest, and stays with the reason if there is none';
COMMENT ON COLUMN image_requests.login IS 'secret of the tenant with the login for the registry, image_auth of the job; empty: none';
COMMENT ON COLUMN image_requests.due_at IS 'waiting: when to ask the registry, a second after the submit at first, so that one question serves many jobs; resolving: when the claim ends';
COMMENT ON COLUMN image_requests.tries IS 'questions to the registry that were begun for the job';
COMMENT ON COLUMN image_requests.claim IS 'resolving: the question that one berthd asks for all rows with this claim';
COMMENT ON COLUMN image_requests.reason IS 'why the last question gave no digest, for the users of the tenant';

-- Each berthd that resolves images reads due rows once a second, tenant by tenant.
CREATE INDEX image_requests_due ON image_requests (tenant, due_at) WHERE state IN ('waiting', 'resolving');
-- A question serves all rows of its tenant, image and login.
CREATE INDEX image_requests_open ON image_requests (tenant, image, login) WHERE state IN ('waiting', 'resolving');
CREATE INDEX image_requests_claimed ON image_requests (claim, job) WHERE claim IS NOT NULL;

CREATE TABLE image_resolver (
  one   boolean PRIMARY KEY DEFAULT true CONSTRAINT image_resolver_one CHECK (one),
  until timestamptz NOT NULL
);
COMMENT ON TABLE image_resolver IS 'one row: whether a berthd resolves images, so that submits request it';
COMMENT ON COLUMN image_resolver.until IS 'a minute after the latest sign of life of a berthd with --resolve-images';
INSERT INTO image_resolver (until) VALUES ('-infinity');
