// Package backup takes backups of an installation and restores them: the database by pg_dump, and the
// objects of a store in a folder as copies. Objects of a bucket are listed only, because versioning of the
// bucket keeps their bytes. Keys are never part of a backup, only their fingerprints.
//
// The order is: lease, database, objects, manifest, rename. The lease is a row by which the backup holds back
// the deletion of objects (db.Backups). An object is created once and never changed, so every object that a
// row of the dump names is in the store while the objects are copied. The folder has its final name only
// once it is complete.
//
// A restore fills an empty database, which becomes usable only together with its quarantine: until an
// operator adopts the cluster, it has no leader and gives no orders to machines (docs/adr/0083).
//
// The one rule to know: a folder without manifest.json is no backup, and one with it is a whole one.
package backup
