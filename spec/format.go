package spec

// Format numbers the fields of job files that this version reads. Replicas of two adjacent
// versions share a database, and the older one drops the fields that it does not know when it
// copies a stored file, for a retry or for a schedule. The database refuses such a copy: it
// compares the format of the writer with that of the file.
//
// A field whose loss changes the run of a job takes the next number here and, in a migration, in
// the function format_of and in the conditions of the triggers that call it (migration 0051).
const Format = 6
