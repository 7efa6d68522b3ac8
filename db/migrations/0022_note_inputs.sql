-- What an attempt has read, so that the next one, or another rank of the same, can
-- be told from it where somebody has written in between.
ALTER TABLE attempts ADD COLUMN inputs jsonb;
COMMENT ON COLUMN attempts.inputs IS 'address of each input, and of the code, as the first rank to be prepared has told it, by the field that names it; null: none has, or it has none';
