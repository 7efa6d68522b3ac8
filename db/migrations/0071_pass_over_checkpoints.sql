-- A verified step that the object store cannot return, while it returns an older one (docs/adr/0086).
ALTER TABLE checkpoints ADD COLUMN passed_over boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN checkpoints.passed_over IS 'restores take it last: a restore did not get it from the store, and got an older step';
