package failure

import (
	"berth"
	"berth/spec"
)

// Rules is the failure classification. docs/reference/classification.md is generated from
// it, and each rule is a case of TestClassify. The first matching rule decides, so a rule
// stands before the more general rules for the same evidence, and kinds of evidence stand in
// the order of Evidence. The last rule matches everything.
var Rules = []Rule{
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
		Hint: "see the warnings in berth events; most often the disks are too small for the output, or the object " +
			"store refuses it",
		Next: berth.Retrying, Blame: BlameUnknown, Budget: BudgetUser, Wait: WaitRetry, Elsewhere: true,
	},
	{
		Name: "output_unstored", Evidence: EvidenceIntent,
		Signal: "every member exited 0, but machine, network or store failed to store an existing output, the first " +
			"two times",
		when:  AttemptEvidence.outputsUnstored,
		Class: ClassInfra, Reason: berth.ReasonOutputLost,
		Says: "the command succeeded, but machine {machine} failed to store these outputs: {outputs}",
		Hint: "see the warnings in berth events; the next attempt does not count against max_attempts",
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
		Hint: "check that the command writes the paths in outputs; see the warnings in berth events",
		Next: berth.Retrying, Blame: BlameUser, Budget: BudgetUser, Wait: WaitRetry,
	},
	{
		Name: "succeeded", Evidence: EvidenceIntent,
		Signal: "every member exited 0 by itself or, after an order, with progress step = total",
		when:   func(e AttemptEvidence, _ RankEvidence) bool { return e.allDone() },
		Class:  ClassDone, Next: berth.Succeeded, Blame: BlameNobody, Budget: BudgetNone, Wait: WaitNone,
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

	// The machine. One death under a job may be a coincidence, and the job runs again. The
	// second one stops the job before it kills more machines.
	{
		Name: "poison", Evidence: EvidenceMachine,
		Signal: "the machine died within 10 min of the start, with no other suspect, as another machine had before",
		when:   AttemptEvidence.killsMachines,
		Class:  ClassPoison, Reason: berth.ReasonPoison, Says: "machines died while it ran: {deaths}",
		Hint: "find out what the job does to its machine before you retry it",
		Next: berth.Failed, Blame: BlameUser, Budget: BudgetNone, Wait: WaitNone, DeadLetter: true,
	},
	{
		Name: "died_under_it", Evidence: EvidenceMachine,
		Signal: "the machine died within 10 min of the start, with no other suspect",
		when:   func(_ AttemptEvidence, r RankEvidence) bool { return r.Suspect && r.died() },
		Class:  ClassInfra, Reason: berth.ReasonMachineLost,
		Says: "machine {machine} died soon after the job started there", Hint: none,
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitLoss, Elsewhere: true,
	},
	{
		Name: "machine_lost", Evidence: EvidenceMachine, Signal: "the machine was silent for lost_after",
		when:  func(_ AttemptEvidence, r RankEvidence) bool { return r.Orphaned },
		Class: ClassInfra, Reason: berth.ReasonMachineLost, Says: "machine {machine} stopped responding", Hint: none,
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitLoss, Elsewhere: true,
	},
	// Matches every member without an exit that is not orphaned: the rules below may read
	// r.Exit.
	{
		Name: "unclaimed", Evidence: EvidenceMachine, Signal: "the machine did not claim the job",
		when:  func(_ AttemptEvidence, r RankEvidence) bool { return r.Exit == nil },
		Class: ClassInfra, Reason: berth.ReasonUnclaimed,
		Says: "machine {machine} did not claim the job in time", Hint: none,
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitLoss, Elsewhere: true,
	},
	{
		Name: "rebooted", Evidence: EvidenceMachine, Signal: "the machine rebooted", Causes: []ExitCause{CauseBoot},
		Class: ClassInfra, Reason: berth.ReasonMachineError, Says: "{exit}", Hint: none,
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitLoss, Elsewhere: true, Fault: true,
	},
	{
		Name: "fenced", Evidence: EvidenceMachine,
		Signal: "the machine's deadman stopped it (at_most_one) after too long without contact to the control plane",
		Causes: []ExitCause{CauseFenced},
		Class:  ClassInfra, Reason: berth.ReasonMachineLost, Says: "{exit}", Hint: none,
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitLoss, Elsewhere: true,
	},
	// The exit code of a container that its engine ended says nothing about the job.
	{
		Name: "engine_stopped", Evidence: EvidenceMachine,
		Signal: "the container engine stopped or restarted, and the container with it, whatever its exit code",
		Causes: []ExitCause{CauseEngine},
		when:   func(_ AttemptEvidence, r RankEvidence) bool { return r.Exit.Started() },
		Class:  ClassInfra, Reason: berth.ReasonMachineError, Says: "{exit}", Hint: none,
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitLoss, Elsewhere: true, Fault: true,
	},
	{
		Name: "engine_failed", Evidence: EvidenceMachine,
		Signal: "the container engine could not create or start the container", Causes: []ExitCause{CauseEngine},
		Class: ClassInfra, Reason: berth.ReasonMachineError, Says: "{exit}", Hint: none,
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitLoss, Elsewhere: true, Fault: true,
	},
	// A full range or machines that do not fit together are no sign of a defective machine.
	{
		Name: "network_unavailable", Evidence: EvidenceMachine,
		Signal: "the machine had no network for the job: no free subnet, or one of its name with another policy",
		Causes: []ExitCause{CauseNetwork},
		Class:  ClassInfra, Reason: berth.ReasonMachineError, Says: "{exit}", Hint: none,
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitLoss, Elsewhere: true,
	},
	{
		Name: "vanished", Evidence: EvidenceMachine, Signal: "the container was removed from outside Berth",
		Causes: []ExitCause{CauseVanished},
		Class:  ClassInfra, Reason: berth.ReasonMachineError, Says: "{exit}", Hint: none,
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitLoss, Elsewhere: true, Fault: true,
	},
	// Orders with a recorded reason (cancel, preemption, drain) are matched above.
	{
		Name: "not_started", Evidence: EvidenceMachine,
		Signal: "stopped before the start, or by an order without a recorded reason",
		Causes: []ExitCause{CauseNotStarted, CauseOrdered},
		Class:  ClassInfra, Reason: berth.ReasonMachineError,
		Says: "stopped on request; no reason is recorded", Hint: none,
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitLoss, Elsewhere: true,
	},

	// The operator's check. A failure closes the machine; CheckMachines bounds that for each job.
	{
		Name: RuleCheckFailedAgain, Evidence: EvidenceMachine,
		Signal: "the operator's check command failed before the start, as in the attempts directly before on two or " +
			"more machines", Causes: []ExitCause{CauseCheck},
		when:  func(e AttemptEvidence, _ RankEvidence) bool { return len(e.checkMachines()) >= CheckMachines },
		Class: ClassAmbiguous, Reason: berth.ReasonPoison,
		Says: "the operator's check before the start failed on {checks}; last: {exit}",
		Hint: "find out what in the job makes the check fail, and ask an operator to look at the machines",
		Next: berth.Retrying, Blame: BlameUser, Budget: BudgetUser, Wait: WaitRetry, Elsewhere: true,
	},
	{
		Name: RuleCheckFailed, Evidence: EvidenceMachine,
		Signal: "the operator's check command failed on the machine before the start", Causes: []ExitCause{CauseCheck},
		Class: ClassInfra, Reason: berth.ReasonMachineError, Says: "{exit}", Hint: none,
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetNone, Wait: WaitInfra, Elsewhere: true,
	},

	// Its GPUs.
	// The device is out of use until it is free, so that the next attempt gets another one.
	{
		Name: "gpu_in_use", Evidence: EvidenceDevice,
		Signal: "a process outside of Berth used a GPU of the member before the start",
		Causes: []ExitCause{CauseGPUInUse},
		Class:  ClassInfra, Reason: berth.ReasonGPUError, Says: "{exit}", Hint: none,
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetNone, Wait: WaitNone, Elsewhere: true,
	},
	{
		Name: "gpu_error", Evidence: EvidenceDevice, Signal: "one of its devices failed, or was refused by the engine",
		Causes: []ExitCause{CauseGPU, CauseDevice},
		Class:  ClassInfra, Reason: berth.ReasonGPUError, Says: "{exit}", Hint: none,
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitLoss, Elsewhere: true, Fault: true,
	},
	// The driver blames the application, but a defective device can cause the same error. So
	// there are at least two runs, the second on another machine; see doubtful.
	{
		Name: "gpu_application_error", Evidence: EvidenceDevice,
		Signal: "it failed after the driver reported an application error on one of its devices (XID 13, 31, 43, ...)",
		Causes: []ExitCause{CauseExited}, Codes: "1-255",
		when: func(_ AttemptEvidence, r RankEvidence) bool {
			return XidAction(r.Exit.Xid) == XidRestart || r.Exit.Xid == 43
		},
		Class: ClassAmbiguous, Reason: berth.ReasonExitCode, Says: "exit code {code} after XID {xid} on its GPU",
		Hint: "the GPU driver reports an error of the program, such as an illegal memory access",
		Next: berth.Retrying, Blame: BlameUser, Budget: BudgetUser, Tries: 2, Wait: WaitRetry, Elsewhere: true,
	},

	// Memory.
	// The job kept its own limit: the host has promised more memory than it has.
	{
		Name: "host_out_of_memory", Evidence: EvidenceMemory,
		Signal: "the host ran out of memory and its kernel chose this job, which was inside its own limit",
		Causes: []ExitCause{CauseHostOOM},
		Class:  ClassInfra, Reason: berth.ReasonMachineError, Says: "{exit}", Hint: none,
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitLoss, Elsewhere: true, Fault: true,
	},
	// Only once per job, by OOMGrown, and therefore regardless of max_attempts.
	{
		Name: "oom_grow", Evidence: EvidenceMemory,
		Signal: "one of its processes was killed for memory, it did not exit 0, and on_oom: grow has not been used yet",
		Causes: []ExitCause{CauseExited}, Codes: "1-255",
		when: func(e AttemptEvidence, r RankEvidence) bool {
			return r.Exit.OOMKilled && e.Retry.OnOOM == "grow" && !e.OOMGrown
		},
		Class: ClassUser, Reason: berth.ReasonOOM, Says: "ran out of memory", Hint: oomHint,
		Next: berth.Retrying, Blame: BlameUser, Budget: BudgetUser, Tries: unlimited, Wait: WaitRetry, GrowMemory: true,
	},
	{
		Name: "oom", Evidence: EvidenceMemory, Signal: "one of its processes was killed for memory, and it did " +
			"not exit 0",
		Causes: []ExitCause{CauseExited}, Codes: "1-255",
		when:  func(_ AttemptEvidence, r RankEvidence) bool { return r.Exit.OOMKilled },
		Class: ClassPermanent, Reason: berth.ReasonOOM, Says: "ran out of memory", Hint: oomHint,
		Next: berth.Failed, Blame: BlameUser, Budget: BudgetUser, Wait: WaitNone,
	},

	// Failures before the process began.
	{
		Name: "image_not_found", Evidence: EvidencePreparation, Signal: "image: the registry refuses it (404, " +
			"401, 403)",
		Causes: []ExitCause{CauseImageNotFound},
		Class:  ClassPermanent, Reason: berth.ReasonImageNotFound, Says: "{exit}",
		Hint: "check the image's name, its tag and your right to pull it",
		Next: berth.Failed, Blame: BlameUser, Budget: BudgetUser, Wait: WaitNone,
	},
	{
		Name: "image_mismatch", Evidence: EvidencePreparation,
		Signal: "image: the content does not match the digest", Causes: []ExitCause{CauseImageMismatch},
		Class: ClassPermanent, Reason: berth.ReasonImageMismatch, Says: "{exit}",
		Hint: "the image may have been changed in the registry or on the way; find out before you retry",
		Next: berth.Failed, Blame: BlameUser, Budget: BudgetUser, Wait: WaitNone,
	},
	{
		Name: "image_unavailable", Evidence: EvidencePreparation,
		Signal: "image: no answer, 429, 5xx or no disk space, five times on this machine",
		Causes: []ExitCause{CauseImageUnavailable},
		Class:  ClassTransient, Reason: berth.ReasonImageUnavailable, Says: "{exit}",
		Hint: "the registry did not answer; Berth retries",
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitInfra, Elsewhere: true,
	},
	{
		Name: "bad_command", Evidence: EvidencePreparation,
		Signal: "the command is not in the image, or cannot be executed", Causes: []ExitCause{CauseBadCommand},
		Class: ClassPermanent, Reason: berth.ReasonExitCode, Says: "{exit}",
		Hint: "the command is not in the image, or cannot be executed",
		Next: berth.Failed, Blame: BlameUser, Budget: BudgetUser, Wait: WaitNone,
	},
	// A fresh start would silently discard the work of all attempts. The user decides.
	{
		Name: "checkpoint_corrupt", Evidence: EvidencePreparation,
		Signal: "checkpoints exist and none verifies; a fresh start would hide the loss",
		Causes: []ExitCause{CauseCheckpointCorrupt},
		Class:  ClassPermanent, Reason: berth.ReasonCheckpointCorrupt, Says: "{exit}",
		Hint: "no checkpoint of this job is intact; berth retry --fresh starts from the beginning",
		Next: berth.Failed, Blame: BlameUser, Budget: BudgetUser, Wait: WaitNone,
	},
	{
		Name: "restore_failed", Evidence: EvidencePreparation,
		Signal: "the checkpoint store did not answer, or the machine had no disk space for the checkpoint",
		Causes: []ExitCause{CauseRestoreFailed},
		Class:  ClassTransient, Reason: berth.ReasonMachineError, Says: "{exit}", Hint: none,
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitLoss, Elsewhere: true,
	},
	{
		Name: "input_invalid", Evidence: EvidencePreparation,
		Signal: "its code or data is missing, unreadable, different from its checksum, or not allowed",
		Causes: []ExitCause{CauseInputInvalid},
		Class:  ClassPermanent, Reason: berth.ReasonInputInvalid, Says: "{exit}",
		Hint: "check the input named above; berth submit uploads a local folder again",
		Next: berth.Failed, Blame: BlameUser, Budget: BudgetUser, Wait: WaitNone,
	},
	// One machine may have a broken resolver, or a view of the names that others do not share.
	{
		Name: "host_not_found", Evidence: EvidencePreparation,
		Signal: "the host of an input does not exist, by the name servers of two machines, or of a machine and the " +
			"control plane",
		Causes: []ExitCause{CauseInputUnavailable},
		when:   AttemptEvidence.hostMissing,
		Class:  ClassPermanent, Reason: berth.ReasonInputInvalid, Says: "{exit}",
		Hint: "check the host in the address of the input",
		Next: berth.Failed, Blame: BlameUser, Budget: BudgetUser, Wait: WaitNone,
	},
	{
		Name: "input_unavailable", Evidence: EvidencePreparation,
		Signal: "the server of its code or data did not answer, or the machine had no disk space",
		Causes: []ExitCause{CauseInputUnavailable},
		Class:  ClassTransient, Reason: berth.ReasonInputUnavailable, Says: "{exit}", Hint: none,
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitLoss, Elsewhere: true,
	},
	{
		Name: "secret_missing", Evidence: EvidencePreparation,
		Signal: "one of its secrets was deleted, or is not a registry login",
		Causes: []ExitCause{CauseSecretMissing},
		Class:  ClassPermanent, Reason: berth.ReasonSecretMissing, Says: "{exit}",
		Hint: "set the secret with berth secret set, then run berth retry",
		Next: berth.Failed, Blame: BlameUser, Budget: BudgetUser, Wait: WaitNone,
	},
	// The same server opens secrets for every machine, so another machine would not help.
	{
		Name: "secret_unavailable", Evidence: EvidencePreparation,
		Signal: "the server has no key for one of its secrets", Causes: []ExitCause{CauseSecretUnavailable},
		Class: ClassTransient, Reason: berth.ReasonSecretUnavailable, Says: "{exit}",
		Hint: "ask an operator to check --secret-key-file of berthd",
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitInfra,
	},

	// Exit codes that name their cause. The user's own rules come first.
	{
		Name: "rule_fail", Evidence: EvidenceExit, Signal: "its exit code is in retry.rules, action fail",
		Causes: []ExitCause{CauseExited},
		when:   ruled(spec.ActionFail),
		Class:  ClassUser, Reason: berth.ReasonExitCode, Says: "exit code {code}",
		Next: berth.Failed, Blame: BlameUser, Budget: BudgetUser, Wait: WaitNone,
	},
	{
		Name: "rule_retry", Evidence: EvidenceExit, Signal: "its exit code is in retry.rules, action retry",
		Causes: []ExitCause{CauseExited},
		when:   ruled(spec.ActionRetry),
		Class:  ClassUser, Reason: berth.ReasonExitCode, Says: "exit code {code}",
		Next: berth.Retrying, Blame: BlameUser, Budget: BudgetUser, Wait: WaitRetry,
	},
	{
		Name: "rule_retry_elsewhere", Evidence: EvidenceExit,
		Signal: "its exit code is in retry.rules, action retry_elsewhere", Causes: []ExitCause{CauseExited},
		when:  ruled(spec.ActionRetryElsewhere),
		Class: ClassUser, Reason: berth.ReasonExitCode, Says: "exit code {code}",
		Next: berth.Retrying, Blame: BlameUser, Budget: BudgetUser, Wait: WaitRetry, Elsewhere: true,
	},
	{
		Name: "engine_exit", Evidence: EvidenceExit, Signal: "exit code 125",
		Causes: []ExitCause{CauseExited}, Codes: "125",
		Class: ClassInfra, Reason: berth.ReasonMachineError,
		Says: "the container engine failed (exit code 125)", Hint: none,
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitLoss, Elsewhere: true, Fault: true,
	},
	{
		Name: "not_executable", Evidence: EvidenceExit, Signal: "exit code 126 or 127",
		Causes: []ExitCause{CauseExited}, Codes: "126-127",
		Class: ClassPermanent, Reason: berth.ReasonExitCode, Says: "exit code {code}",
		Next: berth.Failed, Blame: BlameUser, Budget: BudgetUser, Wait: WaitNone,
	},

	// The last lines of the log, for exit codes that name no cause. Broken communication is
	// blamed on infrastructure twice; a third time on new machines accuses the job.
	{
		Name: "communication_again", Evidence: EvidenceLog,
		Signal: "collective communication failed (NCCL), for the third time", Causes: []ExitCause{CauseExited},
		Codes: "1-255", Sign: SignCommunication,
		when:  func(e AttemptEvidence, _ RankEvidence) bool { return e.earlier("communication") >= 2 },
		Class: ClassAmbiguous, Reason: berth.ReasonCommunication,
		Says: "collective communication failed again (exit code {code})",
		Hint: "it failed on three placements; check the members that fail first, and their timeouts",
		Next: berth.Retrying, Blame: BlameUser, Budget: BudgetUser, Wait: WaitRetry,
	},
	{
		Name: "communication", Evidence: EvidenceLog,
		Signal: "collective communication failed (NCCL), the first two times", Causes: []ExitCause{CauseExited},
		Codes: "1-255", Sign: SignCommunication,
		Class: ClassAmbiguous, Reason: berth.ReasonCommunication,
		Says: "collective communication failed (exit code {code})", Hint: none,
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitLoss, Elsewhere: true,
	},
	{
		Name: "cuda_oom", Evidence: EvidenceLog, Signal: "the GPU ran out of memory",
		Causes: []ExitCause{CauseExited}, Codes: "1-255", Sign: SignCUDAOOM,
		Class: ClassPermanent, Reason: berth.ReasonOOM, Says: "ran out of GPU memory (exit code {code})",
		Hint: "raise resources.gpu_memory, or make the job use less",
		Next: berth.Failed, Blame: BlameUser, Budget: BudgetUser, Wait: WaitNone,
	},
	{
		Name: "illegal_access", Evidence: EvidenceLog, Signal: "an illegal memory access on the GPU",
		Causes: []ExitCause{CauseExited}, Codes: "1-255", Sign: SignIllegalAccess,
		Class: ClassAmbiguous, Reason: berth.ReasonExitCode,
		Says: "illegal memory access on a GPU (exit code {code})",
		Hint: "usually an error of the program; if another machine runs it, this machine is suspected",
		Next: berth.Retrying, Blame: BlameUser, Budget: BudgetUser, Tries: 2, Wait: WaitRetry, Elsewhere: true,
	},

	// All other failures. Rules with Tries 2 are ambiguous: even a job without retries runs
	// once more, on another machine.
	{
		Name: "crash", Evidence: EvidenceRest, Signal: "exit code 134, 135 or 139 (ABRT, BUS, SEGV)",
		Causes: []ExitCause{CauseExited}, Codes: "134,135,139",
		Class: ClassAmbiguous, Reason: berth.ReasonExitCode, Says: "exit code {code}",
		Next: berth.Retrying, Blame: BlameUser, Budget: BudgetUser, Tries: 2, Wait: WaitRetry, Elsewhere: true,
	},
	// A signal without an order by Berth and without a kill by the kernel for memory.
	{
		Name: "killed", Evidence: EvidenceRest, Signal: "exit code 137 or 143, and the sender of the signal is unknown",
		Causes: []ExitCause{CauseExited}, Codes: "137,143",
		Class: ClassUnknown, Reason: berth.ReasonExitCode, Says: "exit code {code}",
		Next: berth.Retrying, Blame: BlameUnknown, Budget: BudgetUser, Tries: 2, Wait: WaitRetry, Elsewhere: true,
	},
	{
		Name: "failed", Evidence: EvidenceRest, Signal: "exit code 1 to 124, including the 2 of a Go program unless " +
			"the engine is known to have stopped it", Causes: []ExitCause{CauseExited}, Codes: "1-124",
		Class: ClassUser, Reason: berth.ReasonExitCode, Says: "exit code {code}",
		Next: berth.Retrying, Blame: BlameUser, Budget: BudgetUser, Wait: WaitRetry,
	},
	{
		Name: "unknown", Evidence: EvidenceRest, Signal: "no other rule",
		Class: ClassUnknown, Reason: berth.ReasonUnknown, Says: "{exit} (exit code {code}); no rule matches this end",
		Hint: "report this to an operator: every end should have a rule",
		Next: berth.Retrying, Blame: BlameUnknown, Budget: BudgetUser, Tries: 2, Wait: WaitRetry, Elsewhere: true,
	},
}
