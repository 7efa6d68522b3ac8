// Package workflows implements Berth's Temporal workflows. A job's workflow owns its
// reservation: it asks for the reservation (Reserve), waits for the end of each member
// (Run, served by the waiters of the control plane), and gives the reservation up (Settle).
// The workflow of an array or a pipeline reconciles its children (Reconcile), and Fire decides
// one time of a schedule.
//
//	         poke                   all members ended
//	Reserve ------> members of a grant -------------> Settle --+--> done
//	   ^                                                       |
//	   +--------------------- retry ---------------------------+
//
// A workflow never decides a job's status: the row does, and each step returns the row. So
// any wait may be cut short and any step done twice, and a workflow that was terminated or
// lost is rebuilt from the row while its containers keep running.
//
// A workflow calls an activity by its wire.Activity, which fixes the name together with the
// types of the input and the result. A changed payload is another wire.Activity, with the
// version .v2 in its name; .v1 stays registered for one release, as work under way has its
// payloads. The JSON names in payloads and signals stay, or the code reads both names.
//
// The one rule to know: workflow code must be deterministic. A change of the order of
// commands needs workflow.GetVersion and a newly recorded history next to the old ones in
// testdata.
package workflows
