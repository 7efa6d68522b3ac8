-- A schedule may be changed in place. A fire reads the work, judges it, and is decided in a later
-- transaction; the time of the last change reveals that the work is another one by then. Versions
-- before this one change no schedule and ignore the column.
ALTER TABLE schedules ADD COLUMN changed_at timestamptz;
COMMENT ON COLUMN schedules.changed_at IS 'time of the last change of spec; null: it was never changed';
