package proof_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth"
	"berth/activities/node/runtimetest"
	"berth/api/client"
	"berth/e2e/faultproxy"
	"berth/spec"
	"berth/wire"
)

var (
	oldPrograms = flag.String("old", "", "folder with berthd, berth-agent and berth-deadman of an earlier version, "+
		"which BenchmarkUpgrade upgrades")
	bothFor = flag.Duration("both-for", 2*time.Minute, "how long BenchmarkUpgrade runs replicas of both versions "+
		"at once")
)

const (
	upgradeMachines = 2
	lastingJobs     = 6
	spareJobs       = 10 // two for each step

	// reattachMust bounds the time in which members that an old agent started get a waiter in the new control plane.
	reattachMust = 5 * time.Minute
	// settleMust bounds the time from the stored end of a member to its settled job,
	// without the time in which no berthd ran.
	settleMust = 30 * time.Second
)

// upgrade is a stack of two agents over the host's engine, with jobs that run all
// the time, and programs that are replaced one after another.
type upgrade struct {
	*stack
	*upgradeLoad
	r        *replicas
	old      string                             // folder of the programs of the version before
	migrated bool                               // the schema is newer than the old berthd
	fronts   [upgradeMachines]*faultproxy.Proxy // the address of berthd for each agent
	agents   [upgradeMachines]*process
	folders  [upgradeMachines]string // of the program of each agent
	lasting  []berth.JobID           // the first one is at_most_one
	spare    []berth.JobID           // as old as the lasting ones; they end on a signal, a few in each step
	within   map[berth.JobID]string  // the containers of the lasting jobs
	done     []berth.JobID           // jobs that ended on the way, of one container each
}

// BenchmarkUpgrade upgrades a running cluster in each order, and kills all programs before the first step, between
// any two steps, and after the last one. No order may lose a container, spend an attempt, or leave an ended job
// unsettled.
//
//	go test ./e2e/proof -run '^$' -bench Upgrade -benchtime 1x -timeout 1h -args -old FOLDER
func BenchmarkUpgrade(b *testing.B) {
	if *oldPrograms == "" {
		b.Fatal("-old must name the folder with the programs of the version before: make upgrade-test builds them")
	}
	for _, order := range []struct {
		name string
		run  func(*upgrade)
	}{
		{"berthd first", func(u *upgrade) {
			u.step("berthd new, killed in its migrations", func() { u.replaceInterrupted(u.r.all[0]) })
			u.wantOldRefused()
			u.step("first agent new", func() { u.replaceAgent(0, "") })
			u.step("second agent new", func() { u.replaceAgent(1, "") })
		}},
		{"agents first", func(u *upgrade) {
			u.step("first agent new, berthd old", func() { u.replaceAgent(0, "") })
			u.step("second agent new, berthd old", func() { u.replaceAgent(1, "") })
			u.step("berthd new", func() { u.replaceBerthd(u.r.all[0]) })
			u.step("first agent old again", func() { u.replaceAgent(0, u.old) })
			u.step("first agent new again", func() { u.replaceAgent(0, "") })
		}},
		{"both versions at once", func(u *upgrade) {
			u.step("a new berthd next to the old one", func() { u.addReplica() })
			u.useBoth(*bothFor)
			u.wantNoOldCopies()
			u.step("agents new, both berthd", func() { u.replaceAgent(0, ""); u.replaceAgent(1, "") })
			u.step("both berthd new", func() { u.replaceBerthd(u.r.all[0]) })
		}},
	} {
		b.Run(order.name, func(b *testing.B) {
			u := startUpgrade(b, *oldPrograms)
			u.killAll()
			order.run(u)
			u.wantReattached()
			u.finish()
		})
	}
}

// startUpgrade starts a cluster of the programs of a folder, with jobs that last.
func startUpgrade(b *testing.B, folder string) *upgrade {
	b.Helper()
	s := newStack(b)
	s.image, s.machines = runtimetest.Image(b, ""), upgradeMachines
	s.flags = []string{"--only", "postgres,temporal"}
	s.startDev()
	u := &upgrade{stack: s, r: &replicas{s: s}, old: folder, folders: [upgradeMachines]string{folder, folder}}
	token := "berth_" + berth.NewSecret()[:12] + "_" + berth.NewSecret()
	u.r.all = []*replica{{s: s, name: "berthd-0", listen: freeAddress(b), token: token, folder: folder}}
	u.r.all[0].start()
	b.Cleanup(u.r.all[0].api.Close)
	var err error
	if u.r.front, err = faultproxy.Start(u.r.all[0].listen); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = u.r.front.Close() })
	s.connect("http://"+u.r.front.Address(), token)
	for i := range u.fronts {
		u.fronts[i] = s.link(u.r.all[0].listen)
		u.startAgent(i)
	}
	s.ready(upgradeMachines)
	for i := range lastingJobs {
		j := s.job(fmt.Sprintf("lasts-%d", i), "sleep", "1h")
		j.Placement.Strategy = "spread" // each machine has some
		if i == 0 {
			j.Execution = spec.AtMostOne
		}
		u.lasting = append(u.lasting, u.submit(j))
	}
	for i := range spareJobs {
		j := s.job(fmt.Sprintf("spare-%d", i), "trap-term", "0")
		j.Placement.Strategy = "spread"
		u.spare = append(u.spare, u.submit(j))
	}
	u.awaitStarted(u.lasting)
	for _, id := range u.spare {
		s.engine.awaitLine(id, "ready")
	}
	until(b, "every container runs", func(context.Context) error {
		u.within = s.engine.running()
		if have := len(u.within); have < lastingJobs+spareJobs {
			return fmt.Errorf("%d run", have)
		}
		return nil
	})
	u.upgradeLoad = startUpgradeLoad(s)
	return u
}

// awaitStarted waits until each job runs or has run.
func (u *upgrade) awaitStarted(ids []berth.JobID) {
	u.t.Helper()
	for _, id := range ids {
		until(u.t, "job "+string(id)+" starts", func(ctx context.Context) error {
			job, err := u.api.Job(ctx, id)
			if err == nil && job.StartedAt == nil {
				err = fmt.Errorf("it is %s: %+v", job.Status, job.Reason)
			}
			return err
		})
	}
}

// startAgent starts an agent from the folder that u has for it.
func (u *upgrade) startAgent(i int) {
	u.t.Helper()
	name := fmt.Sprintf("m%d", i+1)
	u.agents[i] = u.agentOf(name, u.folders[i], u.fronts[i].Address(), "32")
}

// agentOf starts an agent of a folder on the host's engine.
func (u *upgrade) agentOf(name, folder, server, cpus string) *process {
	u.t.Helper()
	var join wire.JoinToken
	u.accepts("create a join token", func(ctx context.Context) (err error) {
		join, err = u.api.CreateJoinToken(ctx, spec.NewJoinToken{})
		return err
	})
	p, err := startProcess(filepath.Join(u.dir, "agent-"+name+".log"), []string{"BERTH_JOIN_TOKEN=" + join.Secret},
		programOf(u.t, folder, "berth-agent"), "--server", "http://"+server, "--machine", name,
		"--state-dir", u.agentDir(name), "--cpus", cpus, "--memory", "64GiB", "--no-gpus")
	if err != nil {
		u.t.Fatal(err)
	}
	u.others = append(u.others, p)
	return p
}

// replaceAgent stops an agent in order and starts the program of another folder.
func (u *upgrade) replaceAgent(i int, folder string) {
	u.t.Helper()
	if err := u.agents[i].end(syscall.SIGTERM); err != nil {
		u.t.Errorf("an agent did not end in order: %v", err)
	}
	u.folders[i] = folder
	u.startAgent(i)
	u.awaitMachines()
}

// replaceBerthd ends a replica in order and starts the program of this repository in its place.
func (u *upgrade) replaceBerthd(p *replica) {
	u.t.Helper()
	if err := p.now.end(syscall.SIGTERM); err != nil {
		u.t.Errorf("%s did not end in order: %v", p.name, err)
	}
	p.folder, u.migrated = "", true
	p.start()
	u.awaitMachines()
}

// addReplica starts a berthd of this repository next to the first one. One agent
// reaches the one, one the other.
func (u *upgrade) addReplica() {
	u.t.Helper()
	first := u.r.all[0]
	p := &replica{s: u.stack, name: "berthd-1", listen: freeAddress(u.t), token: first.token}
	u.r.all, u.migrated = append(u.r.all, p), true
	p.start()
	u.t.Cleanup(p.api.Close)
	last := u.fronts[len(u.fronts)-1]
	last.SetTargets(p.listen)
	last.Reset()
}

// killAll kills every program with SIGKILL, one after another, and starts the same version again. An old berthd whose
// schema was upgraded lives on: it would not start again.
func (u *upgrade) killAll() {
	u.t.Helper()
	began := time.Now()
	for _, p := range u.r.all {
		if p.folder == "" || !u.migrated {
			p.now.kill()
			p.start()
		}
	}
	for i := range u.agents {
		u.agents[i].kill()
		u.startAgent(i)
	}
	u.awaitMachines()
	u.wantUntouched()
	fmt.Printf("all programs killed and started again: %s\n", time.Since(began).Round(time.Second))
}

// step does one step of an upgrade while jobs end: new ones before it, during it and
// after it, and right after it two that were started by the old programs. Then it kills all programs.
func (u *upgrade) step(name string, do func()) {
	u.t.Helper()
	began := time.Now()
	ending := make([]berth.JobID, 6)
	for i := range ending {
		ending[i] = u.submit(u.job("ending", "sleep", fmt.Sprintf("%ds", 2+2*i)))
	}
	u.awaitStarted(ending)
	do()
	took := time.Since(began)
	for _, id := range u.spare[:2] {
		u.engine.signal(id, "SIGTERM")
		ending = append(ending, id)
	}
	u.spare = u.spare[2:]
	after := []berth.JobID{u.submit(u.job("after", "exit", "0")), u.submit(u.job("after", "exit", "0"))}
	slowest := u.wantSettled(began.Add(took), append(ending, after...))
	u.done = slices.Concat(u.done, ending, after)
	u.wantSaved()
	u.nextStep()
	u.wantUntouched()
	fmt.Printf("%s: took %s; of %d jobs that ended meanwhile the slowest was settled %s after its stored end\n",
		name, took.Round(time.Second), len(ending)+len(after), slowest.Round(time.Millisecond))
	u.killAll()
}

// wantSettled waits for the success of jobs, and checks that each was settled soon
// after its end was stored and took one attempt. up is the time from which a berthd
// runs without interruption.
func (u *upgrade) wantSettled(up time.Time, ids []berth.JobID) (slowest time.Duration) {
	u.t.Helper()
	for _, id := range ids {
		if job := u.becomes(id, berth.Succeeded); len(job.Attempts) != 1 {
			u.t.Errorf("job %s took %d attempts", id, len(job.Attempts))
		}
		var s float64
		rows := u.query(`
			SELECT extract(epoch FROM j.finished_at - greatest(a.sealed_at, CASE WHEN j.finished_at > $2 THEN $2 END))::float8
			FROM jobs j JOIN allocations a ON a.job = j.id WHERE j.id = $1`, id, up)
		for rows.Next() {
			if err := rows.Scan(&s); err != nil {
				u.t.Fatal(err)
			}
		}
		rows.Close()
		took := time.Duration(s * float64(time.Second))
		if took > settleMust {
			u.t.Errorf("job %s was settled %s after its stored end", id, took)
		}
		slowest = max(slowest, took)
	}
	return slowest
}

// wantUntouched checks that the lasting jobs run in the containers in which they
// began.
func (u *upgrade) wantUntouched() {
	u.t.Helper()
	u.engine.wantAlive(u.within, u.lasting)
	for _, id := range u.lasting {
		job, err := u.api.Job(u.t.Context(), id)
		if err != nil || job.Status != berth.Running || len(job.Attempts) != 1 || job.Losses != 0 {
			u.t.Errorf("job %s is %s with %d attempts and %d losses: %v", id, job.Status, len(job.Attempts), job.Losses, err)
		}
	}
	u.wantLoadUntouched()
}

var waitersWaiting = regexp.MustCompile(`(?m)^berth_waiters\{state="waiting"\} (\d+)$`)

// waiters counts the members for which the replicas of this repository wait.
func (u *upgrade) waiters() (n int, err error) {
	for _, p := range u.r.all {
		if p.folder != "" {
			continue
		}
		r, err := http.Get("http://" + p.listen + "/metrics")
		if err != nil {
			return 0, err
		}
		text, err := io.ReadAll(r.Body)
		if err := errors.Join(err, r.Body.Close()); err != nil {
			return 0, err
		}
		found := waitersWaiting.FindSubmatch(text)
		if found == nil {
			return 0, fmt.Errorf("%s does not show its waiters", p.name)
		}
		one, err := strconv.Atoi(string(found[1]))
		if err != nil {
			return 0, err
		}
		n += one
	}
	return n, nil
}

// wantReattached waits until every member that runs all the time has a waiter in the control plane.
func (u *upgrade) wantReattached() {
	u.t.Helper()
	began := time.Now()
	members := len(u.lasting) + len(u.spare) + u.lastingMembers()
	ctx, cancel := context.WithTimeout(u.t.Context(), reattachMust)
	defer cancel()
	err := await(ctx, func(context.Context) error {
		n, err := u.waiters()
		if err == nil && n < members {
			err = fmt.Errorf("%d of %d members have a waiter", n, members)
		}
		return err
	})
	if err != nil {
		u.t.Errorf("not within %s: %v", reattachMust, err)
	}
	u.wantUntouched()
	fmt.Printf("all %d members have a waiter %s after the last step\n", members, time.Since(began).Round(time.Second))
}

// useBoth submits, runs and cancels jobs at both replicas for a while.
func (u *upgrade) useBoth(d time.Duration) {
	u.t.Helper()
	var mu sync.Mutex
	var done, canceled []berth.JobID
	var users sync.WaitGroup
	deadline := time.Now().Add(d)
	for i, p := range u.r.all {
		other := u.r.all[1-i].api
		users.Go(func() {
			for n := 0; time.Now().Before(deadline); n++ {
				command := []string{"sleep", fmt.Sprintf("%ds", n%3)}
				if n%4 == 3 {
					command = []string{"sleep", "1h"}
				}
				id, err := u.useOnce(p.api, other, n%4 == 3, command)
				if err != nil {
					u.t.Errorf("a user of %s: %v", p.name, err)
					return
				}
				mu.Lock()
				if n%4 == 3 {
					canceled = append(canceled, id)
				} else {
					done = append(done, id)
				}
				mu.Unlock()
			}
		})
	}
	users.Wait()
	slowest := u.wantSettled(time.Time{}, done)
	u.done = slices.Concat(u.done, done)
	for _, id := range canceled {
		if job := u.becomes(id, berth.Canceled); len(job.Attempts) > 1 {
			u.t.Errorf("canceled job %s took %d attempts", id, len(job.Attempts))
		}
	}
	fmt.Printf("both versions for %s: %d jobs ended, the slowest %s after its stored end, %d canceled\n",
		d, len(done), slowest.Round(time.Millisecond), len(canceled))
	if len(done) < 10 || len(canceled) < 3 {
		u.t.Errorf("only %d jobs ended and %d were canceled", len(done), len(canceled))
	}
}

// useOnce submits a job at one replica and waits for its end at the other one,
// where it is canceled once it runs if cancel says so.
func (u *upgrade) useOnce(one, other *client.Client, cancel bool, command []string) (berth.JobID, error) {
	ctx, stop := context.WithTimeout(u.t.Context(), patience)
	defer stop()
	job, _, err := one.Submit(ctx, u.job("both", command...), berth.NewSecret())
	if err != nil {
		return "", err
	}
	if cancel {
		err := await(ctx, func(ctx context.Context) error {
			now, err := other.Job(ctx, job.ID)
			if err == nil && now.Status != berth.Running {
				err = fmt.Errorf("job %s is %s", job.ID, now.Status)
			}
			return err
		})
		if err != nil {
			return "", err
		}
		if _, err := other.Cancel(ctx, job.ID); err != nil {
			return "", err
		}
	}
	_, err = other.Wait(ctx, job.ID)
	return job.ID, err
}

// finish ends all that runs, and checks that everything ran once.
func (u *upgrade) finish() {
	u.t.Helper()
	u.done = slices.Concat(u.done, u.finishLoad())
	last := u.agentOf("m3", "", u.r.all[0].listen, "48")
	u.machines++
	u.awaitMachines()
	u.done = append(u.done, u.queued...)
	for _, id := range u.queued {
		if job := u.becomes(id, berth.Succeeded); len(job.Attempts) != 1 {
			u.t.Errorf("job %s, which waited during the upgrade, took %d attempts", id, len(job.Attempts))
		}
	}
	u.lasting = append(u.lasting, u.spare...)
	for _, id := range u.lasting {
		u.cancel(id)
	}
	for _, id := range u.lasting {
		u.becomes(id, berth.Canceled)
	}
	u.wantNothingReserved()
	u.engine.wantOneEach(slices.Concat(u.lasting, u.done))
	u.engine.wantEmpty()
	u.wantReplayed()
	if err := last.end(syscall.SIGTERM); err != nil {
		u.t.Errorf("the agent of m3 did not end in order: %v", err)
	}
}
