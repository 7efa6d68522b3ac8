package failure

import (
	"berth"
)

// machineRules are the rules for faults of machines, of their devices and of their memory.
var machineRules = []Rule{
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
	// A machine with such an engine runs the jobs of other users, and all its jobs of tenants would count.
	{
		Name: "unmapped_user", Evidence: EvidenceMachine,
		Signal: "the container engine maps users, and its mapping does not have the container's user or group",
		Causes: []ExitCause{CauseUnmappedUser},
		Class:  ClassInfra, Reason: berth.ReasonMachineError, Says: "{exit}",
		Hint: "an operator can give tenants numbers inside the mapping (berthd --container-uids) or enlarge it",
		Next: berth.Retrying, Blame: BlameInfra, Budget: BudgetInfra, Wait: WaitLoss, Elsewhere: true,
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
}
