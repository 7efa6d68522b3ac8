// Package dbtest gives every test a database of its own, on a real PostgreSQL,
// migrated and empty, in a few tens of milliseconds.
//
// A test process runs one private cluster (started by the first test that needs one)
// and migrates one template database; each test gets a copy of it, dropped when
// the test ends. The cluster lives in /dev/shm if /dev/shm has room. When the test
// process ends, even by SIGKILL, the cluster and its files are removed. The package
// connects only to servers that it started.
//
// The one rule to know: only tests import dbtest.
package dbtest
