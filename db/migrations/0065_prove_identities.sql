-- The join token of a launch may demand that the machine proves its identity with a document of its cloud
-- (adr/0080). A server of the version before does not know the demand; the constraint refuses its joins.
-- In the order of writers.
LOCK TABLE launches, join_tokens IN ACCESS EXCLUSIVE MODE;
ALTER TABLE launches ADD COLUMN join_refused text NOT NULL DEFAULT '';
COMMENT ON COLUMN launches.join_refused IS 'why the last join with the launch''s join token was refused, with its time; empty: none was';

ALTER TABLE join_tokens
  ADD COLUMN identity text NOT NULL DEFAULT '',
  ADD COLUMN proven   text NOT NULL DEFAULT '',
  ADD CONSTRAINT join_tokens_proven CHECK (identity = '' OR used_at IS NULL OR proven <> '') NOT VALID;
COMMENT ON COLUMN join_tokens.identity IS 'cloud whose signed identity a join must have, as wire.IdentitySource; empty: none';
COMMENT ON COLUMN join_tokens.proven IS 'instance whose identity the join has proven, as in launches.instance; empty: none';
