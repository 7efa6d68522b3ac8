// Package workflows holds Berth's Temporal workflows. A job's workflow owns its
// reservation: it asks for it (Reserve), runs under it (Run on each machine),
// and gives it up (Settle).
//
//	         poke                  all ranks ended
//	Reserve ------> ranks of a grant -------------> Settle --+--> done
//	   ^                                                     |
//	   +-------------------- retry --------------------------+
//
// It never decides where a job stands: the row does, and each step answers with
// it. So any wait may be cut short and any step done twice, and a workflow that
// was terminated or lost is rebuilt from the row while its containers run on.
//
// The one rule to know: workflow code must be deterministic. Changing the order
// of commands needs workflow.GetVersion and a newly recorded history beside the
// old ones in testdata.
package workflows
