// Package mutants holds patches that break Berth on purpose: each takes one
// fence away (an epoch that is not compared, capacity that a timeout frees) and
// names the test that must fail then. `make mutants` applies them one by one.
//
// The one rule to know: a fence without a mutant is not proven to be tested.
package mutants
