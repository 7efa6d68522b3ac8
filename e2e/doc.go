// Package e2e tests the whole of Berth in one process: PostgreSQL, a Temporal server, the control
// plane, and agents over engines in memory. A claim belongs here if it is about several packages
// working together; a claim about one package is tested in that package.
//
// It has no code of its own, only tests. They embed a Temporal server, as the tests of e2e/bench
// and e2e/chaos do, so they take long to build.
//
// With -update it records the histories that package workflows replays.
package e2e
