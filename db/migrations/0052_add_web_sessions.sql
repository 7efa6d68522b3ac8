-- Sessions of the dashboard: a browser that signed in with a token. A session never allows more
-- than its token: each look-up joins the token's row, so a revoked or expired token ends its
-- sessions (adr/0059). A berthd of the version before has no dashboard and ignores the table.
CREATE TABLE web_sessions (
  sha256     bytea PRIMARY KEY CONSTRAINT web_sessions_sha256 CHECK (octet_length(sha256) = 32),
  token      text NOT NULL REFERENCES tokens (id) ON DELETE CASCADE,
  created_at timestamptz NOT NULL DEFAULT now(),
  used_at    timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz NOT NULL
);
COMMENT ON TABLE web_sessions IS 'browsers that are signed in to the dashboard, one row each; the row is deleted at the sign-out';
COMMENT ON COLUMN web_sessions.sha256 IS 'of the 256 random bits in the cookie, so that a copy of the table opens nothing';
COMMENT ON COLUMN web_sessions.token IS 'id of the token that the browser signed in with, whose tenant and role the session has';
COMMENT ON COLUMN web_sessions.used_at IS 'last use, exact to a minute: a session ends 12 h after it';
COMMENT ON COLUMN web_sessions.expires_at IS 'end of the session, however much it is used';
CREATE INDEX web_sessions_token ON web_sessions (token, created_at);
COMMENT ON INDEX web_sessions_token IS 'the sessions of a token: their number is bounded, and they go with the token';
CREATE INDEX web_sessions_expiry ON web_sessions (expires_at);
COMMENT ON INDEX web_sessions_expiry IS 'expired sessions, which the next sign-in deletes';
