package control_test

import (
	"testing"
	"time"

	"berth"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/faultcloud"
	"berth/spec"
	"berth/wire"
)

// serve lets the launch run until its machine is ready.
func (s *site) serve() {
	s.t.Helper()
	s.launch()
	s.step()
	if err := s.join(s.one().Join, vm); err != nil {
		s.t.Fatal(err)
	}
	s.step()
	s.is(cloud.LaunchServing)
	s.exec(`UPDATE machines SET state = 'ready', cpu_m = 4000, mem_mb = 8192 WHERE id = 'gpu-1'`)
}

// work places a job on the machine.
func (s *site) work() {
	s.t.Helper()
	s.exec(`INSERT INTO jobs (id, tenant, name, class, priority, preemptible, grace_ms, lost_after_ms, actor)
		VALUES ('01900000-0000-7000-8000-00000000000a', 'default', 'x', 'c', 500, true, 0, 90000, 'user:test')`)
	s.exec(`INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli)
		VALUES ('01900000-0000-7000-8000-00000000000a', 1, 0, 'gpu-1', 1, 100, 100, 0, 0)`)
}

func TestAMachineThatJoinedByHandIsNotTerminatedWithItsWork(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.launch()
	s.step()
	token, err := s.db.JoinTokens.Create(t.Context(), spec.NewJoinToken{}, "operator:test")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.join(token.Secret, vm); err != nil {
		t.Fatal(err)
	}
	s.exec(`UPDATE machines SET state = 'ready', cpu_m = 4000, mem_mb = 8192 WHERE id = 'gpu-1'`)
	s.work()
	s.pass(time.Hour) // longer than the time for a join
	s.step()
	s.is(cloud.LaunchServing)
	s.stop()
	s.step()
	s.is(cloud.LaunchDraining)
	s.exec(`UPDATE allocations SET state = 'released', released_at = now(), sealed_at = now(), forgotten_at = now()`)
	s.until(cloud.LaunchGone)
}

func TestAMachineThatAnAdminRetiresEndsItsInstance(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.serve()
	if err := s.db.Machines.Retire(t.Context(), vm, "user:test"); err != nil {
		t.Fatal(err)
	}
	s.step()
	s.is(cloud.LaunchTerminating)
	s.until(cloud.LaunchGone)
}

func TestADrainGetsItsLaterDeadlineAndClosesAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.serve()
	s.work()
	s.stop()
	s.step()
	deadline := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	_, err := s.db.Launches.Change(t.Context(), cloud.Ref{Machine: vm}, func(r cloud.Record, now time.Time) (cloud.Record, error) {
		return r.WithStop(cloud.Stop{Actor: "user:test", Reason: "enough", Deadline: deadline}, now)
	})
	if err != nil {
		t.Fatal(err)
	}
	s.step()
	if r := s.row(); !r.DrainDeadline.Equal(deadline) {
		t.Errorf("the machine drains until %s, want %s", r.DrainDeadline, deadline)
	}
	s.exec(`UPDATE machines SET state = 'ready', drain_reason = NULL, drain_deadline = NULL`)
	s.step()
	if r := s.row(); r.MachineState != berth.MachineDraining || r.State != cloud.LaunchDraining {
		t.Errorf("machine %s, launch %s", r.MachineState, r.State)
	}
}

func TestAnEmptyMachineIsRetiredWhileItsCloudIsAway(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.serve()
	s.stop()
	s.pass(time.Hour)
	away := s.steps(faultcloud.New(t.TempDir(), time.Now)) // a directory: no call succeeds
	if _, err := away.Step(t.Context(), wire.MachineInput{Machine: vm}); err != nil {
		t.Fatal(err)
	}
	if r := s.row(); r.MachineState != berth.MachineRetired {
		t.Errorf("machine is %s, launch %s", r.MachineState, r.State)
	}
}

func TestAHostThatTookTheNameOfAMachineKeepsItsWork(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.serve()
	if err := s.db.Machines.Retire(t.Context(), vm, "user:test"); err != nil {
		t.Fatal(err)
	}
	token, err := s.db.JoinTokens.Create(t.Context(), spec.NewJoinToken{}, "operator:test")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.join(token.Secret, vm); err != nil { // another host
		t.Fatal(err)
	}
	s.exec(`UPDATE machines SET state = 'ready', cpu_m = 4000, mem_mb = 8192 WHERE id = 'gpu-1'`)
	s.script(func(x *faultcloud.State) { x.Instances[0].State = cloud.Terminated })
	s.pass(time.Hour)
	s.until(cloud.LaunchGone)
	if r := s.row(); r.MachineState != berth.MachineReady {
		t.Errorf("the other host is %s", r.MachineState)
	}
}

func TestAProviderThatOneReplicaLacksIsNoVerdict(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.launch()
	lacks := s.steps(s.cloud)
	lacks.Accounts = cloud.Accounts{}
	_, err := lacks.Step(t.Context(), wire.MachineInput{Machine: vm})
	if berth.CodeOf(err) != berth.CodeUnavailable {
		t.Errorf("step: %v", err)
	}
	s.is(cloud.LaunchRequested)
}
