// Package explain answers why jobs wait and what would happen to new ones, in any
// process: it reads the rows as the leader does and asks the leader's engine.
//
// It decides nothing and writes nothing.
//
// The one rule to know: all questions that wait at the same time share one reading of
// the rows and one plan. About a job that exists, both are newer than the question,
// but for a moment in a large cluster. About a new job, the reading may be two seconds
// old, so such a question rarely waits for one.
package explain
