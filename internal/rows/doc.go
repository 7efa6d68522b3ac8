// Package rows gives the rows of the database to the placement engine: what the
// leader plans on and what the API explains is the same, by the same code.
//
// It decides nothing and reads nothing.
package rows
