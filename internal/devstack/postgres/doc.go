// Package postgres runs a private PostgreSQL cluster as a child process, out of
// the binaries that the distribution installed. The development stack keeps its
// data in one, and so does every test that needs a real database.
//
// It never deletes a data folder and never upgrades one: a folder made by
// another major version is refused, with both versions in the error. It never
// touches a cluster that it did not make, such as Debian's own "main".
//
// The one rule to know: the server belongs to the process that started it. It
// gets a fast shutdown when that process ends, in any way. A cluster that must
// outlive its starter has to be run by a service manager.
package postgres
