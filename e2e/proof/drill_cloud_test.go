package proof_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/faultcloud"
	"berth/internal/lib/sealer"
	"berth/spec"
	"berth/wire"
)

// drillCloud is the file of --cloud in the drill.
const drillCloud = `url: http://127.0.0.1:1
offers: %s
providers:
  drill:
    kind: exec
    regions: [here]
    command: [%s, --file=%s]
`

const drillOffers = "provider,region,zone,type,market,cpus,memory_mib,gpus,gpu_type,price_per_hour,source,as_of\n" +
	"drill,here,,small,on_demand,2,2048,0,,0.7654321,example value,2026-11-26\n"

// TestDrillWithMachinesOfACloud restores a backup, with berthd backup restore and adopt, of a cluster whose machines a
// cloud has launched: some of them after the backup. The cloud lives on. Nothing alive is terminated, and the cloud gets
// no call of create or terminate before the adoption and a complete list of its instances.
func TestDrillWithMachinesOfACloud(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.image, s.flags = "test", []string{"--only", "postgres,temporal"}
	s.startDev()
	d := newCloudDrill(s)
	c := &controlPlane{s: s, listen: freeAddress(t), token: "berth_" + berth.NewSecret()[:12] + "_" + berth.NewSecret(), flags: d.flags}
	c.start()
	kept := d.fillBeforeBackup(c.listen)
	dir := filepath.Join(s.dir, "backup")
	c.berthd("backup", "create", dir, "--secret-key-file", d.keys)
	d.fillAfterBackup(c.listen)

	c.kill()
	failed := time.Now()
	if err := s.dev.end(syscall.SIGINT); err != nil {
		t.Errorf("berth-dev ended with %v", err)
	}
	if err := os.RemoveAll(filepath.Join(s.dir, "blobs")); err != nil {
		t.Fatal(err)
	}
	d.ignoreEnds(0)

	e := newStack(t)
	e.image, e.flags = s.image, s.flags
	e.startDev()
	d.stack = e
	n := &controlPlane{s: e, listen: c.listen, token: c.token, flags: c.flags}
	restored := time.Now()
	n.berthd("backup", "restore", dir, "--secret-key-file", d.keys)
	n.start()
	d.registers("old", restored)
	next := e.submit(on("old", e.whole("next")))
	n.wantQuarantine(next)
	if err := d.request("first"); berth.CodeOf(err) != berth.CodeUnavailable {
		t.Errorf("a launch in quarantine is answered with %v", err)
	}
	d.wantNoCall(failed, time.Now())

	adopted := time.Now() // or later: the leader may list the instances before the command returns
	out := n.berthd("backup", "adopt")
	if strings.Contains(out, string(kept)) {
		t.Errorf("the adoption says:\n%s", out)
	}
	e.becomes(next, berth.Running)
	t.Logf("from the loss until a new job runs: %s", time.Since(failed).Round(time.Second))
	d.wantAdopted(failed, adopted)
	if j, err := e.api.Job(t.Context(), kept); err != nil || j.Status != berth.Running || j.Attempt != 1 {
		t.Errorf("the job that runs since before the backup is %s, attempt %d: %v", j.Status, j.Attempt, err)
	}
}

// fillBeforeBackup launches the machines that the backup knows: one with a job, which it returns, one that joins after the
// backup, and one whose end the cloud ignores.
func (d *cloudDrill) fillBeforeBackup(api string) berth.JobID {
	d.t.Helper()
	d.launch("old", cloud.LaunchRunning)
	d.joins("old", api)
	kept := d.submit(on("old", d.whole("kept")))
	d.stack.becomes(kept, berth.Running)
	d.launch("young", cloud.LaunchRunning)
	d.launch("doomed", cloud.LaunchRunning)
	d.ignoreEnds(1000)
	d.accepts("terminate machine doomed", func(ctx context.Context) error {
		_, err := d.api.Terminate(ctx, "doomed", wire.TerminateRequest{Reason: "drill"})
		return err
	})
	d.becomes("doomed", cloud.LaunchTerminating)
	d.wantCall("terminate", "doomed", time.Time{})
	return kept
}

// fillAfterBackup launches the machines that the backup lacks: one with a job, and one without an agent.
func (d *cloudDrill) fillAfterBackup(api string) {
	d.t.Helper()
	d.joins("young", api)
	d.launch("later", cloud.LaunchRunning)
	d.joins("later", api)
	lost := d.submit(on("later", d.whole("lost")))
	d.stack.becomes(lost, berth.Running)
	d.launch("boots", cloud.LaunchRunning)
}

// registers waits until a machine is ready and was seen after a time.
func (d *cloudDrill) registers(id berth.MachineID, after time.Time) {
	d.t.Helper()
	until(d.t, "machine "+string(id)+" of the backup has registered", func(ctx context.Context) error {
		m, err := d.api.Machine(ctx, id)
		if err == nil && (m.State != berth.MachineReady || m.SeenAt == nil || m.SeenAt.Before(after)) {
			err = fmt.Errorf("it is %s, last seen %v", m.State, m.SeenAt)
		}
		return err
	})
}

// wantAdopted wants the adopted control plane to launch and terminate again, only after a complete list of the
// instances, and to let every machine live that was not terminated before.
func (d *cloudDrill) wantAdopted(failed, adopted time.Time) {
	d.t.Helper()
	d.launch("first", cloud.LaunchRunning)
	d.wantCall("terminate", "doomed", failed)
	listed := d.listed()
	if listed.Before(adopted) {
		d.t.Errorf("the instances were listed at %s, before the adoption at %s", listed, adopted)
	}
	d.wantNoCall(failed, listed)
	for _, m := range []berth.MachineID{"later", "boots"} {
		d.becomes(m, cloud.LaunchRunning, cloud.LaunchServing)
	}
	d.wantAlive("old", "young", "later", "boots", "first")
	for _, a := range d.agents {
		if !a.running() {
			d.t.Errorf("the agent of a machine has ended: %v", a.err)
		}
	}
}

// on lets a job run on one machine.
func on(m berth.MachineID, j spec.Job) spec.Job {
	j.Placement.Constraint = fmt.Sprintf("machine.labels.lane == %q", m)
	return j
}

// cloudDrill is a cloud, and the stack that uses it now.
type cloudDrill struct {
	*stack
	first  *stack // has the folders of the agents
	cloud  *faultcloud.Cloud
	flags  []string // of berthd
	keys   string   // file of berthd's keys
	agents []*process
}

// newCloudDrill prepares a cloud without instances.
func newCloudDrill(s *stack) *cloudDrill {
	s.t.Helper()
	dir := filepath.Join(s.dir, "cloud")
	d := &cloudDrill{stack: s, first: s, cloud: faultcloud.New(filepath.Join(dir, "cloud.json"), time.Now)}
	file, keys, prices := filepath.Join(dir, "cloud.yaml"), filepath.Join(dir, "secret-key"), filepath.Join(dir, "offers.csv")
	err := errors.Join(
		os.Mkdir(dir, 0o700),
		os.WriteFile(prices, []byte(drillOffers), 0o600),
		os.WriteFile(file, fmt.Appendf(nil, drillCloud, prices, program(s.t, "faultcloud"), d.cloud.Path), 0o600),
		sealer.Make(keys),
	)
	if err != nil {
		s.t.Fatal(err)
	}
	d.keys, d.flags = keys, []string{"--cloud", file, "--secret-key-file", keys}
	return d
}

// request requests a machine.
func (d *cloudDrill) request(m berth.MachineID) error {
	_, err := d.api.Launch(d.t.Context(), wire.LaunchRequest{Pool: spec.DefaultPool, Provider: "drill", Region: "here", Type: "small",
		Machine: m, Key: string(m)})
	return err
}

// launch requests a machine, and waits until its launch is in a state.
func (d *cloudDrill) launch(m berth.MachineID, want cloud.LaunchState) {
	d.t.Helper()
	d.accepts("launch machine "+string(m), func(context.Context) error { return d.request(m) })
	d.becomes(m, want)
}

// becomes waits until the launch of a machine is in one of the states.
func (d *cloudDrill) becomes(m berth.MachineID, want ...cloud.LaunchState) {
	d.t.Helper()
	until(d.t, fmt.Sprintf("the launch of machine %s is %v", m, want), func(ctx context.Context) error {
		page, err := d.api.Launches(ctx, m, true)
		if err != nil {
			return err
		}
		if len(page.Items) != 1 || !slices.Contains(want, cloud.LaunchState(page.Items[0].State)) {
			return fmt.Errorf("its launches are %+v", page.Items)
		}
		return nil
	})
}

// joins starts the agent of a machine with the join token that the cloud has received, and waits until the machine is
// ready.
func (d *cloudDrill) joins(m berth.MachineID, api string) {
	d.t.Helper()
	p, err := startProcess(filepath.Join(d.dir, "agent-"+string(m)+".log"), []string{"BERTH_JOIN_TOKEN=" + d.instance(m).Join},
		program(d.t, "berth-agent"), "--server", "http://"+api, "--machine", string(m), "--labels", "lane="+string(m), "--runtime", "fake",
		"--cpus", "2", "--memory", "2GiB", "--no-gpus", "--state-dir", d.first.agentDir(string(m)), "--host-boot", "boot-of-"+string(m))
	if err != nil {
		d.t.Fatal(err)
	}
	d.first.others, d.agents = append(d.first.others, p), append(d.agents, p)
	until(d.t, "machine "+string(m)+" is ready", func(ctx context.Context) error {
		found, err := d.api.Machine(ctx, m)
		if err == nil && found.State != berth.MachineReady {
			err = fmt.Errorf("it is %s: %s", found.State, found.Reason)
		}
		return err
	})
	d.becomes(m, cloud.LaunchServing)
}

// instance returns the one instance of a machine.
func (d *cloudDrill) instance(m berth.MachineID) faultcloud.Instance {
	d.t.Helper()
	state, err := d.cloud.Read()
	if err != nil {
		d.t.Fatal(err)
	}
	var of []faultcloud.Instance
	for _, i := range state.Instances {
		if i.Machine == m {
			of = append(of, i)
		}
	}
	if len(of) != 1 {
		d.t.Fatalf("the cloud has %d instances of machine %s: %+v", len(of), m, of)
	}
	return of[0]
}

// ignoreEnds lets a number of calls of terminate succeed without effect.
func (d *cloudDrill) ignoreEnds(n int) {
	d.t.Helper()
	if err := d.cloud.Change(func(s *faultcloud.State) { s.Ignore = n }); err != nil {
		d.t.Fatal(err)
	}
}

// calls returns the calls of create and terminate within a time.
func (d *cloudDrill) calls(from, to time.Time) []faultcloud.Call {
	d.t.Helper()
	all, err := d.cloud.Calls()
	if err != nil {
		d.t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(c faultcloud.Call) bool { return !c.At.After(from) || !c.At.Before(to) })
}

// wantCall waits for a call about a machine after a time.
func (d *cloudDrill) wantCall(kind string, m berth.MachineID, after time.Time) {
	d.t.Helper()
	until(d.t, fmt.Sprintf("there is a call of %s for machine %s", kind, m), func(context.Context) error {
		if slices.ContainsFunc(d.calls(after, time.Now()), func(c faultcloud.Call) bool { return c.Call == kind && c.Machine == m }) {
			return nil
		}
		return errors.New("there is none yet")
	})
}

// wantNoCall wants no call within a time.
func (d *cloudDrill) wantNoCall(from, to time.Time) {
	d.t.Helper()
	for _, c := range d.calls(from, to) {
		d.t.Errorf("%s of machine %s at %s, between %s and %s", c.Call, c.Machine, c.At, from, to)
	}
}

// listed returns the time of the first complete list of instances since the restore.
func (d *cloudDrill) listed() time.Time {
	d.t.Helper()
	at, err := pgx.CollectExactlyOneRow(d.query(`
		SELECT s.listed_at
		FROM cloud_listings s
		JOIN cluster c ON c.incarnation = s.incarnation
		WHERE s.provider = 'drill' AND c.incarnation > 1`), pgx.RowTo[time.Time])
	if err != nil {
		d.t.Fatalf("the instances were not listed since the restore: %v", err)
	}
	return at
}

// wantAlive wants the instances of machines to exist, without any call that ends them.
func (d *cloudDrill) wantAlive(machines ...berth.MachineID) {
	d.t.Helper()
	for _, m := range machines {
		if i := d.instance(m); i.State == cloud.Terminated {
			d.t.Errorf("the instance of machine %s is %s", m, i.State)
		}
		if slices.ContainsFunc(d.calls(time.Time{}, time.Now()), func(c faultcloud.Call) bool { return c.Call == "terminate" && c.Machine == m }) {
			d.t.Errorf("machine %s was terminated", m)
		}
	}
}
