//go:build chaos

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
	"berth/activities/node/runtimetest/prog"
	"berth/db"
	"berth/failure"
	"berth/spec"
)

func TestF8AnAgentThatWasAwayFindsItsContainerAtWork(t *testing.T) {
	t.Parallel()
	s, m, _ := privateMachine(t, "--live-restore")
	id := s.submit(nil, "do", "lines 50 1ms", "trap-term 0", "lines 50 0s")
	req, _ := m.run(id)
	s.until("some of the log is stored", func() bool { return len(s.log(id, 1)) > 20 })
	before, err := m.container(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	s.until("it works on meanwhile", func() bool {
		ready := false
		err := m.cfg.Runtime.Logs(t.Context(), before.Name, time.Time{}, false, func(l node.LogLine) error {
			ready = ready || l.Text == "ready"
			return nil
		})
		return err == nil && ready
	})
	if after, err := m.container(req); err != nil || after.ID != before.ID || after.State != node.ContainerRunning {
		t.Fatalf("without its agent the container was %+v and is %+v, %v", before, after, err)
	}
	m.start()
	w := m.wait(req)
	s.until("the program listens", func() bool { return slices.Contains(s.log(id, 1), "ready") })
	if err := m.cfg.Runtime.Signal(t.Context(), before.Name, "SIGTERM"); err != nil {
		t.Fatal(err)
	}
	if x := w.exit(); x.Code != 0 || !x.StartedAt.Equal(before.StartedAt) {
		t.Errorf("exit is %+v, the container was started at %s", x, before.StartedAt)
	}
	if n := len(s.log(id, 1)); n != 50+2+50 {
		t.Errorf("%d lines are stored, want every one once", n)
	}
	if j := s.settle(id); j.Status != berth.Succeeded || len(j.Attempts) != 1 {
		t.Errorf("job is %s after %d attempts", j.Status, len(j.Attempts))
	}
	m.cleared(req)
}

// The agent is away beyond lost_after while its container works on; the job has
// been given up here when it returns.
func TestF9AZombieOfAMachineThatWasLostIsKilledAndFreedOnlyThen(t *testing.T) {
	t.Parallel()
	s, m, _ := privateMachine(t, "--live-restore")
	id := s.submit(nil, "sleep", "10m")
	req, _ := m.run(id)
	m.running(req)
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`UPDATE allocations SET state = 'orphaned', orphaned_at = now(), orders = orders || '{"kill": true}'`,
		`UPDATE machines SET state = 'lost', epoch = epoch + 1`,
	} {
		if _, err := s.db.Pool().Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if j := s.settle(id); j.Status != berth.Retrying {
		t.Errorf("job is %s", j.Status)
	}
	used := func() int64 {
		mach, err := s.db.Machines.Get(t.Context(), "", "m1")
		if err != nil {
			t.Fatal(err)
		}
		return mach.Used.CPUMilli
	}
	if c, err := m.container(req); err != nil || c.State != node.ContainerRunning {
		t.Fatalf("the zombie is %+v, %v", c, err)
	}
	if used() == 0 {
		t.Error("the zombie's capacity is free while it runs")
	}
	back := time.Now()
	m.start()
	m.cleared(req)
	m.until("its capacity is free", func() bool { return used() == 0 })
	t.Logf("the zombie was gone %s after its agent's return", time.Since(back).Round(time.Millisecond))
}

func TestF12ARebootEndsWhatTheOldBootLeft(t *testing.T) {
	t.Parallel()
	s, m, _ := privateMachine(t, "--live-restore")
	id := s.submit(nil, "sleep", "10m")
	req, _ := m.run(id)
	m.running(req)
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.cfg.HostBoot = "boot-2"
	m.start()
	m.until("machine is ready", func() bool { return s.machineState("m1") == berth.MachineReady })
	if c, err := m.container(req); !errors.Is(err, node.ErrNoContainer) {
		t.Errorf("the machine takes work while a container of the old boot is there: %+v, %v", c, err)
	}
	j := s.settle(id)
	if j.Status != berth.Retrying || j.Failures != 0 {
		t.Errorf("job is %s with %d failures", j.Status, j.Failures)
	}
	if e := s.machineEpoch("m1"); e != 2 {
		t.Errorf("the machine is at epoch %d after a reboot, want 2", e)
	}
}

func TestF20AStartThatIsDeliveredTwiceStartsOneContainer(t *testing.T) {
	t.Parallel()
	s, m, _ := privateMachine(t, "--live-restore")
	id := s.submit(nil, "do", "echo once", "sleep 200ms")
	req, w := m.run(id)
	for range 20 {
		s.db.Hub().Publish(db.TopicMachine, "m1")
	}
	if x := w.exit(); x.Code != 0 {
		t.Errorf("it ended with %+v", x)
	}
	s.db.Hub().Publish(db.TopicMachine, "m1") // and once more, when all is over
	if got := s.log(id, 1); !slices.Equal(got, []string{"once"}) {
		t.Errorf("log is %q", got)
	}
	s.settle(id)
	m.cleared(req)
}

// A disk of 1 MiB fills up before a job resumes: the machine is at fault, and the checkpoint is
// unchanged.
func TestF31AFullDiskCostsNoCheckpointAndNoRetryOfTheUser(t *testing.T) {
	t.Parallel()
	s, m, _ := privateMachine(t, "--live-restore")
	ranks := filepath.Join(m.cfg.StateDir, "ranks")
	if err := os.MkdirAll(ranks, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", ranks, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(ranks, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	const steps = 60
	id := s.submit(checkpointed(3), "train", "/checkpoint", fmt.Sprint(steps), "20ms", "5")
	req, w := m.run(id)
	s.until("two checkpoints are stored", func() bool { return len(s.verified(id)) >= 2 })
	if err := m.cfg.Runtime.Signal(t.Context(), berth.ContainerName(id, 0, 1), "SIGKILL"); err != nil {
		t.Fatal(err)
	}
	w.exit()
	s.settle(id)
	m.cleared(req) // it would make room
	before, failures := s.verified(id), s.job(id).Failures
	if len(before) == 0 {
		t.Fatal("the first attempt left no checkpoint")
	}
	filler := filepath.Join(ranks, "filler")
	if err := fill(filler); err != nil {
		t.Fatal(err)
	}
	_, w = m.run(id)
	x := w.exit()
	j := s.settle(id)
	if j.Status != berth.Retrying || j.Failures != failures {
		t.Errorf("on a full disk the job ended by %+v and is %s with %d failures, before %d", x, j.Status, j.Failures, failures)
	}
	if after := s.verified(id); !slices.Equal(before, after) {
		t.Errorf("verified checkpoints were %d and are %d", before, after)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.Pool().Exec(t.Context(), `UPDATE jobs SET eligible_at = now()`); err != nil {
		t.Fatal(err)
	}
	req, w = m.run(id)
	if x := w.exit(); x.Code != 0 || !x.Complete {
		t.Errorf("with room again the exit is %+v", x)
	}
	log := s.log(id, req.Attempt)
	if len(log) == 0 || log[0] != fmt.Sprintf("restored step %d", before[0]) || log[len(log)-1] != prog.TrainResult(steps) {
		t.Errorf("the last attempt logs %q", log)
	}
	s.settle(id)
	m.cleared(req)
}

// fill writes a file until the disk is full.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for b := make([]byte, 1024); err == nil; {
		_, err = f.Write(b)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return nil
}

func TestF35AJobThatIgnoresSIGTERMIsKilledAtItsGraceAndCanceled(t *testing.T) {
	t.Parallel()
	s, m, _ := privateMachine(t, "--live-restore")
	grace := spec.Duration(500 * time.Millisecond)
	id := s.submit(func(j *spec.Job) { j.StopGrace = &grace }, "ignore-term")
	req, w := m.run(id)
	s.until("the program listens", func() bool { return slices.Contains(s.log(id, 1), "ready") })
	began := time.Now()
	s.cancel(id)
	if x := w.exit(); x.Cause != failure.CauseOrdered || x.Code != 137 {
		t.Errorf("exit is %+v", x)
	}
	if took := time.Since(began); took < grace.Std() {
		t.Errorf("it was killed after %s, within its grace of %s", took, grace)
	}
	if j := s.settle(id); j.Status != berth.Canceled || j.Failures != 0 {
		t.Errorf("job is %s with %d failures", j.Status, j.Failures)
	}
	m.cleared(req)
}

// The engine hangs, so it is unknown whether the kill arrived: the container's resources stay
// taken until the engine answers.
func TestF36CapacityStaysTakenWhileAKillIsNotConfirmed(t *testing.T) {
	t.Parallel()
	s, m, d := privateMachine(t, "--live-restore")
	grace := spec.Duration(100 * time.Millisecond)
	id := s.submit(func(j *spec.Job) { j.StopGrace = &grace }, "ignore-term")
	req, w := m.run(id)
	s.until("the program listens", func() bool { return slices.Contains(s.log(id, 1), "ready") })
	d.Freeze()
	defer d.Thaw()
	s.cancel(id)
	s.until("the machine is heard for a while after the kill was due", func() bool {
		v, err := s.db.Jobs.Load(context.Background(), id)
		if err != nil || v.State != berth.Canceling || len(v.Slots) != 1 || !v.Slots[0].Live() {
			t.Fatalf("while the engine hangs the job is %+v, %v", v, err)
		}
		heard, err := s.db.Machines.Get(t.Context(), "", m.cfg.Machine)
		return err == nil && heard.SeenAt != nil && !v.StopBy.IsZero() && heard.SeenAt.After(v.StopBy.Add(time.Second))
	})
	d.Thaw()
	if x := w.exit(); x.Cause != failure.CauseOrdered {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Canceled {
		t.Errorf("job is %s", j.Status)
	}
	m.cleared(req)
}
