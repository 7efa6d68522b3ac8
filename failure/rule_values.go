package failure

// Berth drains a machine as a lemon after LemonFaults failures that count against the
// machine, of jobs of LemonTenants tenants, within LemonHours. Several tenants must be
// affected, so that the broken program of one tenant cannot drain machines.
const (
	LemonFaults  = 3
	LemonTenants = 2
	LemonHours   = 24
)

// PoisonMinutes is the time after a job's start, in minutes, within which the death of its
// machine makes the job a suspect.
const PoisonMinutes = 10

// RuleRequeue is the name of the rule that runs a job again after its time limit. The
// settlement of later attempts counts the attempts with this rule.
const RuleRequeue = "time_limit_requeue"

// CheckMachines is the number of machines that one job may take out of service by failing the
// operator's check before its start, in consecutive attempts. After that, the job is the more
// likely cause: further failures are charged to the job, and take no machine out of service.
const CheckMachines = 2

// RuleCheckFailed and RuleCheckFailedAgain are the names of the rules for a failed check before
// the start. An attempt that ends by another rule ends the series of attempts that
// CheckMachines bounds.
const (
	RuleCheckFailed      = "check_failed"
	RuleCheckFailedAgain = "check_failed_again"
)

// Values and texts that several rules share.
const (
	none      = "-"     // a Hint: no hint, not even for the exit code
	unlimited = 1 << 30 // a number of Tries that no job reaches
	stallHint = "berth show has the evidence; raise stall.after or stall_timeout if the job may be idle for that long"
	oomHint   = "raise resources.memory, or set retry.on_oom: grow"
)

// stalls lists the rules for jobs without progress.
var stalls = []string{"stalled", "stalled_again", "stalled_same_step"}

// notExecutable is the exit code of a program that exists and may not be executed by this user.
const notExecutable = 126

// exitHints explains exit codes to users. Codes above 128 are 128 plus a signal.
var exitHints = map[int]string{
	notExecutable: "the command is not executable",

	127: "the command was not found",
	134: "aborted (SIGABRT)",
	135: "bus error (SIGBUS): check shm_size",
	137: "killed (SIGKILL) from outside Berth",
	139: "segmentation fault (SIGSEGV)",
	143: "terminated (SIGTERM) from outside Berth",
}
