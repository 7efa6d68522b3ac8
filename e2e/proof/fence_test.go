package proof_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/events"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"berth"
	"berth/activities/node/runtimetest"
	"berth/internal/devstack/dockerd"
	"berth/internal/machine/deadman"
	"berth/spec"
	"berth/wire"
)

// Times of the fence below; the job's grace is a second.
const (
	fenceAfter  = 45 * time.Second // a crowded machine may keep an agent from its lease for that long
	fenceMargin = 30 * time.Second // and hold a deadman up
	fenceTotal  = fenceAfter + time.Second + fenceMargin
)

// One machine's agent is killed, another's frozen with its engine dead; both
// leave a container of at_most_one work alive, and no way to the control plane.
func TestF24AtMostOneWorkNeverHasTwoLiveContainers(t *testing.T) {
	t.Parallel()
	s, c := onLinks(t, "--fence-margin", fenceMargin.String())
	fence := []string{"--cpus", "1", "--no-gpus", "--fence-after", fenceAfter.String()}
	own, err := dockerd.Start(t.Context(), dockerd.Options{Dir: filepath.Join(s.dir, "machines", "frozen", "docker"), LiveRestore: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Remove(context.Background()); err != nil {
			t.Errorf("remove the private engine: %v", err)
		}
	})
	runtimetest.Image(t, own.Host())
	killed := s.agent("killed", c.listen, fence...)
	frozen := s.agent("frozen", c.listen, append(fence, "--docker-host", own.Host())...)
	s.agent("spare", c.listen, "--cpus", "8", "--no-gpus", "--fence-after", fenceAfter.String())
	s.agent("unfenced", c.listen, "--cpus", "8", "--no-gpus", "--deadman", "service")
	s.ready(4)
	s.wantFenceDemanded()

	alone := func(name string) spec.Job {
		return s.endless(name, patience, func(j *spec.Job) {
			j.Execution = spec.AtMostOne
			j.Placement.Constraint = fmt.Sprintf("machine.id in [%q, %q]", name, "spare")
		})
	}
	jobs := map[string]berth.JobID{"killed": s.submit(alone("killed")), "frozen": s.submit(alone("frozen"))}
	s.runsOn(jobs["killed"], 1, "killed")
	s.becomes(jobs["frozen"], berth.Running)
	containers := map[string]string{}
	for name := range jobs {
		containers[name] = s.fenced(name)
	}

	ends := map[string]func() time.Time{}
	for name := range jobs {
		ends[name] = s.watchEnd(containers[name])
	}

	killed.kill()
	frozen.signal(syscall.SIGSTOP)
	t.Cleanup(func() { frozen.signal(syscall.SIGCONT) }) // or it would not end in order
	if err := own.KillDaemon(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.loseAfter(partLost, jobs["killed"], jobs["frozen"])
	gone := map[string]time.Time{}
	for name, wait := range ends {
		gone[name] = wait()
	}
	for name, id := range jobs {
		s.placedAgain(id)
		s.loseAfter(patience, id)
		second := s.runsOn(id, 2, "spare").Attempts[1]
		began := s.engine.when(events.ActionStart, s.engine.running()[id])
		waited := s.replacedAfter(id)
		t.Logf("%s: replaced after %s of silence, %s after its container was gone", name, waited.Round(time.Millisecond), began.Sub(gone[name]).Round(time.Millisecond))
		if !second.PlacedAt.After(gone[name]) {
			t.Errorf("%s: placed again at %s, the first container lived until %s", name, second.PlacedAt, gone[name])
		}
		if !began.After(gone[name]) {
			t.Errorf("%s: the second container began at %s, the first lived until %s", name, began, gone[name])
		}
		if waited < fenceTotal {
			t.Errorf("%s: replaced after %s of silence, %s is the least", name, waited, fenceTotal)
		}
	}

	// All come back and find their work gone.
	if err := own.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	frozen.signal(syscall.SIGCONT)
	s.agent("killed", c.listen, fence...)
	s.ready(4)
	for _, name := range []berth.MachineID{"killed", "frozen"} {
		until(t, string(name)+" is free again", func(context.Context) error {
			if m := s.machine(name); m.Used != (berth.Capacity{}) {
				return fmt.Errorf("it uses %+v", m.Used)
			}
			return nil
		})
	}
	for name, id := range jobs {
		s.runsOn(id, 2, "spare")
		if living, err := deadman.Processes(containers[name]); err != nil || len(living) > 0 {
			t.Errorf("%s: processes %v came back: %v", name, living, err)
		}
		s.dismiss(id)
	}
}

// wantFenceDemanded checks that a machine without a deadman gets no at_most_one
// work, and gets some once one runs.
func (s *stack) wantFenceDemanded() {
	s.t.Helper()
	id := s.submit(s.endless("waits", patience, func(j *spec.Job) {
		j.Execution = spec.AtMostOne
		j.Placement.Constraint = `machine.id == "unfenced"`
	}))
	s.becomes(id, berth.Queued)
	e, err := s.api.Explain(s.t.Context(), id)
	if err != nil || e.Fit == nil || !slices.ContainsFunc(e.Fit.Clauses, func(c wire.FitClause) bool { return c.Name == "execution" && c.After > 0 }) {
		s.t.Errorf("the explanation does not say that a machine cannot fence: %+v, %v", e, err)
	}
	p, err := startProcess(filepath.Join(s.dir, "berth-deadman.log"), nil, program(s.t, "berth-deadman"), "--state-dir", s.agentDir("unfenced"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.others = append(s.others, p)
	until(s.t, "the machine says that it can fence", func(context.Context) error {
		if m := s.machine("unfenced"); m.Fence.Std() != berth.DefaultFence {
			return fmt.Errorf("it says %s", m.Fence)
		}
		return nil
	})
	s.runsOn(id, 1, "unfenced")
	s.dismiss(id)
}

// fenced waits until a machine's deadman watches its one container, and returns
// the container's id.
func (s *stack) fenced(machine string) string {
	s.t.Helper()
	dir := deadman.Dir(s.agentDir(machine))
	var lease deadman.Lease
	until(s.t, "the deadman of "+machine+" watches", func(context.Context) (err error) {
		if lease, err = deadman.ReadLease(dir); err != nil {
			return err
		}
		p, err := deadman.Answer(dir)
		if err == nil && (p.State != deadman.Watching || p.Seq != lease.Seq || len(lease.Ranks) != 1) {
			err = fmt.Errorf("it is %s at list %d, the lease is %+v", p.State, p.Seq, lease)
		}
		return err
	})
	living, err := deadman.Processes(lease.Ranks[0].Container)
	if err != nil || len(living) == 0 {
		s.t.Fatalf("container of %s has no process: %v", machine, err)
	}
	return lease.Ranks[0].Container
}

// watchEnd waits in the kernel for the end of a container's processes. The returned
// function returns the time of that end. A poll would see it late on a crowded
// machine, and take a timely end for a late one.
func (s *stack) watchEnd(container string) (wait func() time.Time) {
	s.t.Helper()
	living, err := deadman.Processes(container)
	if err != nil || len(living) == 0 {
		s.t.Fatalf("container %s has no process: %v", container, err)
	}
	var all sync.WaitGroup
	for _, pid := range living {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			s.t.Fatal(err)
		}
		all.Go(func() {
			defer unix.Close(fd)
			for err := error(unix.EINTR); errors.Is(err, unix.EINTR); {
				_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			}
		})
	}
	ended := make(chan time.Time, 1)
	go func() {
		all.Wait()
		ended <- time.Now()
	}()
	return func() (at time.Time) {
		s.t.Helper()
		select {
		case at = <-ended:
		case <-time.After(patience):
			s.t.Fatalf("never: the deadman ends container %s", container)
		}
		if living, err := deadman.Processes(container); err != nil || len(living) > 0 {
			s.t.Fatalf("container %s has other processes %v: %v", container, living, err)
		}
		return at
	}
}

// replacedAfter is how long the first attempt's machine had been silent when the
// second attempt was placed.
func (s *stack) replacedAfter(id berth.JobID) time.Duration {
	s.t.Helper()
	waited, err := pgx.CollectExactlyOneRow(s.query(`
		SELECT (extract(epoch FROM t.placed_at - l.seen_at) * 1000)::bigint
		FROM attempts t
		JOIN allocations a ON a.job = t.job AND a.attempt = 1
		JOIN machine_leases l ON l.machine_id = a.machine_id
		WHERE t.job = $1 AND t.attempt = 2`, id), pgx.RowTo[int64])
	if err != nil {
		s.t.Fatal(err)
	}
	return time.Duration(waited) * time.Millisecond
}

// endDeadmen ends the deadmen of a stack's machines: they outlive their agents
// as long as work is listed, and a folder is not removed under them.
func endDeadmen(dir string) error {
	found, err := filepath.Glob(filepath.Join(dir, "machines", "*", "agent", "fence", "pulse.json"))
	for _, path := range found {
		b, readErr := os.ReadFile(path)
		var p deadman.Pulse
		if readErr != nil || json.Unmarshal(b, &p) != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		endErr := await(ctx, func(context.Context) error { return endDeadman(filepath.Dir(path), p.PID) })
		cancel()
		if endErr != nil {
			return endErr
		}
	}
	return err
}

// endDeadman asks a deadman to end, and returns nil once it is gone: then it does
// not hold its lock, and its number may be another's.
func endDeadman(fence string, pid int) error {
	if _, gone := deadman.Answer(fence); gone != nil {
		return nil
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return fmt.Errorf("deadman %d of %s does not end", pid, fence)
}
