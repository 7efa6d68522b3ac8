-- Tokens that open GET /metrics and nothing else. The version before knows no such role and would
-- let an unknown role do what users may: it sees a viewer, which at most reads.
ALTER TABLE tokens ADD COLUMN metrics_only boolean NOT NULL DEFAULT false;
ALTER TABLE tokens ADD CONSTRAINT tokens_metrics_only CHECK (NOT metrics_only OR role = 'viewer') NOT VALID;
COMMENT ON COLUMN tokens.metrics_only IS 'the token has the role metrics, shown instead of the stored one: it opens GET /metrics alone';
