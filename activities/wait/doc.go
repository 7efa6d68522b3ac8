// Package wait implements the activity that waits for one member of a job, from its
// reservation to its stored end. The activity runs in the replicas of the control plane,
// next to the database: agents report ends to the API and have no connection to Temporal.
//
// The activity is completed asynchronously. Its function stores the task's token in the
// replica's Registry and returns; the Registry completes the activity later by that token.
// So a running member costs the control plane a few hundred bytes and no goroutine, and
// ends that come by the thousand leave through a few senders that retry until the server
// has accepted them (the SDK gives up a completion after ten seconds).
//
//	Enter --> waiting --+--> ending:  the end, or "not sealed" where the attempt
//	            |  ^    |             has gone on; retried until accepted
//	            v  |    +--> gone:    the server has dropped or repeated the activity
//	          beating   +--> handed over: this replica stops, another one waits
//
// The Registry reads the rows of its members in batches: when a member enters, when a hint
// reports its end, and when its heartbeat is due. Every two seconds it reads the members of
// the whole cluster that have ended and are not settled, a short list, so that an end whose
// hint was lost is found.
//
// Every ten seconds the Registry shares the members that it waits for (Peers). The leader
// compares the sets of all replicas with the rows and has Temporal repeat the activities of
// members for which no replica waits: Temporal loses tasks between the start that it
// records and the worker.
//
// The one rule to know: a waiter decides nothing. The row records the state of a member,
// the workflow reads the row, and a waiter that is lost, doubled or late costs neither an
// attempt nor events of the workflow's history.
package wait
