// Package outlook tells why jobs wait and what would become of new ones, in any
// process: it reads the rows as the leader does and asks the engine that the
// leader asks.
//
// It decides nothing and writes nothing.
//
// The one rule to know: all questions that wait at one time are answered from
// one reading of the rows and one plan, read after they were asked. In a large
// cluster a reading is used again for a moment, so that many questions cost no
// more than a few.
package outlook
