-- A machine's pool and labels come from the join token that it spent, and outlast it.

ALTER TABLE machines
  ADD COLUMN joined_pool   text  NOT NULL DEFAULT '',
  ADD COLUMN joined_labels jsonb NOT NULL DEFAULT '{}';
COMMENT ON COLUMN machines.joined_pool IS 'pool of the join token that the machine spent last; empty: the agent names its pool';
COMMENT ON COLUMN machines.joined_labels IS 'labels of the join token that the machine spent last; they override the labels that the agent sends';

UPDATE machines m
SET joined_pool = t.pool, joined_labels = t.labels
FROM (
  SELECT DISTINCT ON (used_by) used_by, pool, labels
  FROM join_tokens
  WHERE used_by IS NOT NULL
  ORDER BY used_by, used_at DESC
) t
WHERE t.used_by = m.id AND (t.pool <> '' OR t.labels <> '{}');
