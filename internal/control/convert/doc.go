// Package convert converts database rows to the types of the placement engine. The
// leader's plans and the API's explanations use the same conversion, so both see
// the same cluster and queue.
//
// It decides nothing and reads nothing.
package convert
