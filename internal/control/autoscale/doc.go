// Package autoscale launches and ends machines of clouds for waiting jobs, as a part of the leader.
//
// A Loop makes a pass every few seconds: it reads the facts, calls Decide, and carries out the decisions.
// Decide is a pure function. It applies package scaler to each tenant that has a policy and to each pool.
//
// The rules to know: every write is fenced by the leader's term. A machine is only ended after a drain
// that found it without use. A launch is a row before it is a call to a cloud; the workflow of its
// machine makes the call.
package autoscale
