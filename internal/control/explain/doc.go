// Package explain answers why jobs wait and what would happen to new ones, in any
// process: it reads the rows as the leader does and asks the leader's engine.
//
// It decides nothing and writes nothing.
//
// The one rule to know: all questions that wait at the same time share one read of
// the rows and one plan, both newer than the questions. In a large cluster a read
// is reused for a moment, so that many questions cost no more than a few.
package explain
