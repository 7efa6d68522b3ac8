// Package temporaldev runs a whole Temporal server and its web UI inside this process, on a
// PostgreSQL that the caller runs. The development stack, the end-to-end tests and berth-temporal,
// the server for small sites, use it; larger sites connect to a Temporal of their own.
//
// Without TLS, it should listen on loopback only, because neither the server nor the UI asks who
// is calling. The UI is always on loopback. It makes no calls to the outside.
//
// The one rule to know: this is the only package that imports the server, whose
// Go API is not stable between versions and whose build takes minutes. Import it from
// cmd/berth-dev, cmd/berth-temporal and the end-to-end tests and from nowhere else.
package temporaldev
