// Package wire holds the documents that processes exchange: the protocol between
// agents and the API, the answers of the API to users, the bodies of webhooks,
// and the inputs and results of workflow steps.
//
// Every document is JSON. Processes of two adjacent versions read each other's
// documents, and a replayed history holds documents of any age. So a new field is
// optional, and its zero value has the old meaning; a field keeps its JSON name. A changed
// payload of an activity gets a new name (see Activity). Documents do not contain names of Go
// types, which may change.
//
// Requests of users are in package spec, together with their validation.
package wire
