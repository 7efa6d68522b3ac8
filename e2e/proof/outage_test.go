package proof_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"berth"
	"berth/spec"
)

// shifts is how many jobs run when something is killed. Half of them end while
// it is away, half after its return.
const shifts = 10

func TestJobsSurviveTheDeathOfTheControlPlane(t *testing.T) {
	t.Parallel()
	s, restart := onSeparateProcesses(t)
	ids := s.startShifts(shifts)
	lived := s.engine.running()

	restart.kill()
	s.endShifts(ids[:shifts/2])
	s.engine.wantAlive(lived, ids[shifts/2:])

	restart.start()
	s.awaitMachines()
	s.engine.wantAlive(lived, ids[shifts/2:])
	s.endShifts(ids[shifts/2:])
	s.wantShiftsDone(ids)
}

func TestJobsSurviveTheDeathOfTheAgent(t *testing.T) {
	t.Parallel()
	s := onHost(t)
	ids := s.startShifts(shifts)
	lived := s.engine.running()

	pid := s.agentPID()
	killPID(t, pid)
	s.engine.wantAlive(lived, ids)
	s.endShifts(ids[:shifts/2])
	until(t, "another agent runs", func(context.Context) error {
		if now := s.agentPID(); now == pid {
			return fmt.Errorf("it is still process %d", now)
		}
		return nil
	})

	s.engine.wantAlive(lived, ids[shifts/2:])
	s.endShifts(ids[shifts/2:])
	s.wantShiftsDone(ids)
}

func TestJobsSurviveTheDeathOfEverything(t *testing.T) {
	t.Parallel()
	s := onHost(t)
	ids := s.startShifts(shifts)
	lived := s.engine.running()

	agent, postgres := s.agentPID(), s.postgresPID()
	s.dev.kill()
	killPID(t, postgres)
	killPID(t, agent)
	s.engine.wantAlive(lived, ids)
	s.endShifts(ids[:shifts/2])

	s.start()
	s.engine.wantAlive(lived, ids[shifts/2:])
	s.endShifts(ids[shifts/2:])
	s.wantShiftsDone(ids)
}

func TestAStoppedStackFindsAllItsJobsAgain(t *testing.T) {
	t.Parallel()
	s := onHost(t)
	done, failed := s.submit(s.job("done", "echo", "well")), s.submit(s.job("failed", "exit", "4"))
	s.becomes(done, berth.Succeeded)
	s.becomes(failed, berth.Failed)
	working := s.startShifts(1)[0]
	waiting := s.submit(s.wholeMachine("waiting"))
	s.becomes(waiting, berth.Queued)
	lived := s.engine.running()

	if err := s.dev.end(syscall.SIGINT); err != nil {
		t.Fatalf("berth-dev ended with %v", err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "stack.json")); !os.IsNotExist(err) {
		t.Errorf("stack.json is left behind: %v", err)
	}
	s.engine.wantAlive(lived, []berth.JobID{working})

	s.start()
	for id, want := range map[berth.JobID]berth.State{done: berth.Succeeded, failed: berth.Failed, working: berth.Running, waiting: berth.Queued} {
		job, err := s.api.Job(t.Context(), id)
		if err != nil || job.Status != want {
			t.Errorf("job %s is %s after the restart, want %s: %v", id, job.Status, want, err)
		}
	}
	if got := s.log(done); len(got) != 1 || got[0] != "well" {
		t.Errorf("log of the finished job is %q", got)
	}
	s.endShifts([]berth.JobID{working})
	s.wantShiftsDone([]berth.JobID{working})
	s.becomes(waiting, berth.Succeeded)
	s.engine.wantOneEach([]berth.JobID{done, failed, waiting})
}

// wantAlive checks that these jobs' containers are the very ones as before.
func (e *engine) wantAlive(before map[berth.JobID]string, jobs []berth.JobID) {
	e.t.Helper()
	now := e.running()
	for _, id := range jobs {
		if now[id] == "" || now[id] != before[id] {
			e.t.Errorf("job %s runs in container %q, before it was %q", id, now[id], before[id])
		}
	}
}

// agentPID is the process of the stack's first agent.
func (s *stack) agentPID() int {
	s.t.Helper()
	return readPID(s.t, filepath.Join(s.dir, "machines", "m1", "agent.pid"))
}

// postgresPID is the process of the stack's database server.
func (s *stack) postgresPID() int {
	s.t.Helper()
	return readPID(s.t, filepath.Join(s.dir, "postgres", "data", "postmaster.pid"))
}

// readPID reads the first line of a pid file.
func readPID(t testing.TB, path string) int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid <= 1 {
		t.Fatalf("%s: pid %q", path, first)
	}
	return pid
}

// killPID kills a process that berth-dev started, as kill -9 does.
func killPID(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		t.Fatal(err)
	}
}

// controlPlane is a berthd process that can be killed and started again.
type controlPlane struct {
	s      *stack
	listen string
	token  string
	flags  []string // more of them
	now    *process
}

// onSeparateProcesses is a running stack whose control plane and agent are
// processes of their own, as on a real cluster.
func onSeparateProcesses(t *testing.T) (*stack, *controlPlane) {
	t.Helper()
	s := newStack(t)
	s.image = testImage(t)
	s.machines = 1
	s.flags = []string{"--only", "postgres,temporal"}
	s.startDev()
	c := &controlPlane{s: s, listen: freeAddress(t), token: "berth_" + berth.NewSecret()[:12] + "_" + berth.NewSecret()}
	c.start()

	join, err := s.api.CreateJoinToken(t.Context(), spec.NewJoinToken{})
	if err != nil {
		t.Fatal(err)
	}
	agent, err := startProcess(filepath.Join(s.dir, "agent.log"), []string{"BERTH_JOIN_TOKEN=" + join.Secret}, program(t, "berth-agent"),
		"--server", "http://"+c.listen, "--machine", "m1",
		"--state-dir", filepath.Join(s.dir, "machines", "m1", "agent"), "--cpus", "64", "--memory", "64GiB", "--no-gpus")
	if err != nil {
		t.Fatal(err)
	}
	s.others = append(s.others, agent)
	s.awaitMachines()
	s.engine = watchEngine(t, s.dir)
	return s, c
}

// start starts berthd, at the same address as before, and returns once it
// answers.
func (c *controlPlane) start() {
	c.s.t.Helper()
	var err error
	c.now, err = startProcess(filepath.Join(c.s.dir, "berthd.log"), []string{"BERTH_ADMIN_TOKEN=" + c.token}, program(c.s.t, "berthd"),
		append([]string{"--listen", c.listen, "--database-url", c.s.at.DatabaseURL, "--temporal-address", c.s.at.Temporal,
			"--blob-url", "file://" + filepath.Join(c.s.dir, "blobs")}, c.flags...)...)
	if err != nil {
		c.s.t.Fatal(err)
	}
	c.s.others = append(c.s.others, c.now)
	c.s.connect("http://"+c.listen, c.token)
	c.s.awaitAPI(c.now)
}

func (c *controlPlane) kill() { c.now.kill() }
