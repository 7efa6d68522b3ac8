-- When a machine called again after a silence (adr/0111). Unfinished uploads and members in preparation have some time
-- from then on: the machine could neither upload nor report before. Versions before this one ignore the column; they
-- record no returns.
ALTER TABLE machine_leases ADD COLUMN back_at timestamptz;
COMMENT ON COLUMN machine_leases.back_at IS 'first renewal after the last silence that was longer than a lease; null: none since this column exists';
