package failure_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth"
	"berth/failure"
	"berth/spec"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func exited(code int) *failure.Exit {
	return &failure.Exit{Cause: failure.CauseExited, Code: code, StartedAt: start, FinishedAt: start.Add(time.Minute)}
}

func caused(cause failure.ExitCause) *failure.Exit {
	return &failure.Exit{Cause: cause, FinishedAt: start}
}

// noHost is the exit of a member whose input names a host that does not exist.
func noHost(host string, confirmed bool) *failure.Exit {
	return with(caused(failure.CauseInputUnavailable), func(x *failure.Exit) {
		x.Unresolved = &failure.Unresolved{Host: host, Confirmed: confirmed}
	})
}

func with(x *failure.Exit, f func(*failure.Exit)) *failure.Exit { f(x); return x }

// classified is the expected result of Classify.
type classified struct {
	Rule       string
	Next       berth.State
	Code       berth.ReasonCode
	Budget     failure.Budget
	Delay      bool
	Elsewhere  bool
	DeadLetter bool
	Grow       bool
	Fault      bool
}

// classifyCases name the rule that they show, and the shown part of it.
var classifyCases = []struct {
	claim string
	e     failure.AttemptEvidence
	exit  *failure.Exit
	want  classified
}{
	// Our own intent.
	{"done before the cancel", evidence(canceling), exited(0), classified{Rule: "succeeded_before_cancel", Next: berth.Succeeded, Budget: failure.BudgetNone}},
	{"canceled while it ran", evidence(canceling), ordered(143), classified{Rule: "canceled", Next: berth.Canceled, Code: berth.ReasonCanceledByUser, Budget: failure.BudgetNone}},
	{"canceled while the image was pulled", evidence(canceling), caused(failure.CauseNotStarted), classified{Rule: "canceled", Next: berth.Canceled, Code: berth.ReasonCanceledByUser, Budget: failure.BudgetNone}},
	{"exit 0", evidence(), exited(0), classified{Rule: "succeeded", Next: berth.Succeeded, Budget: failure.BudgetNone}},
	{"exit 0 with a child killed for memory", evidence(), with(exited(0), func(x *failure.Exit) { x.OOMKilled = true }), classified{Rule: "succeeded", Next: berth.Succeeded, Budget: failure.BudgetNone}},
	{"a victim at its last step", evidence(preempting), with(ordered(0), func(x *failure.Exit) { x.Complete = true }), classified{Rule: "succeeded", Next: berth.Succeeded, Budget: failure.BudgetNone}},
	{"a victim pays nothing, whatever it has spent", evidence(preempting, lost(19), failed(9)), ordered(143), classified{Rule: "preempted", Next: berth.Retrying, Code: berth.ReasonPreempted, Budget: failure.BudgetNone}},
	{"a victim that saves and exits 0 is not done", evidence(preempting), ordered(0), classified{Rule: "preempted", Next: berth.Retrying, Code: berth.ReasonPreempted, Budget: failure.BudgetNone}},
	{"suspended", evidence(preempting, suspended, failed(9)), ordered(0),
		classified{Rule: "suspended", Next: berth.Retrying, Code: berth.ReasonSuspended, Budget: failure.BudgetNone}},
	{"drained", evidence(drained), ordered(143), classified{Rule: "drained", Next: berth.Retrying, Code: berth.ReasonDrained, Budget: failure.BudgetNone, Elsewhere: true}},
	{"a failure of its own on a draining machine", evidence(drained), exited(1), classified{Rule: "failed", Next: berth.Failed, Code: berth.ReasonExitCode, Budget: failure.BudgetUser}},
	{"time limit", evidence(attempts(3)), stopped(failure.CauseTimeLimit), classified{Rule: "time_limit", Next: berth.Failed, Code: berth.ReasonTimeLimit, Budget: failure.BudgetUser}},
	{"time limit after a checkpoint", evidence(requeued(9), attempts(1)), stopped(failure.CauseTimeLimit),
		classified{Rule: failure.RuleRequeue, Next: berth.Retrying, Code: berth.ReasonTimeLimit, Budget: failure.BudgetNone}},
	{"time limit after the last requeue", evidence(requeued(10)), stopped(failure.CauseTimeLimit),
		classified{Rule: "time_limit", Next: berth.Failed, Code: berth.ReasonTimeLimit, Budget: failure.BudgetUser}},
	{"time limit without a new checkpoint", evidence(requeued(0), unsaved), stopped(failure.CauseTimeLimit),
		classified{Rule: "time_limit", Next: berth.Failed, Code: berth.ReasonTimeLimit, Budget: failure.BudgetUser}},
	{"more disk than requested", evidence(attempts(3)), stopped(failure.CauseDiskLimit),
		classified{Rule: "disk_limit", Next: berth.Failed, Code: berth.ReasonDiskLimit, Budget: failure.BudgetUser}},
	{"the machine's disk reserve", evidence(attempts(3)), stopped(failure.CauseDiskReserve), classified{
		Rule: "disk_reserve", Next: berth.Retrying, Code: berth.ReasonDiskLimit, Budget: failure.BudgetUser, Delay: true, Elsewhere: true}},
	{"the first stall is free", evidence(), stopped(failure.CauseStalled), classified{Rule: "stalled", Next: berth.Retrying, Code: berth.ReasonStalled, Budget: failure.BudgetNone, Elsewhere: true}},
	{"a stall at another step is charged", evidence(at(9), attempts(3), had(failure.EarlierAttempt{Rule: "stalled", LastStep: step(4)})), stopped(failure.CauseStalled), classified{Rule: "stalled_again", Next: berth.Retrying, Code: berth.ReasonStalled, Budget: failure.BudgetUser, Delay: true, Elsewhere: true}},
	{"a stall at the same step is the user's", evidence(at(9), had(failure.EarlierAttempt{Rule: "stalled", LastStep: step(9)})), stopped(failure.CauseStalled), classified{Rule: "stalled_same_step", Next: berth.Failed, Code: berth.ReasonStalled, Budget: failure.BudgetUser}},
	{"two stalls of a job that tells no step", evidence(had(failure.EarlierAttempt{Rule: "stalled"})), stopped(failure.CauseStalled), classified{Rule: "stalled_same_step", Next: berth.Failed, Code: berth.ReasonStalled, Budget: failure.BudgetUser}},

	// The machine.
	{"two machines died under it", evidence(suspect, had(failure.EarlierAttempt{Attempt: 1, Machine: "m0", Died: true})), caused(failure.CauseBoot), classified{Rule: "poison", Next: berth.Failed, Code: berth.ReasonPoison, Budget: failure.BudgetNone, DeadLetter: true}},
	{"the same machine died twice", evidence(suspect, lost(1), had(failure.EarlierAttempt{Attempt: 1, Machine: "m1", Died: true})), caused(failure.CauseBoot), classified{Rule: "died_under_it", Next: berth.Retrying, Code: berth.ReasonMachineLost, Budget: failure.BudgetInfra, Delay: true, Elsewhere: true}},
	{"a machine died under it", evidence(suspect), caused(failure.CauseBoot), classified{Rule: "died_under_it", Next: berth.Retrying, Code: berth.ReasonMachineLost, Budget: failure.BudgetInfra, Elsewhere: true}},
	{"a suspect that ended by itself", evidence(suspect, had(failure.EarlierAttempt{Machine: "m0", Died: true})), exited(1), classified{Rule: "failed", Next: berth.Failed, Code: berth.ReasonExitCode, Budget: failure.BudgetUser}},
	{"its machine fell silent", evidence(silent), nil, classified{Rule: "machine_lost", Next: berth.Retrying, Code: berth.ReasonMachineLost, Budget: failure.BudgetInfra, Elsewhere: true}},
	{"its machine fell silent, and no output is stored", evidence(silent, func(e *failure.AttemptEvidence) { e.OutputsLost = outputs("model") }), nil, classified{Rule: "machine_lost", Next: berth.Retrying, Code: berth.ReasonMachineLost, Budget: failure.BudgetInfra, Elsewhere: true}},
	{"nobody took it", evidence(), nil, classified{Rule: "unclaimed", Next: berth.Retrying, Code: berth.ReasonUnclaimed, Budget: failure.BudgetInfra, Elsewhere: true}},
	{"rebooted", evidence(), caused(failure.CauseBoot), classified{Rule: "rebooted", Next: berth.Retrying, Code: berth.ReasonMachineError, Budget: failure.BudgetInfra, Elsewhere: true, Fault: true}},
	{"fenced", evidence(), caused(failure.CauseFenced), classified{Rule: "fenced", Next: berth.Retrying, Code: berth.ReasonMachineLost, Budget: failure.BudgetInfra, Elsewhere: true}},
	{"exit 2 when the engine stopped", evidence(), with(exited(2), func(x *failure.Exit) { x.Cause = failure.CauseEngine }), classified{Rule: "engine_stopped", Next: berth.Retrying, Code: berth.ReasonMachineError, Budget: failure.BudgetInfra, Elsewhere: true, Fault: true}},
	{"137 when the engine stopped", evidence(), with(exited(137), func(x *failure.Exit) { x.Cause = failure.CauseEngine }), classified{Rule: "engine_stopped", Next: berth.Retrying, Code: berth.ReasonMachineError, Budget: failure.BudgetInfra, Elsewhere: true, Fault: true}},
	{"the engine makes no container", evidence(), caused(failure.CauseEngine), classified{Rule: "engine_failed", Next: berth.Retrying, Code: berth.ReasonMachineError, Budget: failure.BudgetInfra, Elsewhere: true, Fault: true}},
	{"vanished", evidence(), caused(failure.CauseVanished), classified{Rule: "vanished", Next: berth.Retrying, Code: berth.ReasonMachineError, Budget: failure.BudgetInfra, Elsewhere: true, Fault: true}},
	{"from the second loss on it waits", evidence(lost(1)), caused(failure.CauseVanished), classified{Rule: "vanished", Next: berth.Retrying, Code: berth.ReasonMachineError, Budget: failure.BudgetInfra, Delay: true, Elsewhere: true, Fault: true}},
	{"the twentieth loss is the last", evidence(lost(19)), caused(failure.CauseVanished), classified{Rule: "vanished", Next: berth.Failed, Code: berth.ReasonBudgetSpent, Budget: failure.BudgetInfra, DeadLetter: true, Fault: true}},
	{"exit 0 after an order that nobody remembers", evidence(), ordered(0), classified{Rule: "not_started", Next: berth.Retrying, Code: berth.ReasonMachineError, Budget: failure.BudgetInfra, Elsewhere: true}},

	// Its GPUs.
	{"XID 79", evidence(), stopped(failure.CauseGPU), classified{Rule: "gpu_error", Next: berth.Retrying, Code: berth.ReasonGPUError, Budget: failure.BudgetInfra, Elsewhere: true, Fault: true}},
	{"no network", evidence(), caused(failure.CauseNetwork), classified{Rule: "network_unavailable", Next: berth.Retrying, Code: berth.ReasonMachineError, Budget: failure.BudgetInfra, Elsewhere: true}},
	{"device in use", evidence(), caused(failure.CauseGPUInUse), classified{Rule: "gpu_in_use", Next: berth.Retrying, Code: berth.ReasonGPUError, Budget: failure.BudgetNone, Elsewhere: true}},
	{"check failed", evidence(), caused(failure.CauseCheck), classified{Rule: "check_failed", Next: berth.Retrying, Code: berth.ReasonMachineError, Budget: failure.BudgetNone, Delay: true, Elsewhere: true}},
	{"check failed on two machines in a row", evidence(unfit("m8", "m9")), caused(failure.CauseCheck), classified{Rule: "check_failed_again", Next: berth.Failed, Code: berth.ReasonPoison, Budget: failure.BudgetUser}},
	{"check failed on two machines in a row, with retries", evidence(attempts(3), unfit("m7", "m8", "m9")), caused(failure.CauseCheck), classified{Rule: "check_failed_again", Next: berth.Retrying, Code: berth.ReasonPoison, Budget: failure.BudgetUser, Delay: true, Elsewhere: true}},
	{"check failed twice on one machine", evidence(unfit("m8", "m8")), caused(failure.CauseCheck), classified{Rule: "check_failed", Next: berth.Retrying, Code: berth.ReasonMachineError, Budget: failure.BudgetNone, Delay: true, Elsewhere: true}},
	{"check failed on two machines, and passed since", evidence(unfit("m8", "m9"), ran("communication")), caused(failure.CauseCheck), classified{Rule: "check_failed", Next: berth.Retrying, Code: berth.ReasonMachineError, Budget: failure.BudgetNone, Delay: true, Elsewhere: true}},
	{"a user that the engine does not map", evidence(), caused(failure.CauseUnmappedUser), classified{Rule: "unmapped_user", Next: berth.Retrying, Code: berth.ReasonMachineError, Budget: failure.BudgetInfra, Elsewhere: true}},
	{"device refused", evidence(), caused(failure.CauseDevice), classified{Rule: "gpu_error", Next: berth.Retrying, Code: berth.ReasonGPUError, Budget: failure.BudgetInfra, Elsewhere: true, Fault: true}},
	{"XID 31, which is the application's", evidence(), with(exited(1), func(x *failure.Exit) { x.Xid = 31 }), classified{Rule: "gpu_application_error", Next: berth.Retrying, Code: berth.ReasonExitCode, Budget: failure.BudgetUser, Delay: true, Elsewhere: true}},
	{"XID 43 for the second time", evidence(failed(1)), with(exited(1), func(x *failure.Exit) { x.Xid = 43 }), classified{Rule: "gpu_application_error", Next: berth.Failed, Code: berth.ReasonExitCode, Budget: failure.BudgetUser, DeadLetter: true}},
	{"XID 92, which is but a note", evidence(), with(exited(1), func(x *failure.Exit) { x.Xid = 92 }), classified{Rule: "failed", Next: berth.Failed, Code: berth.ReasonExitCode, Budget: failure.BudgetUser}},

	// Memory.
	{"the host ran out of memory", evidence(), with(exited(137), func(x *failure.Exit) { x.Cause = failure.CauseHostOOM }), classified{Rule: "host_out_of_memory", Next: berth.Retrying, Code: berth.ReasonMachineError, Budget: failure.BudgetInfra, Elsewhere: true, Fault: true}},
	{"out of memory", evidence(attempts(3)), oomKilled(137), classified{Rule: "oom", Next: berth.Failed, Code: berth.ReasonOOM, Budget: failure.BudgetUser}},
	{"a child out of memory, and the first process failed of it", evidence(attempts(3)), oomKilled(1), classified{Rule: "oom", Next: berth.Failed, Code: berth.ReasonOOM, Budget: failure.BudgetUser}},
	{"out of memory grows once", evidence(grows), oomKilled(137), classified{Rule: "oom_grow", Next: berth.Retrying, Code: berth.ReasonOOM, Budget: failure.BudgetUser, Delay: true, Grow: true}},
	{"out of memory grows only once", evidence(grows, grown), oomKilled(137), classified{Rule: "oom", Next: berth.Failed, Code: berth.ReasonOOM, Budget: failure.BudgetUser}},

	// Before the process began.
	{"no such image", evidence(attempts(3)), caused(failure.CauseImageNotFound), classified{Rule: "image_not_found", Next: berth.Failed, Code: berth.ReasonImageNotFound, Budget: failure.BudgetUser}},
	{"another image than its digest says", evidence(attempts(3)), caused(failure.CauseImageMismatch), classified{Rule: "image_mismatch", Next: berth.Failed, Code: berth.ReasonImageMismatch, Budget: failure.BudgetUser}},
	{"the registry does not answer", evidence(), caused(failure.CauseImageUnavailable), classified{Rule: "image_unavailable", Next: berth.Retrying, Code: berth.ReasonImageUnavailable, Budget: failure.BudgetInfra, Delay: true, Elsewhere: true}},
	{"no such command", evidence(attempts(3)), caused(failure.CauseBadCommand), classified{Rule: "bad_command", Next: berth.Failed, Code: berth.ReasonExitCode, Budget: failure.BudgetUser}},
	{"no checkpoint verifies", evidence(attempts(3)), caused(failure.CauseCheckpointCorrupt), classified{Rule: "checkpoint_corrupt", Next: berth.Failed, Code: berth.ReasonCheckpointCorrupt, Budget: failure.BudgetUser}},
	{"an output is missing", evidence(attempts(3), func(e *failure.AttemptEvidence) { e.OutputsLost = outputs("model") }), exited(0), classified{Rule: "output_lost", Next: berth.Retrying, Code: berth.ReasonOutputLost, Budget: failure.BudgetUser, Delay: true}},
	{"its machine fell silent before its output was stored", evidence(func(e *failure.AttemptEvidence) { e.OutputsLost, e.Attempt = outputs("model"), 4 }), exited(0), classified{Rule: "output_cut_off", Next: berth.Retrying, Code: berth.ReasonMachineLost, Budget: failure.BudgetInfra, Elsewhere: true}},
	{"the store did not take its output", evidence(func(e *failure.AttemptEvidence) { e.OutputsLost = outputs("model") }), with(exited(0), unstored("model")), classified{Rule: "output_unstored", Next: berth.Retrying, Code: berth.ReasonOutputLost, Budget: failure.BudgetInfra, Delay: true, Elsewhere: true}},
	{"the store did not take an output for the twentieth time", evidence(lost(19), func(e *failure.AttemptEvidence) { e.OutputsLost = outputs("model") }), with(exited(0), unstored("model")), classified{Rule: "output_unstored", Next: berth.Failed, Code: berth.ReasonBudgetSpent, Budget: failure.BudgetInfra, DeadLetter: true}},
	{"no machine could store its output, for the third time", evidence(had(failure.EarlierAttempt{Rule: "output_unstored"}, failure.EarlierAttempt{Rule: "machine_lost"}, failure.EarlierAttempt{Rule: "output_unstored"}), func(e *failure.AttemptEvidence) { e.OutputsLost = outputs("model") }), with(exited(0), unstored("model")), classified{Rule: "output_unstored_again", Next: berth.Failed, Code: berth.ReasonOutputLost, Budget: failure.BudgetUser}},
	{"after two outputs that no machine could store there is none", evidence(had(failure.EarlierAttempt{Rule: "output_unstored"}, failure.EarlierAttempt{Rule: "output_unstored"}), func(e *failure.AttemptEvidence) { e.OutputsLost = outputs("model") }), exited(0), classified{Rule: "output_lost", Next: berth.Failed, Code: berth.ReasonOutputLost, Budget: failure.BudgetUser}},
	{"the store took one output not, and another is not there", evidence(func(e *failure.AttemptEvidence) { e.OutputsLost = outputs("model", "plots") }), with(exited(0), unstored("model")), classified{Rule: "output_lost", Next: berth.Failed, Code: berth.ReasonOutputLost, Budget: failure.BudgetUser}},
	{"one member could not store its part, and that of another is too large", evidence(func(e *failure.AttemptEvidence) { e.OutputsLost = outputs("model") }), with(exited(0), func(x *failure.Exit) { x.Unstored, x.Refused = []string{"model"}, []string{"model"} }), classified{Rule: "output_lost", Next: berth.Failed, Code: berth.ReasonOutputLost, Budget: failure.BudgetUser}},
	{"its machine fell silent, and an output is too large", evidence(func(e *failure.AttemptEvidence) { e.OutputsLost, e.Attempt = outputs("model"), 4 }), with(exited(0), func(x *failure.Exit) { x.Refused = []string{"model"} }), classified{Rule: "output_lost", Next: berth.Failed, Code: berth.ReasonOutputLost, Budget: failure.BudgetUser}},
	{"an output was not stored by this process, and is there", evidence(), with(exited(0), unstored("model")), classified{Rule: "succeeded", Next: berth.Succeeded, Budget: failure.BudgetNone}},
	{"its machine fell silent after its output was stored", evidence(func(e *failure.AttemptEvidence) { e.Attempt = 4 }), exited(0), classified{Rule: "succeeded", Next: berth.Succeeded, Budget: failure.BudgetNone}},
	{"an output exceeds a storage quota", evidence(func(e *failure.AttemptEvidence) { e.OutputsLost = outputs("model") }),
		with(exited(0), func(x *failure.Exit) { x.Refused, x.OverQuota = []string{"model"}, "model: tenant lab is full" }),
		classified{Rule: "output_over_quota", Next: berth.Failed, Code: berth.ReasonStorageQuota, Budget: failure.BudgetUser}},
	{"an output is missing, and it was the last run", evidence(func(e *failure.AttemptEvidence) { e.OutputsLost = outputs("model") }), exited(0), classified{Rule: "output_lost", Next: berth.Failed, Code: berth.ReasonOutputLost, Budget: failure.BudgetUser}},
	{"its image is no longer allowed", evidence(attempts(3)), caused(failure.CauseImageNotAllowed), classified{Rule: "image_not_allowed", Next: berth.Failed, Code: berth.ReasonImageNotAllowed, Budget: failure.BudgetUser}},
	{"its user is not allowed", evidence(attempts(3)), caused(failure.CauseUserNotAllowed), classified{Rule: "user_not_allowed", Next: berth.Failed, Code: berth.ReasonInputInvalid, Budget: failure.BudgetUser}},
	{"an output that its user cannot get", evidence(attempts(3)), caused(failure.CauseOutputPath), classified{Rule: "output_path", Next: berth.Failed, Code: berth.ReasonOutputLost, Budget: failure.BudgetUser}},
	{"its image cannot start on any machine", evidence(attempts(3)), caused(failure.CauseImageInvalid), classified{Rule: "image_invalid", Next: berth.Failed, Code: berth.ReasonInputInvalid, Budget: failure.BudgetUser}},
	{"its image is not signed as demanded", evidence(attempts(3)), caused(failure.CauseImageUnsigned), classified{Rule: "image_unsigned", Next: berth.Failed, Code: berth.ReasonImageUnsigned, Budget: failure.BudgetUser}},
	{"its secret was deleted", evidence(attempts(3)), caused(failure.CauseSecretMissing), classified{Rule: "secret_missing", Next: berth.Failed, Code: berth.ReasonSecretMissing, Budget: failure.BudgetUser}},
	{"the server lacks a key", evidence(), caused(failure.CauseSecretUnavailable), classified{Rule: "secret_unavailable", Next: berth.Retrying, Code: berth.ReasonSecretUnavailable, Budget: failure.BudgetInfra, Delay: true}},
	{"its workdir is gone", evidence(attempts(3)), caused(failure.CauseInputInvalid), classified{Rule: "input_invalid", Next: berth.Failed, Code: berth.ReasonInputInvalid, Budget: failure.BudgetUser}},
	{"a machine and the control plane know no such host", evidence(), noHost("a.test", true),
		classified{Rule: "host_not_found", Next: berth.Failed, Code: berth.ReasonInputInvalid,
			Budget: failure.BudgetUser}},
	{"two machines know no such host", evidence(had(failure.EarlierAttempt{Rule: "input_unavailable", Machine: "m0",
		NoHost: "a.test"})), noHost("a.test", false),
		classified{Rule: "host_not_found", Next: berth.Failed, Code: berth.ReasonInputInvalid,
			Budget: failure.BudgetUser}},
	{"one machine twice knows no such host", evidence(lost(1),
		had(failure.EarlierAttempt{Rule: "input_unavailable", Machine: "m1", NoHost: "a.test"})),
		noHost("a.test", false), classified{Rule: "input_unavailable", Next: berth.Retrying,
			Code: berth.ReasonInputUnavailable, Budget: failure.BudgetInfra, Delay: true, Elsewhere: true}},
	{"two machines know no such host, each another one",
		evidence(lost(1), had(failure.EarlierAttempt{Rule: "input_unavailable", Machine: "m0", NoHost: "b.test"})),
		noHost("a.test", false), classified{Rule: "input_unavailable", Next: berth.Retrying,
			Code: berth.ReasonInputUnavailable, Budget: failure.BudgetInfra, Delay: true, Elsewhere: true}},
	{"another machine's name servers did not answer",
		evidence(lost(1), had(failure.EarlierAttempt{Rule: "input_unavailable", Machine: "m0"})),
		noHost("a.test", false), classified{Rule: "input_unavailable", Next: berth.Retrying,
			Code: berth.ReasonInputUnavailable, Budget: failure.BudgetInfra, Delay: true, Elsewhere: true}},
	{"the store of its workdir does not answer", evidence(), caused(failure.CauseInputUnavailable), classified{Rule: "input_unavailable", Next: berth.Retrying, Code: berth.ReasonInputUnavailable, Budget: failure.BudgetInfra, Elsewhere: true}},
	{"the store does not answer", evidence(), caused(failure.CauseRestoreFailed), classified{Rule: "restore_failed", Next: berth.Retrying, Code: berth.ReasonMachineError, Budget: failure.BudgetInfra, Elsewhere: true}},

	// Exit codes that name their cause.
	{"a rule fails at once", evidence(ruled("7", spec.ActionFail), attempts(9)), exited(7), classified{Rule: "rule_fail", Next: berth.Failed, Code: berth.ReasonExitCode, Budget: failure.BudgetUser}},
	{"a rule retries", evidence(ruled("125", spec.ActionRetry), attempts(2)), exited(125), classified{Rule: "rule_retry", Next: berth.Retrying, Code: berth.ReasonExitCode, Budget: failure.BudgetUser, Delay: true}},
	{"a rule retries elsewhere", evidence(ruled("42,100-110", spec.ActionRetryElsewhere), attempts(2)), exited(105), classified{Rule: "rule_retry_elsewhere", Next: berth.Retrying, Code: berth.ReasonExitCode, Budget: failure.BudgetUser, Delay: true, Elsewhere: true}},
	{"125", evidence(), exited(125), classified{Rule: "engine_exit", Next: berth.Retrying, Code: berth.ReasonMachineError, Budget: failure.BudgetInfra, Elsewhere: true, Fault: true}},
	{"126", evidence(attempts(3)), exited(126), classified{Rule: "not_executable", Next: berth.Failed, Code: berth.ReasonExitCode, Budget: failure.BudgetUser}},
	{"127", evidence(attempts(3)), exited(127), classified{Rule: "not_executable", Next: berth.Failed, Code: berth.ReasonExitCode, Budget: failure.BudgetUser}},

	// The log.
	{"the first NCCL error is the cluster's", evidence(), signed(134, failure.SignCommunication), classified{Rule: "communication", Next: berth.Retrying, Code: berth.ReasonCommunication, Budget: failure.BudgetInfra, Elsewhere: true}},
	{"the second NCCL error is, too", evidence(had(failure.EarlierAttempt{Rule: "communication"})), signed(1, failure.SignCommunication), classified{Rule: "communication", Next: berth.Retrying, Code: berth.ReasonCommunication, Budget: failure.BudgetInfra, Elsewhere: true}},
	{"the third NCCL error is the user's", evidence(had(failure.EarlierAttempt{Rule: "communication"}, failure.EarlierAttempt{Rule: "communication"})), signed(1, failure.SignCommunication), classified{Rule: "communication_again", Next: berth.Failed, Code: berth.ReasonCommunication, Budget: failure.BudgetUser}},
	{"out of GPU memory", evidence(attempts(3)), signed(1, failure.SignCUDAOOM), classified{Rule: "cuda_oom", Next: berth.Failed, Code: berth.ReasonOOM, Budget: failure.BudgetUser}},
	{"an illegal access is tried once elsewhere", evidence(), signed(1, failure.SignIllegalAccess), classified{Rule: "illegal_access", Next: berth.Retrying, Code: berth.ReasonExitCode, Budget: failure.BudgetUser, Delay: true, Elsewhere: true}},

	// The rest.
	{"134 is tried once elsewhere", evidence(), exited(134), classified{Rule: "crash", Next: berth.Retrying, Code: berth.ReasonExitCode, Budget: failure.BudgetUser, Delay: true, Elsewhere: true}},
	{"135 is tried once elsewhere", evidence(), exited(135), classified{Rule: "crash", Next: berth.Retrying, Code: berth.ReasonExitCode, Budget: failure.BudgetUser, Delay: true, Elsewhere: true}},
	{"139 for the second time", evidence(failed(1)), exited(139), classified{Rule: "crash", Next: berth.Failed, Code: berth.ReasonExitCode, Budget: failure.BudgetUser, DeadLetter: true}},
	{"137 without evidence is tried once elsewhere", evidence(), exited(137), classified{Rule: "killed", Next: berth.Retrying, Code: berth.ReasonExitCode, Budget: failure.BudgetUser, Delay: true, Elsewhere: true}},
	{"143 for the second time", evidence(failed(1)), exited(143), classified{Rule: "killed", Next: berth.Failed, Code: berth.ReasonExitCode, Budget: failure.BudgetUser, DeadLetter: true}},
	{"2 without evidence is the user's", evidence(), exited(2), classified{Rule: "failed", Next: berth.Failed, Code: berth.ReasonExitCode, Budget: failure.BudgetUser}},
	{"1 without retries", evidence(), exited(1), classified{Rule: "failed", Next: berth.Failed, Code: berth.ReasonExitCode, Budget: failure.BudgetUser}},
	{"1 with retries", evidence(attempts(3)), exited(1), classified{Rule: "failed", Next: berth.Retrying, Code: berth.ReasonExitCode, Budget: failure.BudgetUser, Delay: true}},
	{"the third of three failures", evidence(attempts(3), failed(2)), exited(1), classified{Rule: "failed", Next: berth.Failed, Code: berth.ReasonExitCode, Budget: failure.BudgetUser, DeadLetter: true}},
	{"a code that no rule knows", evidence(), exited(200), classified{Rule: "unknown", Next: berth.Retrying, Code: berth.ReasonUnknown, Budget: failure.BudgetUser, Delay: true, Elsewhere: true}},
	{"a cause that only a newer agent knows", evidence(), caused("ate_by_mice"), classified{Rule: "unknown", Next: berth.Retrying, Code: berth.ReasonUnknown, Budget: failure.BudgetUser, Delay: true, Elsewhere: true}},
}

// Every rule of the classification is shown by a case that carries its name.
func TestClassify(t *testing.T) {
	t.Parallel()
	shown := map[string]bool{}
	for _, c := range classifyCases {
		shown[c.want.Rule] = true
		t.Run(c.want.Rule+"/"+c.claim, func(t *testing.T) {
			t.Parallel()
			e := c.e
			e.Ranks = []failure.RankEvidence{{Machine: "m1", Claimed: true, Orphaned: e.DrainedBy == "silent", Suspect: e.Attempt == 3, CutOff: e.Attempt == 4, Exit: c.exit}}
			v := failure.Classify(e)
			got := classified{v.Rule, v.Next, v.Reason.Code, v.Budget, v.Delay > 0, len(v.Avoid) > 0, v.DeadLetter, v.GrowMemory, len(v.Faults) > 0}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("Classify (-want +got):\n%s\nverdict %+v", diff, v)
			}
			if !e.State.CanBecome(v.Next) {
				t.Errorf("%s cannot become %s", e.State, v.Next)
			}
			if v.Reason != (berth.Reason{}) && v.Reason.Rule != v.Rule {
				t.Errorf("the reason %+v does not name its rule", v.Reason)
			}
		})
	}
	for _, rule := range failure.Rules {
		if !shown[rule.Name] {
			t.Errorf("no case shows rule %s", rule.Name)
		}
	}
}

func TestAJobThatFailsChecksNamesTheMachines(t *testing.T) {
	t.Parallel()
	e := evidence(unfit("m8", "m9"))
	e.Ranks = []failure.RankEvidence{{Machine: "m1", Claimed: true, Exit: with(caused(failure.CauseCheck), func(x *failure.Exit) { x.Message = "exit status 3: fan broken" })}}
	want := "the operator's check before the start failed on m8, m9, m1; last: exit status 3: fan broken"
	if v := failure.Classify(e); v.Reason.Message != want {
		t.Errorf("message is %q, want %q", v.Reason.Message, want)
	}
}

// A missing output is named with its path, and a second stall at the same step with the attempt of the first.
func TestReasonsNameWhatWasMissedAndWhere(t *testing.T) {
	t.Parallel()
	stall := with(stopped(failure.CauseStalled), func(x *failure.Exit) {
		x.Message = "no log, progress, checkpoint, CPU or GPU activity for 10s (stall_timeout)"
	})
	for want, c := range map[string]struct {
		e    failure.AttemptEvidence
		exit *failure.Exit
	}{
		"the command succeeded, but output m was not found at /out/m": {evidence(func(e *failure.AttemptEvidence) { e.OutputsLost = outputs("m") }), exited(0)},
		"no log, progress, checkpoint, CPU or GPU activity for 10s (stall_timeout), as in attempt 1": {evidence(
			had(failure.EarlierAttempt{Attempt: 1, Rule: "stalled"})), stall},
	} {
		c.e.Ranks = []failure.RankEvidence{{Machine: "m1", Claimed: true, Exit: c.exit}}
		if v := failure.Classify(c.e); v.Reason.Message != want {
			t.Errorf("message is %q, want %q", v.Reason.Message, want)
		}
	}
}

// evidence returns the evidence of a running job without retries, with edits.
func evidence(edits ...func(*failure.AttemptEvidence)) failure.AttemptEvidence {
	e := failure.AttemptEvidence{Job: "0190a0a0-0000-7000-8000-000000000001", State: berth.Running, Attempt: 2}
	e.Retry = spec.Job{}.WithDefaults().Retry
	for _, edit := range edits {
		edit(&e)
	}
	return e
}

func canceling(e *failure.AttemptEvidence) { e.State, e.CancelAt = berth.Canceling, start }

func preempting(e *failure.AttemptEvidence) { e.State = berth.Preempting }

func drained(e *failure.AttemptEvidence) { e.DrainedBy = "new kernel" }

func suspended(e *failure.AttemptEvidence) { e.Suspended = true }

func silent(e *failure.AttemptEvidence) { e.DrainedBy = "silent" }

func suspect(e *failure.AttemptEvidence) { e.Attempt = 3 } // the case's one rank is a suspect then

func grown(e *failure.AttemptEvidence) { e.OOMGrown = true }

func grows(e *failure.AttemptEvidence) { e.Retry.OnOOM = "grow" }

func attempts(n int) func(*failure.AttemptEvidence) {
	return func(e *failure.AttemptEvidence) { e.Retry.MaxAttempts = n }
}

// requeued is a job with on_time_limit: requeue whose attempt has stored a checkpoint.
func requeued(n int) func(*failure.AttemptEvidence) {
	return func(e *failure.AttemptEvidence) {
		e.Retry.OnTimeLimit, e.Requeues, e.Progressed = spec.OnTimeLimitRequeue, n, true
	}
}

func unsaved(e *failure.AttemptEvidence) { e.Progressed = false }

func failed(n int) func(*failure.AttemptEvidence) {
	return func(e *failure.AttemptEvidence) { e.Failures = n }
}

func lost(n int) func(*failure.AttemptEvidence) {
	return func(e *failure.AttemptEvidence) { e.Losses = n }
}

func unstored(names ...string) func(*failure.Exit) {
	return func(x *failure.Exit) { x.Unstored = names }
}

func at(s int64) func(*failure.AttemptEvidence) {
	return func(e *failure.AttemptEvidence) { e.LastStep = &s }
}

func had(list ...failure.EarlierAttempt) func(*failure.AttemptEvidence) {
	return func(e *failure.AttemptEvidence) { e.Earlier = list }
}

// unfit adds attempts in which the operator's check failed on these machines.
func unfit(machines ...berth.MachineID) func(*failure.AttemptEvidence) {
	return func(e *failure.AttemptEvidence) {
		for i, m := range machines {
			e.Earlier = append(e.Earlier, failure.EarlierAttempt{Rule: []string{"check_failed", "check_failed", "check_failed_again"}[i], Machine: m})
		}
	}
}

// ran adds an attempt that another rule decided.
func ran(rule string) func(*failure.AttemptEvidence) {
	return func(e *failure.AttemptEvidence) {
		e.Earlier = append(e.Earlier, failure.EarlierAttempt{Rule: rule, Machine: "m1"})
	}
}

func ruled(codes spec.ExitCodes, action string) func(*failure.AttemptEvidence) {
	return func(e *failure.AttemptEvidence) { e.Retry.Rules = []spec.RetryRule{{ExitCodes: codes, Action: action}} }
}

func step(n int64) *int64 { return &n }

func ordered(code int) *failure.Exit {
	return with(exited(code), func(x *failure.Exit) { x.Cause = failure.CauseOrdered })
}

func stopped(cause failure.ExitCause) *failure.Exit {
	return with(exited(143), func(x *failure.Exit) { x.Cause = cause })
}

func oomKilled(code int) *failure.Exit {
	return with(exited(code), func(x *failure.Exit) { x.OOMKilled = true })
}

func signed(code int, sign failure.LogSign) *failure.Exit {
	return with(exited(code), func(x *failure.Exit) { x.Sign = sign })
}

// A doubtful failure counts against its machine once the job has succeeded on
// another.
func TestSuccessElsewhereCountsAgainstTheMachineWhereItCrashed(t *testing.T) {
	t.Parallel()
	e := evidence(had(
		failure.EarlierAttempt{Rule: "crash", Machine: "m0"}, failure.EarlierAttempt{Rule: "illegal_access", Machine: "m0"},
		failure.EarlierAttempt{Rule: "crash", Machine: "m1"}, failure.EarlierAttempt{Rule: "failed", Machine: "m2"}))
	e.Ranks = []failure.RankEvidence{{Machine: "m1", Exit: exited(0)}}
	if v := failure.Classify(e); v.Next != berth.Succeeded || !slices.Equal(v.Faults, []berth.MachineID{"m0"}) {
		t.Errorf("got %+v", v)
	}
}

// The figures: 10 s, doubled, at most 10 min, plus or minus a half, and the same in
// every process that computes them.
func TestBackoffFigures(t *testing.T) {
	t.Parallel()
	base := []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 320 * time.Second, 10 * time.Minute, 10 * time.Minute}
	low, high := false, false
	for i := range 200 {
		e := evidence(attempts(100))
		e.Job = berth.JobID(fmt.Sprintf("0190a0a0-0000-7000-8000-%012d", i))
		e.Ranks = []failure.RankEvidence{{Machine: "m1", Exit: exited(1)}}
		for n, want := range base {
			e.Failures = n
			got := failure.Classify(e).Delay
			if got < want/2 || got > min(want*3/2, 10*time.Minute) || got != failure.Classify(e).Delay {
				t.Fatalf("job %s waits %s after failure %d, want %s give or take a half", e.Job, got, n+1, want)
			}
			low, high = low || got < want*6/10, high || got > want*14/10
		}
		e.Ranks[0].Exit = caused(failure.CauseVanished)
		for n, want := range base {
			e.Losses = n + 1
			if got := failure.Classify(e).Delay; got < want/2 || got > min(want*3/2, 10*time.Minute) {
				t.Fatalf("job %s waits %s after loss %d, want %s give or take a half", e.Job, got, n+2, want)
			}
		}
	}
	if !low || !high {
		t.Error("the jitter does not use its range")
	}
}

func TestAnOrphanedRankIsToBlameFirst(t *testing.T) {
	t.Parallel()
	v := failure.Classify(failure.AttemptEvidence{State: berth.Running, Attempt: 1, Retry: spec.RetryPolicy{MaxAttempts: 1},
		Ranks: []failure.RankEvidence{
			{Rank: 0, Machine: "m1", Claimed: true, Exit: exited(1)},
			{Rank: 1, Machine: "m2", Claimed: true, Orphaned: true},
		}})
	want := failure.Verdict{
		Next: berth.Retrying, Rule: "machine_lost", Budget: failure.BudgetInfra, Machine: "m2", Avoid: []berth.MachineID{"m2"},
		Reason: berth.Reason{Code: berth.ReasonMachineLost, Rule: "machine_lost"},
	}
	if diff := cmp.Diff(want, v, cmpopts.IgnoreFields(berth.Reason{}, "Message", "Hint")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The hint names the user of a container where its lack of a right may explain the failure, and nowhere else.
func TestTheHintNamesAUserThatLackedARight(t *testing.T) {
	t.Parallel()
	const user = "2010000000:2010000000"
	for what, c := range map[string]struct {
		exit *failure.Exit
		user string
		want bool
	}{
		"not executable":                      {exited(126), user, true},
		"refused by the engine":               {caused(failure.CauseBadCommand), user, true},
		"a missing right in the log":          {signed(1, failure.SignPermission), user, true},
		"the same as the user of the image":   {signed(1, failure.SignPermission), "", false},
		"no missing right in the log":         {exited(1), user, false},
		"success in spite of the log":         {signed(0, failure.SignPermission), user, false},
		"another cause with the same sign":    {with(signed(1, failure.SignPermission), func(x *failure.Exit) { x.Cause = failure.CauseTimeLimit }), user, false},
		"a broken communication":              {signed(1, failure.SignCommunication), user, false},
		"an executable that is no executable": {exited(126), "", false},
	} {
		e := evidence()
		e.Ranks = []failure.RankEvidence{{Machine: "m1", Claimed: true, Exit: with(c.exit, func(x *failure.Exit) { x.User = c.user })}}
		v := failure.Classify(e)
		e.Ranks[0].Exit.ImageRoot = true
		of := failure.Classify(e).Reason.Hint
		if strings.Contains(of, "not as root, the user of its image: ") != c.want || strings.Contains(v.Reason.Hint, "root, the user") {
			t.Errorf("%s: the hint is %q, for an image of root %q", what, v.Reason.Hint, of)
		}
		if got := strings.Contains(v.Reason.Hint, "ran as user "+user); got != c.want {
			t.Errorf("%s: the hint is %q", what, v.Reason.Hint)
		}
		// The advice is a setting of the job file that exists, with the command that permits it.
		for _, advice := range []string{"set user: image in", "berth quota set TENANT --any-user=true"} {
			if strings.Contains(v.Reason.Hint, advice) != c.want {
				t.Errorf("%s: the hint is %q, with %q: want %v", what, v.Reason.Hint, advice, c.want)
			}
		}
		if c.exit.Sign == failure.SignPermission && c.exit.Cause == failure.CauseExited && c.exit.Code == 1 && v.Rule != "failed" {
			t.Errorf("%s: rule %s, want the one without the sign", what, v.Rule)
		}
	}
}

// A job that reached its limit may continue: the hint names the command for both cases.
func TestTheHintOfATimeLimitNamesTheNextCommand(t *testing.T) {
	t.Parallel()
	e := evidence()
	e.Ranks = []failure.RankEvidence{{Machine: "m1", Claimed: true, Exit: caused(failure.CauseTimeLimit)}}
	r := failure.Classify(e).Reason
	const hint = "berth retry resumes from its newest checkpoint, if it saved one; --set time_limit=8h raises the limit"
	if r.Code != berth.ReasonTimeLimit || r.Message != "reached its time_limit" || r.Hint != hint {
		t.Errorf("the reason is %+v", r)
	}
}

func TestTheFirstRankToFailIsToBlame(t *testing.T) {
	t.Parallel()
	later := with(exited(9), func(x *failure.Exit) { x.FinishedAt = x.FinishedAt.Add(time.Second) })
	stopped := with(exited(143), func(x *failure.Exit) { x.Cause = failure.CauseOrdered; x.FinishedAt = start })
	v := failure.Classify(failure.AttemptEvidence{State: berth.Running, Attempt: 1, Retry: spec.RetryPolicy{MaxAttempts: 1},
		Ranks: []failure.RankEvidence{
			{Rank: 0, Machine: "m1", Exit: stopped},
			{Rank: 1, Machine: "m2", Exit: later},
			{Rank: 2, Machine: "m3", Exit: exited(3)},
		}})
	if v.Next != berth.Failed || v.ExitCode == nil || *v.ExitCode != 3 {
		t.Errorf("got %+v, want failed by exit code 3 of rank 2", v)
	}
}

// outputs returns declared outputs with these names.
func outputs(names ...string) []spec.Output {
	list := make([]spec.Output, len(names))
	for i, name := range names {
		list[i] = spec.Output{Name: name, Path: "/out/" + name}
	}
	return list
}
