// Package failure turns evidence about the end of an attempt into a verdict.
//
// The evidence is the exit of each member as its machine reported it (Exit), the
// orders that Berth gave, and the outcomes of earlier attempts. Classify returns
// the verdict: the job's next status, the reason shown to its user, the budget
// that pays for another attempt, the delay before that attempt, and the machines
// to avoid or to suspect.
//
// The first matching row of the table Rules decides.
// docs/reference/classification.md is generated from Rules, from LogRules
// (phrases in logs) and from Xids (error numbers of NVIDIA's driver).
package failure
