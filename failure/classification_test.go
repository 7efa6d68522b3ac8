package failure_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"berth"
	"berth/failure"
	"berth/internal/lib/golden"
)

// classificationDocument renders docs/reference/classification.md from the tables.
func classificationDocument() string {
	var b strings.Builder
	b.WriteString(`# How failures are classified

Generated from ` + "`failure.Rules`, `failure.LogRules` and `failure.Xids` by `go test ./failure -run Classification -update`" + `.

The rules are checked in this order. The first that matches decides, and the outcome of the attempt has its
name (` + "`reason.rule`" + `). A gang is judged by the first of its members that fails or becomes silent. *Retry* is the budget that the next
attempt is charged to: ` + "`user` is `retry.max_attempts`" + fmt.Sprintf(` (a number after it: at least this many runs), `+"`infra`"+` has %d
attempts since the last new verified checkpoint, `, failure.MaxInfraLosses) + "`none`" + ` is free. A spent budget makes the job failed and a dead letter.
*Wait* is the pause before the next attempt: ` + "`retry.backoff`" + ` is the one of the job file (by default 10 s,
doubled each time, at most 10 min, ±50 %); other pauses follow the same rule. *Elsewhere*: the next attempt avoids the blamed machine, if another
one fits. *Fault*: the failure counts against that machine; ` + fmt.Sprintf("%d faults of jobs of %d tenants within %d hours drain it.\n", failure.LemonFaults, failure.LemonTenants, failure.LemonHours))
	group := failure.Evidence(-1)
	for _, r := range failure.Rules {
		if r.Evidence != group {
			group = r.Evidence
			fmt.Fprintf(&b, "\n## %d. %s\n\n| rule | evidence | class | reason | then | blame | retry | wait | elsewhere | fault |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n", group+1, title(group.String()))
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", r.Name, r.Signal, r.Class, code(string(r.Reason)), then(r), r.Blame,
			budget(r), wait(r), mark(r.Elsewhere), mark(r.Fault))
	}
	fmt.Fprintf(&b, "\n## What the log says\n\nThe agent looks at the last %d lines of a rank that failed, in any case, in this order.\n\n| sign | any of |\n| --- | --- |\n", failure.SignLines)
	for _, r := range failure.LogRules {
		fmt.Fprintf(&b, "| `%s` | `%s` |\n", r.Sign, strings.Join(r.Phrases, "`, `"))
	}
	b.WriteString("\n## GPU errors (XID)\n\nFrom NVML events and from the kernel log. What is fatal outlives the agent's process, until the machine has rebooted.\n\n| XID | means | asks for |\n| --- | --- | --- |\n")
	for _, r := range failure.Xids {
		var list []string
		for _, x := range r.Xids {
			list = append(list, strconv.FormatUint(x, 10))
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", strings.Join(list, ", "), r.What, r.Verdict)
	}
	return b.String()
}

func title(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

func mark(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

func then(r failure.Rule) string {
	s := string(r.Next)
	if r.GrowMemory {
		s += ", with half as much memory again"
	}
	if r.DeadLetter {
		s += ", a dead letter"
	}
	return s
}

func budget(r failure.Rule) string {
	switch {
	case r.Next != berth.Retrying:
		return ""
	case r.Budget == failure.BudgetUser && r.Tries > 1 && r.Tries < 100:
		return fmt.Sprintf("%s, %d", r.Budget, r.Tries)
	}
	return string(r.Budget)
}

func wait(r failure.Rule) string {
	if r.Wait == failure.WaitNone {
		return ""
	}
	return string(r.Wait)
}

func TestClassificationDocumentMatchesTheTables(t *testing.T) {
	t.Parallel()
	const path = "../docs/reference/classification.md"
	want := classificationDocument()
	golden.Check(t, path, want)
}

func TestClassificationIsInTheOrderOfEvidence(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for i, r := range failure.Rules {
		if names[r.Name] || r.Name == "" || r.Signal == "" || r.Class == "" || r.Blame == "" || r.Budget == "" || r.Wait == "" || r.Next == "" {
			t.Errorf("rule %d (%s) is not whole, or not the first of its name", i, r.Name)
		}
		names[r.Name] = true
		if i > 0 && r.Evidence < failure.Rules[i-1].Evidence {
			t.Errorf("rule %s comes after evidence that is weaker", r.Name)
		}
		if r.Budget == failure.BudgetInfra && r.Blame != failure.BlameInfra || r.Fault && r.Blame != failure.BlameInfra {
			t.Errorf("rule %s charges infrastructure for what it blames on %s", r.Name, r.Blame)
		}
	}
}

func TestLogSigns(t *testing.T) {
	t.Parallel()
	long := slices.Repeat([]string{"step"}, failure.SignLines)
	for _, c := range []struct {
		lines []string
		want  failure.LogSign
	}{
		{nil, ""},
		{[]string{"loss 0.1", "Traceback (most recent call last):", "ValueError: shape"}, ""},
		{[]string{"[rank3]:[E] ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)"}, failure.SignCommunication},
		{[]string{"torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/x.cpp:1, remote process exited", "terminate called"}, failure.SignCommunication},
		{[]string{"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "NCCL watchdog thread terminated"}, failure.SignCUDAOOM},
		{[]string{"RuntimeError: CUDA error: an illegal memory access was encountered", "NCCL watchdog thread terminated"}, failure.SignIllegalAccess},
		{[]string{"PermissionError: [Errno 13] Permission denied: '/opt/x'"}, failure.SignPermission},
		{[]string{"Error: This command has to be run with superuser privileges"}, failure.SignPermission},
		{[]string{"error: you cannot perform this operation unless you are root."}, failure.SignPermission},
		{[]string{"EnvironmentNotWritableError: The current user does not have write permissions"}, failure.SignPermission},
		{[]string{"Please run this script as root"}, failure.SignPermission},
		{[]string{"This script requires root privileges"}, failure.SignPermission},
		{[]string{"git@github.com: Permission denied (publickey)."}, ""},
		{[]string{"ERROR: permission denied for table runs"}, ""},
		{[]string{"Permission denied (publickey).", "mkdir: cannot create '/opt/x': Permission denied"}, failure.SignPermission},
		{[]string{"mkdir: Permission denied", "NCCL watchdog thread terminated"}, failure.SignCommunication},
		{append([]string{"CUDA out of memory"}, long...), ""},
		{append(long, "CUDA out of memory"), failure.SignCUDAOOM},
	} {
		if got := failure.SignOf(c.lines); got != c.want {
			t.Errorf("%d lines, the last %q: sign %q, want %q", len(c.lines), c.lines[max(0, len(c.lines)-1):], got, c.want)
		}
	}
}

func TestXidsAskForWhatNVIDIASays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		want failure.XidVerdict
		xids []uint64
	}{
		{failure.XidReboot, []uint64{79}},
		{failure.XidHost, []uint64{74, 144, 145, 146, 147, 148, 149, 150}},
		{failure.XidDrain, []uint64{46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158}},
		{failure.XidRestart, []uint64{8, 11, 13, 25, 31, 32, 39, 40, 41, 68, 69, 70, 71, 72, 80, 94}},
		{failure.XidNote, []uint64{37, 38, 43, 44, 45, 63, 66, 67, 92, 93, 121, 137, 154}},
		{failure.XidUnknown, []uint64{0, 1, 999}},
	} {
		for _, x := range c.xids {
			if got := failure.XidAction(x); got != c.want {
				t.Errorf("XID %d asks to %s, want %s", x, got, c.want)
			}
		}
	}
	seen := map[uint64]bool{}
	for _, row := range failure.Xids {
		for _, x := range row.Xids {
			if seen[x] {
				t.Errorf("XID %d is in the table twice", x)
			}
			seen[x] = true
		}
	}
	for words, want := range map[string]failure.XidVerdict{
		"GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)":   failure.XidDrain,
		"GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)": failure.XidReboot,
		"GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)":            failure.XidHost,
		"GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)":      failure.XidDrain,
		"GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)":   failure.XidNote,
		"something else": failure.XidNote,
	} {
		if got := failure.XidWanted(154, words); got != want {
			t.Errorf("%q asks to %s, want %s", words, got, want)
		}
	}
	if got := failure.XidWanted(79, "GPU has fallen off the bus."); got != failure.XidReboot {
		t.Errorf("XID 79 asks to %s", got)
	}
}
