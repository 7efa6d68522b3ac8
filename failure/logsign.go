package failure

import "strings"

// LogSign is the cause of a failure by the last lines of a member's log. The agent searches
// the log itself, so that the log need not be sent for a verdict.
type LogSign string

// The signs, in the order of the search. A broken communication is often the effect of
// another fault on the same member. A missing right decides no rule and only adds a hint, so it comes last.
const (
	SignCUDAOOM       LogSign = "cuda_oom"
	SignIllegalAccess LogSign = "illegal_access"
	SignCommunication LogSign = "communication"
	SignPermission    LogSign = "permission"
)

// SignLines is the number of last lines of a log that are searched.
const SignLines = 200

// LogRules lists the phrases of each sign; one phrase in a line is enough. They are
// messages of PyTorch, JAX, NCCL and the C library, in lower case.
var LogRules = []struct {
	Sign    LogSign
	Phrases []string
}{
	{SignCUDAOOM, []string{"cuda out of memory", "cuda_error_out_of_memory", "torch.outofmemoryerror",
		"resource_exhausted: out of memory"}},
	{SignIllegalAccess, []string{"an illegal memory access was encountered", "cuda_error_illegal_address",
		"cudaerrorillegaladdress"}},
	{SignCommunication, []string{
		"nccl watchdog", "ncclsystemerror", "ncclremoteerror", "ncclinternalerror", "ncclunhandledcudaerror",
		"nccl error", "watchdog caught collective operation timeout", "connection closed by remote peer",
		"nccl communicator was aborted", "socket timeout while waiting for", "gloo connectfullmesh failed",
	}},
	{SignPermission, []string{"permission denied", "operation not permitted", "are you root?", "must be run as root",
		"superuser privileges", "unless you are root", "environmentnotwritableerror", "script as root",
		"root privileges"}},
}

// refusals are phrases of servers that refuse a login or a table. They contain a phrase of SignPermission, and other
// rights of the container would not help.
var refusals = strings.NewReplacer("permission denied (publickey", "", "permission denied for table", "",
	"permission denied for schema", "", "permission denied for relation", "", "permission denied for database", "")

// SignOf returns the sign in the last lines of a log, or "" if they contain no phrase of
// LogRules.
func SignOf(lines []string) LogSign {
	if len(lines) > SignLines {
		lines = lines[len(lines)-SignLines:]
	}
	text := refusals.Replace(strings.ToLower(strings.Join(lines, "\n")))
	for _, rule := range LogRules {
		for _, phrase := range rule.Phrases {
			if strings.Contains(text, phrase) {
				return rule.Sign
			}
		}
	}
	return ""
}
