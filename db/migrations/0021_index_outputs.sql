-- Outputs share objects where a cached step took an earlier result: before one is
-- given up, others that name it are looked for.
CREATE INDEX outputs_object ON outputs (object);
