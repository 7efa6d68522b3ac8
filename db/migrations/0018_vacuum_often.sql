-- Rows of jobs change some ten times in minutes and then never again, while the
-- tables only grow. At PostgreSQL's own share of a fifth, versions that nobody
-- sees any more would pile up with the history: after a million jobs, two hundred
-- thousand of each table, through which every look for live work has to go.
ALTER TABLE jobs SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500);
ALTER TABLE allocations SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500);
ALTER TABLE attempts SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 500);
