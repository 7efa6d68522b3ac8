-- The sessions of a job are listed by the index acts_by_session (job, session), which the program builds
-- after the migrations without holding up writers (db/indexes.go). It begins with the column of this index,
-- by which no version reads.
DROP INDEX acts_job;
