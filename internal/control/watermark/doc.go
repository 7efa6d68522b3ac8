// Package watermark stores a counter of the database's age in the object store. A
// database that was restored from a backup is behind that counter, by which the
// leader notices the restore; see docs/adr/0033.
package watermark
