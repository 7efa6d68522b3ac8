package failure

import (
	"slices"

	"berth"
)

// Rules is the failure classification. docs/reference/classification.md is generated from
// it, and each rule is a case of TestClassify. The first matching rule decides, so a rule
// stands before the more general rules for the same evidence, and kinds of evidence stand in
// the order of Evidence. The last rule matches everything.
var Rules = slices.Concat(intentRules, machineRules, programRules)

// intentRules are the rules for ends that the job, its user or Berth intended.
var intentRules = []Rule{
	// Ends that Berth ordered itself.
	//
	// A cancel that came after the work was done does not discard the result.
	{
		Name: "succeeded_before_cancel", Evidence: EvidenceIntent,
		Signal: "canceled, but every member had exited 0 by itself, or with complete progress",
		when: func(e AttemptEvidence, _ RankEvidence) bool {
			return e.State == berth.Canceling && e.allDone() && !e.CancelAt.IsZero() && len(e.OutputsLost) == 0
		},
		Class: ClassDone, Next: berth.Succeeded, Blame: BlameNobody, Budget: BudgetNone, Wait: WaitNone,
	},
	{
		Name: "canceled", Evidence: EvidenceIntent, Signal: "a cancel was requested",
		when:  func(e AttemptEvidence, _ RankEvidence) bool { return e.State == berth.Canceling },
		Class: ClassPolicy, Reason: berth.ReasonCanceledByUser, Says: "canceled on request", Hint: none,
		Next: berth.Canceled, Blame: BlamePolicy, Budget: BudgetNone, Wait: WaitNone,
	},
	// Missing outputs of work that is done. The rules distinguish a machine that was given up,
	// a machine that could not store the output, and an output that no machine could store.
	// The rule "succeeded" follows, so no job succeeds without all its outputs.
	{
		Name: "output_cut_off", Evidence: EvidenceIntent,
		Signal: "every member exited 0, and the machine was given up (silent, rebooted, confirmed dead, or stuck) " +
			"before an output was stored",
		when:  AttemptEvidence.outputsCutOff,
		Class: ClassInfra, Reason: berth.ReasonMachineLost,
		Says: "the command succeeded, but machine {machine} was lost before it stored these outputs: " +
			"{outputs}", Hint: none,
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitLoss, Elsewhere: true,
	},
	// After three runs the output itself may be the cause, such as by its size: the user's
	// budget bounds further runs.
	{
		Name: "output_unstored_again", Evidence: EvidenceIntent,
		Signal: "every member exited 0, but machine, network or store failed to store an existing output, for the " +
			"third time",
		when: func(e AttemptEvidence, r RankEvidence) bool {
			return e.earlier("output_unstored") >= 2 && e.outputsUnstored(r)
		},
		Class: ClassAmbiguous, Reason: berth.ReasonOutputLost,
		Says: "the command succeeded, but three machines failed to store these outputs: {outputs} (last: {machine})",
		Hint: "see the warnings in berth events JOB; most often the disks are too small for the output, or the " +
			"object store refuses it",
		Next: berth.Retrying, Blame: BlameUnknown, Budget: BudgetUser, Wait: WaitRetry, Elsewhere: true,
	},
	{
		Name: "output_unstored", Evidence: EvidenceIntent,
		Signal: "every member exited 0, but machine, network or store failed to store an existing output, the first " +
			"two times",
		when:  AttemptEvidence.outputsUnstored,
		Class: ClassInfra, Reason: berth.ReasonOutputLost,
		Says: "the command succeeded, but machine {machine} failed to store these outputs: {outputs}",
		Hint: "see the warnings in berth events JOB; the next attempt does not count against max_attempts",
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitInfra, Elsewhere: true,
	},
	{
		Name: "output_over_quota", Evidence: EvidenceIntent,
		Signal: "every member exited 0, and an output exceeds a storage quota of the tenant, or of a tenant above",
		when: func(e AttemptEvidence, r RankEvidence) bool {
			return e.allDone() && len(e.OutputsLost) > 0 && r.Exit.OverQuota != ""
		},
		Class: ClassUser, Reason: berth.ReasonStorageQuota,
		Says: "the command succeeded, but its outputs exceed a storage quota: {quota}",
		Hint: "delete data of the tenant, or ask an operator for a larger quota (berth quota show)",
		Next: berth.Retrying, Blame: BlameUser, Budget: BudgetUser, Wait: WaitRetry,
	},
	{
		Name: "output_lost", Evidence: EvidenceIntent,
		Signal: "every member exited 0, and a declared output is missing at its path, or cannot be archived",
		when:   func(e AttemptEvidence, _ RankEvidence) bool { return e.allDone() && len(e.OutputsLost) > 0 },
		Class:  ClassUser, Reason: berth.ReasonOutputLost,
		Says: "the command succeeded, but {lost}",
		Hint: "check that the command writes the paths in outputs; see the warnings in berth events JOB",
		Next: berth.Retrying, Blame: BlameUser, Budget: BudgetUser, Wait: WaitRetry,
	},
	{
		Name: "succeeded", Evidence: EvidenceIntent,
		Signal: "every member exited 0 by itself or, after an order, with progress step = total; of a gang with a " +
			"group that leads, every member of that group",
		when:  func(e AttemptEvidence, _ RankEvidence) bool { return e.allDone() },
		Class: ClassDone, Next: berth.Succeeded, Blame: BlameNobody, Budget: BudgetNone, Wait: WaitNone,
	},
	// After "succeeded": a job that completes its work before it must stop has succeeded.
	{
		Name: "suspended", Evidence: EvidenceIntent, Signal: "suspended on request",
		when:  func(e AttemptEvidence, _ RankEvidence) bool { return e.Suspended },
		Class: ClassPolicy, Reason: berth.ReasonSuspended, Says: "suspended on request", Hint: none,
		Next: berth.Retrying, Blame: BlamePolicy, Budget: BudgetNone, Wait: WaitNone,
	},
	{
		Name: "preempted", Evidence: EvidenceIntent, Signal: "preempted by another job",
		when:  func(e AttemptEvidence, _ RankEvidence) bool { return e.Preempted || e.State == berth.Preempting },
		Class: ClassPolicy, Reason: berth.ReasonPreempted, Says: "preempted by another job", Hint: none,
		Next: berth.Retrying, Blame: BlamePolicy, Budget: BudgetNone, Wait: WaitNone,
	},
	{
		Name: "drained", Evidence: EvidenceIntent, Signal: "stopped by order on a machine that is drained",
		Causes: []ExitCause{CauseOrdered},
		when:   func(e AttemptEvidence, _ RankEvidence) bool { return e.DrainedBy != "" },
		Class:  ClassPolicy, Reason: berth.ReasonDrained, Says: "machine drained: {drain}", Hint: none,
		Next: berth.Retrying, Blame: BlamePolicy, Budget: BudgetNone, Wait: WaitNone, Elsewhere: true,
	},
	// A new checkpoint in each attempt bounds the requeues of a job that makes no progress.
	{
		Name: RuleRequeue, Evidence: EvidenceIntent,
		Signal: "stopped at its time_limit with on_time_limit: requeue, the attempt had stored a checkpoint, and " +
			"max_requeues is not reached",
		Causes: []ExitCause{CauseTimeLimit},
		when: func(e AttemptEvidence, _ RankEvidence) bool {
			return e.Progressed && e.Requeues < e.Retry.Requeues()
		},
		Class: ClassPolicy, Reason: berth.ReasonTimeLimit,
		Says: "reached its time_limit, continues from its newest checkpoint (requeue {requeue})", Hint: none,
		Next: berth.Retrying, Blame: BlamePolicy, Budget: BudgetNone, Wait: WaitNone,
	},
	{
		Name: "time_limit", Evidence: EvidenceIntent, Signal: "stopped at its time_limit",
		Causes: []ExitCause{CauseTimeLimit},
		Class:  ClassPermanent, Reason: berth.ReasonTimeLimit, Says: "reached its time_limit{unqueued}",
		Hint: "berth retry resumes from its newest checkpoint, if it saved one; --set time_limit=8h raises the limit",
		Next: berth.Failed, Blame: BlameUser, Budget: BudgetUser, Wait: WaitNone,
	},
	{
		Name: "disk_limit", Evidence: EvidenceIntent, Signal: "used more disk space than its resources.disk",
		Causes: []ExitCause{CauseDiskLimit},
		Class:  ClassPermanent, Reason: berth.ReasonDiskLimit, Says: "{exit}",
		Hint: "raise resources.disk, or write less outside of inputs: workspace, checkpoints and all other files count",
		Next: berth.Failed, Blame: BlameUser, Budget: BudgetUser, Wait: WaitNone,
	},
	// The job may fit on another machine. Only a request in resources.disk reserves space for it.
	{
		Name: "disk_reserve", Evidence: EvidenceIntent,
		Signal: "the machine's disk or inodes were nearly used up, and the job used the most beyond its resources.disk",
		Causes: []ExitCause{CauseDiskReserve},
		Class:  ClassUser, Reason: berth.ReasonDiskLimit, Says: "{exit}",
		Hint: "set resources.disk to the space that the job needs; Berth then reserves it",
		Next: berth.Retrying, Blame: BlameUser, Budget: BudgetUser, Wait: WaitRetry, Elsewhere: true,
	},
	// A stall may be the job's fault or the machine's. The first one is free and moves to
	// another machine; a second one at the same step accuses the job.
	{
		Name: "stalled_same_step", Evidence: EvidenceIntent,
		Signal: "stopped for stall or stall_timeout, at the same step as in an earlier " +
			"attempt", Causes: []ExitCause{CauseStalled},
		when:  AttemptEvidence.stalledThere,
		Class: ClassHang, Reason: berth.ReasonStalled, Says: "{exit}, as in attempt {stalled}{odd}",
		Hint: "the job hangs at the same step on each attempt; check what it does there",
		Next: berth.Retrying, Blame: BlameUser, Budget: BudgetUser, Wait: WaitRetry,
	},
	{
		Name: "stalled_again", Evidence: EvidenceIntent,
		Signal: "stopped for stall or stall_timeout, not for the first time", Causes: []ExitCause{CauseStalled},
		when:  func(e AttemptEvidence, _ RankEvidence) bool { return e.earlier(stalls...) > 0 },
		Class: ClassHang, Reason: berth.ReasonStalled, Says: "{exit}{odd}", Hint: stallHint,
		Next: berth.Retrying, Blame: BlameUnknown, Budget: BudgetUser, Wait: WaitRetry, Elsewhere: true,
	},
	{
		Name: "stalled", Evidence: EvidenceIntent, Signal: "stopped for stall or stall_timeout, for the first time",
		Causes: []ExitCause{CauseStalled},
		Class:  ClassHang, Reason: berth.ReasonStalled, Says: "{exit}{odd}", Hint: stallHint,
		Next: berth.Retrying, Blame: BlameUnknown, Budget: BudgetNone, Wait: WaitNone, Elsewhere: true,
	},
}
