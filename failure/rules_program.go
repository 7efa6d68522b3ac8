package failure

import (
	"berth"
	"berth/spec"
)

// programRules are the rules for failures of the preparation and of the program itself.
var programRules = []Rule{
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
		Name: "image_not_allowed", Evidence: EvidencePreparation,
		Signal: "image: not in a registry or repository that the cluster and the tenant allow at the start",
		Causes: []ExitCause{CauseImageNotAllowed},
		Class:  ClassPermanent, Reason: berth.ReasonImageNotAllowed, Says: "{exit}",
		Hint: "use an image that is allowed, or ask an operator to allow this one: " +
			"berth quota set TENANT --images",
		Next: berth.Failed, Blame: BlameUser, Budget: BudgetUser, Wait: WaitNone,
	},
	{
		Name: "user_not_allowed", Evidence: EvidencePreparation,
		Signal: "user: not one that the tenant's containers may have at the start",
		Causes: []ExitCause{CauseUserNotAllowed},
		Class:  ClassPermanent, Reason: berth.ReasonInputInvalid, Says: "{exit}",
		Hint: "leave user out of the job file, or ask an operator to allow it: " +
			"berth quota set TENANT --any-user=true",
		Next: berth.Failed, Blame: BlameUser, Budget: BudgetUser, Wait: WaitNone,
	},
	{
		Name: "output_path", Evidence: EvidencePreparation,
		Signal: "the image leads an output into a read-only mount, a mount into another one, or the search through " +
			"too many folders",
		Causes: []ExitCause{CauseOutputPath},
		Class:  ClassPermanent, Reason: berth.ReasonOutputLost, Says: "{exit}",
		Hint: "choose another path for the output, such as one in /workspace, or remove the link from the image",
		Next: berth.Failed, Blame: BlameUser, Budget: BudgetUser, Wait: WaitNone,
	},
	{
		Name: "image_unsigned", Evidence: EvidencePreparation,
		Signal: "image: without a signature that the cluster or the tenant demands at the start",
		Causes: []ExitCause{CauseImageUnsigned},
		Class:  ClassPermanent, Reason: berth.ReasonImageUnsigned, Says: "{exit}",
		Hint: "sign the image with one of the keys, or use an image that is signed",
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
	{
		Name: "image_invalid", Evidence: EvidencePreparation,
		Signal: "the image names a user that it does not have, or puts its working folder, a volume or a mount where " +
			"no engine can create it, such as below /proc",
		Causes: []ExitCause{CauseImageInvalid},
		Class:  ClassPermanent, Reason: berth.ReasonInputInvalid, Says: "{exit}",
		Hint: "USER of the image must be a name in its /etc/passwd or a number up to 2147483647; WORKDIR, VOLUME and " +
			"links at mounts such as /workspace must stay out of /proc, /sys and /dev",
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
