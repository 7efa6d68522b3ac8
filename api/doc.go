// Package api is Berth's HTTP surface: the calls of docs/contract.md, described
// once in Go and published as OpenAPI 3.1, and the agents' protocol beside
// them.
//
// It decides nothing: handlers parse, make one call of db or placement, and
// render. No SQL, no Temporal.
//
// The one rule to know: whatever goes wrong is answered by error.go, as RFC
// 9457 problem+json, and another tenant's id is answered exactly like one that
// does not exist.
package api
