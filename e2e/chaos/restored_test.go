package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"berth"
	"berth/db/dbtest"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/faultcloud"
	"berth/spec"
	"berth/wire"
)

// TestARestoredDatabaseKillsNoMachineOfACloud puts a backup back that lacks the newest machines, and the jobs on them.
// The clock of launches is ten times faster, so a sweep runs each six seconds. It belongs to make proof-launches.
func TestARestoredDatabaseKillsNoMachineOfACloud(t *testing.T) {
	if *launchesWanted == 0 {
		return
	}
	t.Parallel()
	p := startProof(t, tenfold, idleAfter)
	// Machines that the backup knows: one with a job, one that joins after the backup, one that never joins.
	p.must(p.order("old"))
	p.must(p.joins("old"))
	kept := p.runs("old")
	p.must(errors.Join(p.order("young"), p.order("empty")))
	mark := p.watermark()
	file := filepath.Join(t.TempDir(), "dump")
	dbtest.Dump(t, p.postgres.URL(databaseURL), file)

	// Machines that it lacks: one with a job, one without an agent, one that has already ended.
	for _, m := range []berth.MachineID{"later", "boots", "ended"} {
		p.must(p.order(m))
	}
	p.must(p.joins("young"))
	p.must(p.joins("later"))
	p.runs("young")
	p.runs("later")
	p.must(errors.Join(p.terminate("ended")(), p.wantLaunch("ended", cloud.LaunchGone)()))

	// A restore is noticed by the number that the object store has and the backup lacks.
	p.must(await("another watermark is granted", func() error {
		if p.watermark() <= mark {
			return errors.New("it is still the same")
		}
		return nil
	}))

	at := p.restore(file)
	joinless := p.unended(at, "boots", "empty")
	p.must(await("a launch is admitted", func() error { return p.order("first") }))
	p.wantListedFirst(at)
	p.wantAdopted("later")
	if slices.Contains(joinless, "boots") {
		p.wantAdopted("boots")
	}
	p.wantAnotherToken("ended")

	// Time for the sweep to end stray instances, and for the limit of a join.
	of, err := p.instancesOf("boots")
	p.must(err)
	passed := of[0].Created.Add(max(cloud.SweepAge, cloud.DefaultLimits.JoinLimit) + 3*time.Minute)
	p.must(await("the limits pass", func() error {
		if left := passed.Sub(p.clock(time.Now())); left > 0 {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	}))
	p.wantAlive(at, "old", "young", "later")
	p.wantAlive(at, joinless...)
	job, err := p.api.Job(t.Context(), kept)
	if err != nil || job.Status != berth.Running || job.Attempt != 1 {
		t.Errorf("the job that has run since before the backup is %s, attempt %d: %v", job.Status, job.Attempt, err)
	}
	for _, agent := range p.agents["cloud"] {
		if !agent.running() {
			t.Errorf("the agent of machine %s has ended: %s", agent.name, tail(agent.log()))
		}
	}
}

// watermark returns the newest one that the database has granted.
func (p *proof) watermark() (n int64) {
	p.t.Helper()
	p.must(p.database.QueryRow(p.t.Context(), `SELECT coalesce(max(granted), 0) FROM watermark_branches`).Scan(&n))
	return n
}

// must fails the test at an error.
func (p *proof) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// order launches a machine and waits until its instance was seen.
func (p *proof) order(m berth.MachineID) error {
	_, err := p.api.Launch(context.Background(), wire.LaunchRequest{Pool: spec.DefaultPool, Provider: "chaos", Region: "here",
		Type: "small", Machine: m, Key: string(m)})
	if err != nil {
		return lasting(err)
	}
	return p.wantLaunch(m, cloud.LaunchRunning)()
}

// joins starts the agent of a machine, and waits until the launch knows.
func (p *proof) joins(m berth.MachineID) error {
	if _, err := p.board(m, "--labels", "lane="+string(m)); err != nil {
		return err
	}
	return errors.Join(p.wantLaunch(m, cloud.LaunchServing)(), await("machine "+string(m)+" is ready", func() error {
		found, err := p.api.Machine(context.Background(), m)
		if err == nil && found.State != berth.MachineReady {
			err = fmt.Errorf("it is %s: %s", found.State, found.Reason)
		}
		return err
	}))
}

// runs returns a job once it runs on a machine.
func (p *proof) runs(m berth.MachineID) berth.JobID {
	p.t.Helper()
	cpus, memory := spec.MilliCPU(500), spec.MiB(64)
	job, _, err := p.api.Submit(p.t.Context(), spec.Job{Name: "on-" + string(m), Image: "testprog", Command: []string{"trap-term", "143"},
		Resources: spec.Resources{CPUs: &cpus, Memory: &memory},
		Placement: spec.Placement{Constraint: "machine.labels.lane == " + strconv.Quote(string(m))}}, "on-"+string(m))
	p.must(err)
	p.must(await("the job on machine "+string(m)+" runs", func() error {
		j, err := p.api.Job(context.Background(), job.ID)
		if err == nil && j.Status != berth.Running {
			err = fmt.Errorf("it is %s", j.Status)
		}
		return err
	}))
	return job.ID
}

// restore puts the backup back under the stopped control plane, and returns the time at which that starts again.
func (p *proof) restore(file string) time.Time {
	p.t.Helper()
	all := byName(p.plane)
	var ends, starts errgroup.Group
	for _, one := range all {
		ends.Go(func() error { return one.end(syscall.SIGTERM) })
	}
	p.must(ends.Wait())
	dbtest.Restore(p.t, p.postgres.URL(databaseURL), file)
	at := time.Now()
	for _, one := range all {
		starts.Go(one.up)
	}
	p.must(starts.Wait())
	return at
}

// wantListedFirst wants no call of create or terminate between the restore and the first complete listing.
func (p *proof) wantListedFirst(restored time.Time) {
	p.t.Helper()
	var listed time.Time
	var leapt bool
	err := p.database.QueryRow(p.t.Context(), `
		SELECT s.listed_at, s.incarnation = c.incarnation AND c.incarnation > 1
		FROM cloud_listings s, cluster c
		WHERE s.provider = 'chaos'`).Scan(&listed, &leapt)
	if err != nil || !leapt {
		p.t.Fatalf("the instances were not listed since the restore: %v", err)
	}
	calls, err := p.cloud.Calls()
	p.must(err)
	for _, c := range calls {
		if c.At.After(restored) && c.At.Before(listed) {
			p.t.Errorf("%s of machine %s at %s, before the listing at %s", c.Call, c.Machine, clock(c.At), clock(listed))
		}
	}
}

// unended returns the machines of a list that nothing terminated before a time. On a slow host, the limit of the join
// may have ended a machine without an agent before the restore.
func (p *proof) unended(before time.Time, machines ...berth.MachineID) []berth.MachineID {
	p.t.Helper()
	calls, err := p.cloud.Calls()
	p.must(err)
	return slices.DeleteFunc(machines, func(m berth.MachineID) bool {
		return slices.ContainsFunc(calls, func(c faultcloud.Call) bool {
			return c.Machine == m && c.Call == "terminate" && c.At.Before(before)
		})
	})
}

// wantAdopted wants a launch with the number and token of each instance that the backup lacks and that still exists. The
// launch is serving once the machine has registered again.
func (p *proof) wantAdopted(machines ...berth.MachineID) {
	p.t.Helper()
	for _, m := range machines {
		p.must(p.wantLaunch(m, cloud.LaunchRunning, cloud.LaunchServing)())
		of, err := p.instancesOf(m)
		p.must(err)
		var token, instance string
		var n int
		err = p.database.QueryRow(p.t.Context(), `SELECT token, n, instance FROM launches WHERE machine = $1`, m).Scan(&token, &n, &instance)
		if err != nil || token != of[0].Token || n != of[0].N || instance != of[0].ID {
			p.t.Errorf("machine %s was adopted as launch %d with token %s and instance %s, the cloud has %+v: %v", m, n, token, instance, of[0], err)
		}
	}
}

// wantAnotherToken launches a machine again whose name and number the lost rows had.
func (p *proof) wantAnotherToken(m berth.MachineID) {
	p.t.Helper()
	_, err := p.api.Launch(p.t.Context(), wire.LaunchRequest{Pool: spec.DefaultPool, Provider: "chaos", Region: "here", Type: "small",
		Machine: m, Key: "again"})
	p.must(err)
	p.must(await("machine "+string(m)+" has a second instance", func() error {
		state, err := p.cloud.Read()
		if err != nil {
			return err
		}
		var of []faultcloud.Instance
		for _, i := range state.Instances {
			if i.Machine == m {
				of = append(of, i)
			}
		}
		if len(of) < 2 {
			return fmt.Errorf("it has %d", len(of))
		}
		if of[0].N != of[1].N || of[0].Token == of[1].Token {
			return fatal{fmt.Errorf("launches %d and %d have tokens %s and %s", of[0].N, of[1].N, of[0].Token, of[1].Token)}
		}
		return nil
	}))
}

// wantAlive wants the instances of machines to run, without any call since a time that ends them.
func (p *proof) wantAlive(since time.Time, machines ...berth.MachineID) {
	p.t.Helper()
	calls, err := p.cloud.Calls()
	p.must(err)
	for _, m := range machines {
		if of, err := p.instancesOf(m); err != nil || of[0].State == cloud.Terminated {
			p.t.Errorf("machine %s: %+v, %v", m, of, err)
		}
		if slices.ContainsFunc(calls, func(c faultcloud.Call) bool {
			return c.Machine == m && c.Call == "terminate" && c.At.After(since)
		}) {
			p.t.Errorf("machine %s was terminated", m)
		}
	}
}
