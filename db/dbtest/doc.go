// Package dbtest gives every test a database of its own, on a real PostgreSQL,
// migrated and empty, in a few tens of milliseconds.
//
// A test process runs one private cluster (started by the first test that asks)
// and migrates one template database; each test gets a copy of it, dropped when
// the test ends. The cluster lives in /dev/shm where there is room, and goes
// with its files when the process ends, even by SIGKILL. Nothing here ever
// connects to a server that it did not start.
//
// The one rule to know: only tests import it.
package dbtest
