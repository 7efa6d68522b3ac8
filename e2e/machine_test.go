package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflow/v1"

	"berth"
	"berth/db"
	"berth/e2e/commands"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/local"
	"berth/internal/control/cloud/offers"
	"berth/internal/control/controlplane"
	"berth/internal/control/scheduler"
	"berth/spec"
	"berth/wire"
)

// Machines of a cloud, with the programs that operators run: berthd runs berth-cloud, which runs
// berth-agent. The claims share a stack, since the programs take long to copy.
func TestMachinesOfACloud(t *testing.T) {
	t.Parallel()
	h := openCloudHost(t)
	for _, claim := range []struct {
		says string
		test func(*testing.T, *cloudHost)
	}{
		{"a machine is launched although the first answer is lost, works, is emptied and ends", launches},
		{"a launch whose workflow is lost before the join goes on, with one instance", outlivesItsWorkflow},
		{"a job that waits gets a machine, which ends once it is idle", bursts},
	} {
		if !t.Run(claim.says, func(t *testing.T) { claim.test(t, h) }) {
			return
		}
	}
}

// cloudHost is a stack whose provider lab creates machines on this host.
type cloudHost struct {
	*stack
	dir  string // of the instances
	lose string // file with which the next answer to a create is lost, and that is then removed
	gate string // file without which the agent of machine held does not start
	boot string // file without which the agents of the scaler's machines do not start
}

// held is the machine that waits for the gate.
const held berth.MachineID = "held"

// The program of the provider, and the one that it runs as a machine.
const (
	lossyProvider = `#!/bin/sh
request=$(cat)
case $request in *'"call":"create"'*)
	if rm '%[1]s' 2>/dev/null; then
		printf %%s "$request" | "$@" >/dev/null
		exit 1
	fi
esac
printf %%s "$request" | "$@"
`
	gatedAgent = `#!/bin/sh
wait_for() { until [ -e "$1" ]; do sleep 0.02; done; }
case "$*" in *--machine=%[1]s\ *) wait_for '%[2]s' ;; *--machine=default-*) wait_for '%[3]s' ;; esac
exec '%[4]s' "$@"
`
	cloudFile = `
url: http://%s
providers:
  lab:
    kind: exec
    regions: [here]
    command: [%s, %s, local, --dir, %s, --agent, %s, --offers, %s, --, --runtime=fake, --no-gpus, --egress=off]
`
)

func openCloudHost(t *testing.T) *cloudHost {
	t.Helper()
	state, bin := t.TempDir(), t.TempDir()
	h := &cloudHost{dir: filepath.Join(state, "instances"), lose: filepath.Join(state, "lose"), gate: filepath.Join(state, "gate"),
		boot: filepath.Join(state, "boot")}
	if err := commands.Build(bin, commands.Shipped, "berth-cloud", "berth-agent"); err != nil {
		t.Fatal(err)
	}
	// New machines are given the address before the control plane listens.
	address, err := commands.Address()
	if err != nil {
		t.Fatal(err)
	}
	program, agent := filepath.Join(bin, "berth-cloud"), filepath.Join(bin, "berth-agent")
	lossy := write(t, bin, "provider.sh", lossyProvider, h.lose)
	gated := write(t, bin, "agent.sh", gatedAgent, held, h.gate, h.boot, agent)
	prices := write(t, bin, "offers.csv", "%s\nlocal,here,,small,on_demand,2,1024,0,,1,example value,2026-11-26\n", offers.Header)
	file := write(t, bin, "cloud.yaml", cloudFile, address, lossy, program, h.dir, gated, prices)
	t.Cleanup(func() { h.endAll(t, gated) }) // after the control plane
	h.stack = startWith(t, scheduler.Ages{}, func(c *controlplane.Config) { c.Listen, c.CloudFile = address, file })
	return h
}

// write writes a file, which can be run, and returns its path.
func write(t *testing.T, dir, name, format string, args ...any) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, fmt.Appendf(nil, format, args...), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// endAll ends the processes that a failed test has left.
func (h *cloudHost) endAll(t *testing.T, agent string) {
	p, err := local.New(local.Options{Dir: h.dir, Program: agent, Most: 1})
	if err != nil {
		t.Error(err)
		return
	}
	for _, record := range h.instances(t) {
		i := cloud.Instance{ID: "local-" + filepath.Base(record)}
		if err := p.Terminate(context.Background(), i); err != nil {
			t.Errorf("instance %s goes on: %v", i.ID, err)
		}
	}
}

// instances returns the folders of all instances that were ever created.
func (h *cloudHost) instances(t *testing.T) []string {
	t.Helper()
	records, err := filepath.Glob(filepath.Join(h.dir, "*", "instance.json"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range records {
		records[i] = filepath.Dir(records[i])
	}
	return records
}

// alive reports whether a process of the launch's instance lives: all of them hold its lock.
func (h *cloudHost) alive(t *testing.T, l wire.Launch) bool {
	t.Helper()
	lock, err := os.Open(filepath.Join(h.dir, strings.TrimPrefix(l.Instance, "local-"), "alive"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	return errors.Is(syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}

func (h *cloudHost) launch(t *testing.T, m berth.MachineID) {
	t.Helper()
	made, err := h.api.Launch(t.Context(), wire.LaunchRequest{Pool: spec.DefaultPool, Provider: "lab", Type: "small",
		Region: "here", Machine: m, Key: "launch-" + string(m)})
	if err != nil || len(made.Items) != 1 {
		t.Fatalf("launched %+v, %v", made.Items, err)
	}
}

// comesTo returns the launch of a machine once it meets a condition.
func (h *cloudHost) comesTo(t *testing.T, m berth.MachineID, what string, ok func(wire.Launch) bool) (l wire.Launch) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("the launch is %+v", l)
		}
	}()
	until(t, "the launch of machine "+string(m)+" "+what, func() bool {
		list, err := h.api.Launches(t.Context(), m, true)
		if berth.CodeOf(err) == berth.CodeUnavailable {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != 1 {
			t.Fatalf("launches of machine %s are %+v", m, list.Items)
		}
		l = list.Items[0]
		return ok(l)
	})
	return l
}

// after takes the next step of the machine's workflow at once, as if the pause before it had passed.
func (h *cloudHost) after(t *testing.T, pause time.Duration, m berth.MachineID) {
	t.Helper()
	h.ahead.Add(int64(pause))
	err := h.temporal.SignalWorkflow(t.Context(), wire.MachineWorkflowID(m), "", berth.SignalPoke, nil)
	if _, ended := errors.AsType[*serviceerror.NotFound](err); err != nil && !ended {
		t.Fatal(err)
	}
}

// serves waits until the machine is ready, and its launch has taken note of the join.
func (h *cloudHost) serves(t *testing.T, m berth.MachineID) wire.Launch {
	t.Helper()
	until(t, "machine "+string(m)+" is ready", func() bool {
		found, err := h.api.Machine(t.Context(), m)
		return err == nil && found.State == berth.MachineReady
	})
	h.after(t, 0, m)
	return h.comesTo(t, m, "serves", in(cloud.LaunchServing))
}

func in(state cloud.LaunchState) func(wire.Launch) bool {
	return func(l wire.Launch) bool { return l.State == string(state) }
}

// isProvedGone follows a launch whose machine is retired to the proof of its end. The two reads lie
// SettleTime apart, which the test does not wait for.
func (h *cloudHost) isProvedGone(t *testing.T, m berth.MachineID) wire.Launch {
	t.Helper()
	l := h.comesTo(t, m, "has asked for the end", func(l wire.Launch) bool {
		return l.State == string(cloud.LaunchTerminating) && l.Terminates > 0
	})
	until(t, "the process of machine "+string(m)+" is gone", func() bool { return !h.alive(t, l) })
	if found, err := h.api.Machine(t.Context(), m); err != nil || found.State != berth.MachineRetired {
		t.Errorf("machine %s is %+v, %v", m, found.State, err)
	}
	h.after(t, cloud.DefaultLimits.Look, m)
	l = h.comesTo(t, m, "has seen the end", func(l wire.Launch) bool { return l.InstanceState == string(cloud.Terminated) })
	first := *l.SeenAt
	for l.State != string(cloud.LaunchGone) {
		h.after(t, cloud.SettleTime, m)
		last := *l.SeenAt
		l = h.comesTo(t, m, "takes a step", func(l wire.Launch) bool {
			return l.State == string(cloud.LaunchGone) || l.SeenAt.After(last)
		})
	}
	if apart := l.SeenAt.Sub(first); apart < cloud.SettleTime {
		t.Errorf("the end is proved by reads that are %s apart", apart)
	}
	until(t, "the workflow of machine "+string(m)+" completes", func() bool {
		return h.workflow(t, m).GetStatus() == enums.WORKFLOW_EXECUTION_STATUS_COMPLETED
	})
	return l
}

// completed returns the number of steps that the machine's workflow has completed.
func (h *cloudHost) completed(t *testing.T, m berth.MachineID) (n int) {
	t.Helper()
	for _, kind := range kinds(h.historyOf(t, wire.MachineWorkflowID(m))) {
		if kind == enums.EVENT_TYPE_ACTIVITY_TASK_COMPLETED.String() {
			n++
		}
	}
	return n
}

// workflow returns the last run of the machine's workflow.
func (h *cloudHost) workflow(t *testing.T, m berth.MachineID) *workflow.WorkflowExecutionInfo {
	t.Helper()
	x, err := h.temporal.DescribeWorkflowExecution(t.Context(), wire.MachineWorkflowID(m), "")
	if err != nil {
		t.Fatal(err)
	}
	return x.GetWorkflowExecutionInfo()
}

func launches(t *testing.T, h *cloudHost) {
	const m berth.MachineID = "worker"
	if err := os.WriteFile(h.lose, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.launch(t, m)
	h.launch(t, m) // a repeat of the call
	h.serves(t, m)
	id := h.submit(t, jobSpec("done", "exit", "0"))
	if job := h.ends(t, id, berth.Succeeded); !slices.Equal(job.Attempts[0].Machines, []berth.MachineID{m}) {
		t.Errorf("the job ran on %v", job.Attempts[0].Machines)
	}
	lasting := h.submit(t, jobSpec("lasts", "trap-term", "143"))
	h.becomes(t, lasting, berth.Running)
	if _, err := h.api.Terminate(t.Context(), m, wire.TerminateRequest{IfIdle: true}); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a machine with work is terminated as an idle one: %v", err)
	}
	if _, err := h.api.Terminate(t.Context(), m, wire.TerminateRequest{Reason: "enough"}); err != nil {
		t.Fatal(err)
	}
	l := h.comesTo(t, m, "drains", in(cloud.LaunchDraining))
	if found, err := h.api.Machine(t.Context(), m); err != nil || found.State != berth.MachineDraining {
		t.Errorf("the machine is %s, %v", found.State, err)
	}
	tried := h.completed(t, m)
	h.after(t, 0, m)
	until(t, "a step finds work on the machine", func() bool { return h.completed(t, m) > tried })
	if job := h.job(t, lasting); job.Status != berth.Running || !h.alive(t, l) {
		t.Errorf("the running job is %s, its machine lives: %v", job.Status, h.alive(t, l))
	}
	if _, err := h.api.Cancel(t.Context(), lasting); err != nil {
		t.Fatal(err)
	}
	h.ends(t, lasting, berth.Canceled)
	h.after(t, 0, m)
	l = h.isProvedGone(t, m)
	if n := len(h.instances(t)); n != 1 || l.Sends < 2 || l.N != 1 {
		t.Errorf("%d instances were created, the launch is %+v", n, l)
	}
	record(t, "machine-launched", h.historyOf(t, wire.MachineWorkflowID(m)))
}

func outlivesItsWorkflow(t *testing.T, h *cloudHost) {
	before := len(h.instances(t))
	h.launch(t, held)
	h.comesTo(t, held, "runs", in(cloud.LaunchRunning))
	lost := h.workflow(t, held).GetExecution().GetRunId()
	if err := h.temporal.TerminateWorkflow(t.Context(), wire.MachineWorkflowID(held), "", "test"); err != nil {
		t.Fatal(err)
	}
	until(t, "the launch has another workflow", func() bool {
		// The dispatcher notices the loss by a row that is overdue. A step that was under way may write it once more.
		value[berth.MachineID](t, h.database, `UPDATE launches SET due_at = now() - interval '1 hour' WHERE machine = 'held' RETURNING machine`)
		x := h.workflow(t, held)
		return x.GetExecution().GetRunId() != lost && x.GetStatus() == enums.WORKFLOW_EXECUTION_STATUS_RUNNING
	})
	if err := os.WriteFile(h.gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.serves(t, held)
	if _, err := h.api.Terminate(t.Context(), held, wire.TerminateRequest{}); err != nil {
		t.Fatal(err)
	}
	l := h.isProvedGone(t, held)
	if n := len(h.instances(t)) - before; n != 1 || l.Sends < 1 || l.N != 1 {
		t.Errorf("%d instances were created, the launch is %+v", n, l)
	}
}

// bursts fills the machine on premises. A job that waits gets a machine of the scaler, and users see it boot.
func bursts(t *testing.T, h *cloudHost) {
	d, err := db.Open(t.Context(), h.database, db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	h.join("onprem", slog.New(slog.DiscardHandler))
	fills := jobSpec("fills", "trap-term", "143")
	all := spec.MilliCPU(64_000)
	fills.Resources.CPUs = &all
	running := h.submit(t, fills)
	h.becomes(t, running, berth.Running)
	small := cloud.Offer{CPUs: 2, MemoryMiB: 1024, Price: 1, Source: "example value", AsOf: time.Now(),
		Offering: cloud.Offering{Region: "here", Type: "small", Market: cloud.OnDemand}}
	if err := d.Offers.Replace(t.Context(), "lab", []cloud.Offer{small}, "user:test"); err != nil {
		t.Fatal(err)
	}
	policy := spec.Burst{Allow: []string{"lab/here"}, MaxMachines: 1, Idle: spec.Duration(time.Second),
		When: &spec.BurstWhen{PlannedWaitOver: spec.Duration(time.Second)}}
	if err := d.Burst.Set(t.Context(), h.job(t, running).Tenant, policy, "user:test"); err != nil {
		t.Fatal(err)
	}
	waits := h.submit(t, jobSpec("waits", "trap-term", "143"))
	var m berth.MachineID
	until(t, "the job waits for a machine that boots", func() bool {
		w := h.job(t, waits).Waiting
		if w == nil || w.Code != "provisioning" {
			return false
		}
		m = w.Cloud.Machines[0].Machine
		return strings.Contains(w.Message, "small in here, $1.00/h")
	})
	if e, err := h.api.Explain(t.Context(), waits); err != nil || len(e.Blockers) == 0 || e.Blockers[0].Code != "provisioning" ||
		!slices.Contains(e.Blockers[0].Machines, m) {
		t.Errorf("explanation %+v, %v", e, err)
	}
	if err := os.WriteFile(h.boot, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.becomes(t, waits, berth.Running)
	if job := h.job(t, waits); !slices.Equal(job.Attempts[0].Machines, []berth.MachineID{m}) || job.Waiting != nil {
		t.Errorf("the job runs on %v, and waits: %+v", job.Attempts[0].Machines, job.Waiting)
	}
	h.after(t, 0, m)
	if l := h.comesTo(t, m, "serves", in(cloud.LaunchServing)); l.CreatedBy != db.ScalerActor || l.StopAt != nil {
		t.Errorf("the launch is %+v", l)
	}
	if _, err := h.api.Cancel(t.Context(), waits); err != nil {
		t.Fatal(err)
	}
	h.ends(t, waits, berth.Canceled)
	until(t, "the idle machine drains", func() bool {
		found, err := h.api.Machine(t.Context(), m)
		// On a slow host the job may be shown as ended only after the machine has been retired.
		return err == nil && (found.State == berth.MachineDraining || found.State == berth.MachineRetired)
	})
	// The machine idles for a while before its end, which the test does not wait for.
	value[berth.MachineID](t, h.database, `UPDATE machines SET state_at = now() - interval '1 minute' WHERE id = '`+string(m)+`' RETURNING id`)
	h.comesTo(t, m, "ends", func(l wire.Launch) bool { return l.StopAt != nil })
	h.after(t, 0, m)
	h.after(t, 0, m)
	h.isProvedGone(t, m)
	if _, err := h.api.Cancel(t.Context(), running); err != nil {
		t.Fatal(err)
	}
	h.ends(t, running, berth.Canceled)
}
