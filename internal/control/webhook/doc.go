// Package webhook delivers the calls that jobs ask for in notify. The change that a
// call reports writes the call's row in the same transaction; delivery is at least
// once, with one id for every try, in no order. Any number of processes may
// deliver; a lease gives each row to one of them.
//
// The one rule to know: the address is untrusted. Calls reach public addresses
// only (publicnet), follow no redirect, read little of the answer and show none of
// it.
package webhook
