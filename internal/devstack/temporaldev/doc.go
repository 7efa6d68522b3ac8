// Package temporaldev runs a whole Temporal server and its web UI inside this process, on a
// PostgreSQL that the caller runs. The development stack and the end-to-end tests use it;
// production connects to a Temporal of its own.
//
// It listens on loopback only, because neither the server nor the UI asks who
// is calling, and it makes no calls to the outside.
//
// The one rule to know: this is the only package that imports the server, whose
// Go API is not stable between versions and whose build takes minutes. Import
// it from cmd/berth-dev and the end-to-end tests and from nowhere else.
package temporaldev
