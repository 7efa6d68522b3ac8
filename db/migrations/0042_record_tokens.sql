-- Who created and revoked which token, also by berthd token reset, which acts without the API.
CREATE TABLE token_events (
  id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  token  text NOT NULL,
  name   text NOT NULL,
  tenant text NOT NULL,
  role   text NOT NULL,
  event  text NOT NULL CONSTRAINT token_events_event CHECK (event IN ('created', 'revoked')),
  actor  text NOT NULL
);
COMMENT ON TABLE token_events IS 'append-only: creations and revocations of tokens of users; deleted a retention after the token itself';
COMMENT ON COLUMN token_events.actor IS 'operator:NAME or user:NAME of the API, reset:USER@HOST of berthd token reset, or start:HOST of the start of berthd';
CREATE INDEX token_events_token ON token_events (token);
