// Package explain answers why jobs wait and predicts the wait of new ones, in any process:
// it reads the rows as the leader does and asks the leader's engine.
//
// The package decides nothing and writes nothing.
//
// The one rule to know: all questions that wait at the same time share one reading of the
// rows and one plan. For an existing job, both are newer than the question, apart from a
// moment in a large cluster. For a new job, the reading may be two seconds old, so such a
// question rarely waits for one.
package explain
