ALTER TABLE machines ADD COLUMN fence_ms bigint NOT NULL DEFAULT 0 CHECK (fence_ms >= 0);
COMMENT ON COLUMN machines.fence_ms IS 'after how much silence the machine''s deadman ends at_most_one work there; 0: the machine cannot, and gets none';

ALTER TABLE allocations ADD COLUMN fence_ms bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN allocations.fence_ms IS 'the machine''s when it claimed the rank: should it promise less later, the older promise counts';
