package proof_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/events"
	"github.com/jackc/pgx/v5"

	"berth"
	"berth/e2e/faultproxy"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// Timers of the stacks below, short enough to watch and long enough for a busy
// machine.
const (
	partSuspect = 8 * time.Second  // more than the long poll of a sync
	partLost    = 12 * time.Second // of the jobs that are to be lost, from then on; see loseAfter
	partPatient = 5 * time.Minute  // of the jobs that are not to be lost
)

// healLimit is how long a zombie's container may live after its machine is back,
// as promised. On a crowded machine the limit is a multiple of the time in which the
// same stack stops a container of a machine that was never away.
const (
	healLimit = 10 * time.Second
	healOver  = 5
)

func TestF24F25APartitionedMachineIsReplacedAndItsZombieWritesNothing(t *testing.T) {
	t.Parallel()
	s, c := onLinks(t)
	gpus := filepath.Join(s.dir, "gpus.yaml")
	if err := os.WriteFile(gpus, []byte("- {model: H100, memory: 80GiB, count: 1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := s.link(c.listen)
	s.agent("m1", link.Address(), "--cpus", "1", "--fake-gpus", gpus)
	s.agent("m2", c.listen, "--cpus", "8", "--fake-gpus", gpus)
	s.ready(2)
	one := spec.MilliGPU(1000)
	id := s.submit(s.endless("fenced", patience, func(j *spec.Job) { j.Resources.GPUs = one }))
	s.runsOn(id, 1, "m1")
	zombie := s.engine.running()[id]

	link.Cut()
	s.loseAfter(partLost, id)
	s.placedAgain(id)
	s.loseAfter(patience, id)
	s.runsOn(id, 2, "m2")
	if !s.engine.alive(zombie) {
		t.Error("the control plane's absence ended a container")
	}
	if m := s.machine("m1"); m.Used.GPUMilli != 1000 {
		t.Errorf("m1 uses %+v while its container lives: a timeout freed it", m.Used)
	}
	s.wantRefused("m1", id, 1)

	usual := s.stopTime("m2")
	stalls := s.watchStalls()
	healed := time.Now()
	link.Heal()
	until(t, "m1 is free", func(context.Context) error {
		m := s.machine("m1")
		if m.Used != (berth.Capacity{}) {
			return fmt.Errorf("it uses %+v", m.Used)
		}
		if s.engine.alive(zombie) {
			t.Fatal("a device was freed while the zombie lived")
		}
		return nil
	})
	died := s.engine.died(zombie)
	wantWithin(t, "the zombie's container died, the link healed,", died.Sub(healed), max(healLimit, healOver*usual), stalls.total())
	job := s.runsOn(id, 2, "m2")
	if first := job.Attempts[0]; first.Outcome == nil || first.Outcome.Code != berth.ReasonMachineLost || job.Losses != 1 {
		t.Errorf("the first attempt ended by %+v, with %d losses", first.Outcome, job.Losses)
	}
	s.dismiss(id)
}

func TestF23F26F27F29BadLinksLoseNoWork(t *testing.T) {
	t.Parallel()
	s, c := onLinks(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	names := []string{"brief", "oneway", "flaps", "noisy"}
	links, jobs := map[string]*faultproxy.Proxy{}, map[string]berth.JobID{}
	for _, name := range names {
		links[name] = s.link(c.listen)
		s.agent(name, links[name].Address(), "--cpus", "1", "--no-gpus")
	}
	s.agent("spare", c.listen, "--cpus", "8", "--no-gpus")
	s.ready(len(names) + 1)
	for _, name := range names {
		jobs[name] = s.submit(s.endless(name, partPatient, func(j *spec.Job) {
			j.Placement.Constraint = fmt.Sprintf("machine.id in [%q, %q]", name, "spare")
		}))
	}
	for _, name := range names {
		s.runsOn(jobs[name], 1, berth.MachineID(name))
	}
	lived := s.engine.running()
	s.loseAfter(partLost, jobs["flaps"])

	links["brief"].Cut()                                          // F23: both ways, healed in time
	links["oneway"].Cut(faultproxy.ToClient)                      // F26: its words arrive, the answers do not
	links["noisy"].Delay((partSuspect*9/10 - berth.SyncWait) / 2) // F29: heard after nine tenths of the time after which a machine is suspect
	var weather sync.WaitGroup
	weather.Go(func() { // F27, and the losses of F29
		r := rand.New(rand.NewPCG(seed, 0))
		turn := time.NewTicker(time.Second)
		defer turn.Stop()
		for range int(partLost/time.Second)/2 + 1 { // two seconds each: longer than its patience in all
			links["flaps"].Cut()
			if r.Float64() < 0.3 {
				links["noisy"].Reset()
			}
			<-turn.C
			links["flaps"].Heal()
			<-turn.C
		}
	})
	until(t, "the machine that is cut off is suspect", func(context.Context) error {
		if m := s.machine("brief"); m.State != berth.MachineSuspect {
			return fmt.Errorf("it is %s", m.State)
		}
		return nil
	})
	links["brief"].Heal()
	links["oneway"].Heal()
	weather.Wait()
	s.loseAfter(patience, jobs["flaps"])
	for _, l := range links {
		l.Heal()
	}
	s.ready(len(names) + 1)
	for _, name := range names {
		job, err := s.api.Job(t.Context(), jobs[name])
		if err != nil {
			t.Fatal(err)
		}
		started := s.engine.count(events.ActionStart, job.ID)
		if name == "flaps" { // at most one replacement
			if job.Attempt > 2 || started > 2 {
				t.Errorf("flapping link: attempt %d, %d containers started", job.Attempt, started)
			}
			continue
		}
		if job.Attempt != 1 || started != 1 || s.engine.running()[job.ID] != lived[job.ID] {
			t.Errorf("%s: attempt %d on %s, %d containers started", name, job.Attempt, job.Status, started)
		}
	}
	for _, id := range jobs {
		s.dismiss(id)
	}
}

// onLinks is a stack whose control plane judges quickly, with no machine yet.
// Rows that stand for many more machines keep one verdict a minute from being
// all that there may be.
func onLinks(t *testing.T, flags ...string) (*stack, *controlPlane) {
	t.Helper()
	s := newStack(t)
	s.image = testImage(t)
	s.flags = []string{"--only", "postgres,temporal"}
	s.startDev()
	c := &controlPlane{s: s, listen: freeAddress(t), token: "berth_" + berth.NewSecret()[:12] + "_" + berth.NewSecret(),
		flags: append([]string{"--suspect-after", partSuspect.String(), "--grace", "1s", "--reconcile-every", "1s"}, flags...)}
	c.start()
	s.query(`INSERT INTO machines (id, state, reason) SELECT 'paper-' || i, 'draining', 'stands for a larger fleet' FROM generate_series(1, 60) i`)
	return s, c
}

// query runs SQL on the stack's database, for checks that no program of Berth offers.
func (s *stack) query(sql string, args ...any) pgx.Rows {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.at.DatabaseURL)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	rows, err := conn.Query(s.t.Context(), sql, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	if len(rows.FieldDescriptions()) == 0 {
		rows.Close()
		if err := rows.Err(); err != nil {
			s.t.Fatal(err)
		}
	}
	return rows
}

// link is a link to a server that can be broken.
func (s *stack) link(target string) *faultproxy.Proxy {
	s.t.Helper()
	p, err := faultproxy.Start(target)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = p.Close() })
	return p
}

// agent starts a machine's agent, again after the first time.
func (s *stack) agent(name, api string, flags ...string) *process {
	s.t.Helper()
	var join wire.JoinToken
	s.accepts("create a join token", func(ctx context.Context) (err error) {
		join, err = s.api.CreateJoinToken(ctx, spec.NewJoinToken{})
		return err
	})
	p, err := startProcess(filepath.Join(s.dir, "agent-"+name+".log"), []string{"BERTH_JOIN_TOKEN=" + join.Secret}, program(s.t, "berth-agent"),
		append([]string{"--server", "http://" + api, "--machine", name,
			"--state-dir", s.agentDir(name), "--memory", "64GiB"}, flags...)...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.others = append(s.others, p)
	return p
}

func (s *stack) agentDir(name string) string { return filepath.Join(s.dir, "machines", name, "agent") }

// ready waits for the machines and opens the record of the engine's events.
func (s *stack) ready(machines int) {
	s.t.Helper()
	s.machines = machines
	s.awaitMachines()
	if s.engine == nil {
		s.engine = watchEngine(s.t, s.dir)
	}
}

func (s *stack) machine(id berth.MachineID) wire.Machine {
	s.t.Helper()
	var m wire.Machine
	s.accepts("read machine "+string(id), func(ctx context.Context) (err error) {
		m, err = s.api.Machine(ctx, id)
		return err
	})
	return m
}

// endless is a job that runs until it is stopped.
func (s *stack) endless(name string, lostAfter time.Duration, edit func(*spec.Job)) spec.Job {
	jobSpec := s.job(name, "sleep", "1h")
	grace := spec.Duration(time.Second)
	jobSpec.StopGrace, jobSpec.LostAfter = &grace, spec.Duration(lostAfter)
	if edit != nil {
		edit(&jobSpec)
	}
	return jobSpec
}

// runsOn waits until the job runs in this attempt, which must be on the machine.
func (s *stack) runsOn(id berth.JobID, attempt int, machine berth.MachineID) wire.Job {
	s.t.Helper()
	var job wire.Job
	until(s.t, fmt.Sprintf("job %s runs in attempt %d", id, attempt), func(ctx context.Context) (err error) {
		job, err = s.api.Job(ctx, id)
		if err == nil && (job.Status != berth.Running || job.Attempt != attempt || s.engine.running()[id] == "") {
			err = fmt.Errorf("it is %s in attempt %d: %+v", job.Status, job.Attempt, job.Reason)
		}
		if job.Attempt > attempt || job.Status.Terminal() {
			s.t.Fatalf("job %s is %s in attempt %d, want %d: %+v", id, job.Status, job.Attempt, attempt, job.Reason)
		}
		return err
	})
	if got := job.Attempts[attempt-1].Machines; !slices.Equal(got, []berth.MachineID{machine}) {
		s.t.Fatalf("attempt %d of job %s is on %s, want %s", attempt, id, got, machine)
	}
	return job
}

// placedAgain waits until the second attempt of a job is placed.
func (s *stack) placedAgain(id berth.JobID) {
	s.t.Helper()
	until(s.t, "job "+string(id)+" is placed again", func(ctx context.Context) error {
		job, err := s.api.Job(ctx, id)
		if err == nil && job.Attempt < 2 {
			err = fmt.Errorf("it is %s in attempt %d: %+v", job.Status, job.Attempt, job.Reason)
		}
		return err
	})
}

// stopTime measures the time from the cancel of a job on a machine to the end of its
// container.
func (s *stack) stopTime(machine berth.MachineID) time.Duration {
	s.t.Helper()
	id := s.submit(s.endless("usual", patience, func(j *spec.Job) { j.Placement.Constraint = fmt.Sprintf("machine.id == %q", machine) }))
	s.runsOn(id, 1, machine)
	container, began := s.engine.running()[id], time.Now()
	s.dismiss(id)
	return s.engine.died(container).Sub(began)
}

// dismiss cancels a job and waits for its end.
func (s *stack) dismiss(id berth.JobID) {
	s.t.Helper()
	s.cancel(id)
	s.becomes(id, berth.Canceled)
}

// alive reports whether a container runs.
func (e *engine) alive(container string) bool {
	e.t.Helper()
	c, err := e.api.ContainerInspect(e.t.Context(), container)
	return err == nil && c.State.Running
}

// died is when a container ended, as the engine noted it.
func (e *engine) died(container string) time.Time { return e.when(events.ActionDie, container) }

// when is when something was first done to a container.
func (e *engine) when(action events.Action, container string) time.Time {
	e.t.Helper()
	var at time.Time
	until(e.t, fmt.Sprintf("the engine notes %s of %s", action, container), func(context.Context) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, m := range e.seen {
			if m.Action == action && m.Actor.ID == container {
				at = time.Unix(0, m.TimeNano)
				return nil
			}
		}
		return fmt.Errorf("not among %d events", len(e.seen))
	})
	return at
}

// wantRefused makes every call by which a machine writes about an attempt, with
// its own credential and on its old terms, and wants each refused as stale.
func (s *stack) wantRefused(machine berth.MachineID, job berth.JobID, attempt int) {
	s.t.Helper()
	var cred struct {
		Token string `json:"token"`
	}
	b, err := os.ReadFile(filepath.Join(s.agentDir(string(machine)), "credential.json"))
	if err == nil {
		err = json.Unmarshal(b, &cred)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	type terms struct {
		Alloc berth.AllocationID
		Boot  string
	}
	old, err := pgx.CollectExactlyOneRow(s.query(`
		SELECT a.id, m.agent_boot FROM allocations a JOIN machines m ON m.id = a.machine_id
		WHERE a.job = $1 AND a.attempt = $2`, job, attempt), pgx.RowToStructByPos[terms])
	if err != nil {
		s.t.Fatal(err)
	}
	done := failure.Exit{Cause: failure.CauseExited, StartedAt: time.Now().Add(-time.Minute), FinishedAt: time.Now()}
	for path, body := range map[string]any{
		"claim": wire.ClaimRequest{AgentBoot: old.Boot, Epoch: 1, Alloc: old.Alloc, Job: job, Attempt: attempt},
		"sync": wire.SyncRequest{AgentBoot: old.Boot, Epoch: 1, Seq: 1 << 40, Reports: []wire.RankReport{
			{Alloc: old.Alloc, Job: job, Attempt: attempt, Phase: berth.PhaseSealed, Exit: &done}}},
		"checkpoints": wire.CheckpointReport{AgentBoot: old.Boot, Epoch: 1, Alloc: old.Alloc, Job: job, Attempt: attempt, OfAttempt: attempt,
			Step: 7, Manifest: "x", SHA256: "x"},
	} {
		text, err := json.Marshal(body)
		if err != nil {
			s.t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+"/agent/v1/"+path, bytes.NewReader(text))
		if err != nil {
			s.t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+cred.Token)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			s.t.Fatal(err)
		}
		var problem struct {
			Code string `json:"code"`
		}
		err = json.NewDecoder(resp.Body).Decode(&problem)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusConflict || problem.Code != berth.SlugStaleEpoch {
			s.t.Errorf("the zombie's %s is answered %d %q, want 409 %s: %v", path, resp.StatusCode, problem.Code, berth.SlugStaleEpoch, err)
		}
	}
}
