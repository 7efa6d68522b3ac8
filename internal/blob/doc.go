// Package blob keeps what is too big for the database: logs, and the files of
// checkpoints. It is a thin layer over gocloud.dev/blob, used by the control
// plane alone; machines read and write through the API, which checks whose an
// object is.
//
// It never decides who may touch a key, and never lists the store to find out
// what exists: the database knows.
//
// The one rule to know: keys are made by package berth, and every key that came
// over the wire passes ParseKey first.
package blob
