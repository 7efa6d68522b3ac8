// Package blob stores objects that are too large for the database: logs, and the
// files of checkpoints and outputs. It is a thin layer over gocloud.dev/blob, used
// by the control plane alone; machines read and write through the API, or by
// addresses that it signs. In both cases the API checks the owner of each object.
//
// It never decides who may use a key, and never lists the store to find out which
// objects exist: the database records them.
//
// The one rule to know: package berth creates keys, and every key that came over
// the wire passes ParseKey first.
package blob
