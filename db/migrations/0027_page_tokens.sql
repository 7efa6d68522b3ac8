-- Lists of tokens in pages, and tokens that open nothing pruned.
ALTER TABLE tokens ADD COLUMN given boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN tokens.given IS 'an operator chose its text, which every start of berthd stores unless it is known: pruned, a revoked one would come back';
UPDATE tokens SET given = true WHERE role = 'admin' AND expires_at IS NULL;
CREATE INDEX tokens_listed ON tokens (created_at, id);
CREATE INDEX join_tokens_listed ON join_tokens (created_at, id);
