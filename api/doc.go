// Package api is Berth's HTTP interface: the calls of users and operators, described once
// in Go and published as OpenAPI 3.1, and the protocol of the agents.
//
// The package makes no decisions: a handler parses, makes one call of a store of db, of
// admission or of explain, and renders. It contains no SQL and no Temporal.
//
// The handlers of a noun are methods of one type, such as jobHandlers, which holds only
// the parts of the server that they use and mounts their routes; resources in server.go
// lists these types. Before its handler a call passes middleware, in the order that New
// sets: gatekeeper checks tokens and rates, openCalls gives slots and bounds unread
// answers, callTracer exports spans. streams bounds long transfers.
//
// The one rule to know: error.go renders every error, as RFC 9457 problem+json, and the
// answer for another tenant's id is the same as for an id that does not exist.
package api
