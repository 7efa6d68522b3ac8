// Package overload keeps Berth within the capacity of its dependencies. A Limiter
// bounds the calls in flight to one dependency and follows its latency and
// errors; a Budget bounds the share of calls that may be repeats; a Gate holds
// back new starts while ended processes wait to be settled, or while an operator
// has paused admission.
//
// The package decides when work runs, never whether: a call that is refused was
// not made, and its caller keeps the work and tries again later.
//
// The one rule to know: a refusal before the call costs the dependency nothing,
// a call given up after it was made costs as much as one that succeeded. So
// limits shrink before deadlines do.
package overload
