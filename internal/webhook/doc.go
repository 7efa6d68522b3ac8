// Package webhook makes the calls that jobs ask for in notify, from rows that
// were written together with the change they tell of: at least once, with one id
// at each try, in no order. Any number of processes may send; a row is one's
// alone until its lease ends.
//
// The one rule to know: the address is a stranger's. Calls go where anybody
// could make them (publicnet), follow no redirect, read little of the answer and
// show none of it.
package webhook
