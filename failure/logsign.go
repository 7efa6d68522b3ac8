package failure

import "strings"

// LogSign is the cause of a failure that the last lines of a member's log reveal.
// The agent searches for it, so that the log itself need not be sent.
type LogSign string

// The signs, in the order in which they are looked for: a broken communication
// is often the echo of another fault on the same member, so it comes last.
const (
	SignCUDAOOM       LogSign = "cuda_oom"
	SignIllegalAccess LogSign = "illegal_access"
	SignCommunication LogSign = "communication"
)

// SignLines is how many of the last lines of a log are looked at.
const SignLines = 200

// LogRules lists the phrases of each sign; one phrase in a line is enough. They are
// messages of PyTorch, JAX and NCCL, in lower case.
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
}

// SignOf reads the last lines of a log, "" if they say nothing known.
func SignOf(lines []string) LogSign {
	if len(lines) > SignLines {
		lines = lines[len(lines)-SignLines:]
	}
	text := strings.ToLower(strings.Join(lines, "\n"))
	for _, rule := range LogRules {
		for _, phrase := range rule.Phrases {
			if strings.Contains(text, phrase) {
				return rule.Sign
			}
		}
	}
	return ""
}
