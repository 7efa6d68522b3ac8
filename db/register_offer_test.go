package db_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/cloud"
	"berth/spec"
	"berth/wire"
)

// offersTwo sells the offering of cheap with two H100.
func (s *stage) offersTwo() {
	s.t.Helper()
	err := s.db.Offers.Replace(s.t.Context(), "lab", []cloud.Offer{{Offering: cheap.Offering, CPUs: 4, MemoryMiB: 8192, GPUs: 2, GPUType: "H100",
		Price: 2, Source: "example value", AsOf: time.Now()}}, "user:test")
	if err != nil {
		s.t.Fatal(err)
	}
}

// launches requests a machine, sends the request, and shows its instance. It returns the secret of the join token.
func (s *stage) launches(m berth.MachineID) (secret string) {
	s.t.Helper()
	if err := s.scaled(s.term(), "r-"+string(m), m); err != nil {
		s.t.Fatal(err)
	}
	_, _, err := s.db.Launches.Send(s.t.Context(), cloud.Ref{Machine: m, N: 1}, cloud.DefaultLimits,
		func(t time.Time) time.Time { return t }, func(_ cloud.Record, join string) (cloud.Sealed, error) {
			secret = join
			return cloud.Sealed{Hash: "h", KeyID: "k", Request: []byte("r")}, nil
		})
	if err != nil {
		s.t.Fatal(err)
	}
	s.sees(m)
	return secret
}

// joinsLaunch lets a machine join and register with GPUs of a model.
func (s *stage) joinsLaunch(m berth.MachineID, secret string, models ...string) {
	s.t.Helper()
	if _, _, err := s.db.JoinTokens.Join(s.t.Context(), secret, m); err != nil {
		s.t.Fatal(err)
	}
	s.registersWith(m, "boot", models...)
	_, err := s.db.Launches.Change(s.t.Context(), cloud.Ref{Machine: m, N: 1}, func(r cloud.Record, now time.Time) (cloud.Record, error) {
		next, _ := r.Take(cloud.Next(r, cloud.DefaultLimits, now), cloud.DefaultLimits, now)
		return next, nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// registersWith registers an agent that sees GPUs of the models.
func (s *stage) registersWith(m berth.MachineID, boot string, models ...string) {
	s.t.Helper()
	a := &agent{stage: s, machine: m, host: "host-" + string(m), boot: boot}
	req := a.request()
	req.Inventory.Capacity.MemoryMiB, req.Inventory.GPUs = 8000, nil
	for i, model := range models {
		req.Inventory.GPUs = append(req.Inventory.GPUs, berth.GPU{Index: i, UUID: fmt.Sprint(m, i), Model: model, MemoryMiB: 81920, Healthy: true})
	}
	if _, _, err := s.db.Agents.Register(s.t.Context(), m, req); err != nil {
		s.t.Fatal(err)
	}
}

// shortOf returns the step and the reason of the breaker of joins; 0: there is none.
func (s *stage) shortOf() (step int, reason string) {
	s.t.Helper()
	if one[int](s, `SELECT count(*)::int FROM breakers WHERE scope = 'join'`) > 0 {
		step, reason = one[int](s, `SELECT step FROM breakers WHERE scope = 'join'`), one[string](s, `SELECT reason FROM breakers WHERE scope = 'join'`)
	}
	return step, reason
}

func TestAMachineThatJoinsWithLessThanItsOfferGetsNoWork(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	s.offersTwo()
	s.joinsLaunch("v1", s.launches("v1"), "H100")
	const want = "has 1 of the 2 healthy H100 GPUs of its offer"
	m := s.machine("", "v1")
	if m.State != wire.MachineDrained || m.Reason != "the machine "+want || m.DrainBy != "cloud" {
		t.Fatalf("the machine is %s for %q by %s", m.State, m.Reason, m.DrainBy)
	}
	if n := one[int](s, `SELECT count(*)::int FROM machine_events WHERE machine_id = 'v1' AND state = 'draining' AND actor = 'cloud'`); n != 1 {
		t.Errorf("%d events of the machine", n)
	}
	s.registersWith("v1", "again", "H100", "H100") // after a restart of the agent: the drain lasts
	if got := s.machineIs("v1"); got != berth.MachineDraining {
		t.Errorf("after another registration the machine is %s", got)
	}
	step, reason := s.shortOf()
	if step != 1 || reason != "machine v1 "+want {
		t.Errorf("breaker of step %d: %q", step, reason)
	}
	list, _, err := s.db.Offers.List(t.Context(), db.OfferFilter{}, db.Paging{})
	if err != nil || len(list) != 1 || !strings.Contains(list[0].Closed, want) || list[0].ClosedUntil == nil {
		t.Errorf("offers %+v, %v", list, err)
	}
	if got := s.stopped("v1"); got != "the machine "+want { // by the scaler
		t.Errorf("the launch ends for %q", got)
	}
	if err := s.scaled(s.term(), "r2", "v2"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("another launch of the offering: %v", err)
	}
}

// The sight of an instance proves nothing about its capacity, so the windows of an offering with too little grow.
func TestOnlyAWholeMachineClosesTheBreakerOfJoins(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	s.offersTwo()
	early := s.launches("early") // sent before the first machine joins
	s.joinsLaunch("v1", s.launches("v1"), "H100")
	s.joinsLaunch("early", early, "H100", "H100")
	if step, _ := s.shortOf(); step != 1 || s.machineIs("early") != berth.MachineReady {
		t.Fatalf("step %d after the join of a whole machine from before, which is %s", step, s.machineIs("early"))
	}
	s.later(4 * time.Minute)
	secret := s.launches("v2") // the probe, whose instance is seen
	if step, _ := s.shortOf(); step != 1 {
		t.Fatalf("step %d after the sight of the probe's instance", step)
	}
	mustExec(t, s.pool, `UPDATE breakers SET probe_at = now() - interval '1 hour'`)
	if err := s.scaled(s.term(), "r3", "v3"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a second probe while the first one boots: %v", err)
	}
	if b, err := s.db.Scaling.Breakers(t.Context()); err != nil || len(b) != 1 || !b[0].Probing {
		t.Errorf("breakers %+v, %v", b, err)
	}
	s.joinsLaunch("v2", secret, "H100", "A100")
	if step, reason := s.shortOf(); step != 2 || !strings.Contains(reason, "its healthy GPUs are A100, H100") {
		t.Fatalf("step %d after a second machine with too little: %s", step, reason)
	}
	s.later(7 * time.Minute)
	s.joinsLaunch("v4", s.launches("v4"), "H100", "H100")
	if step, _ := s.shortOf(); step != 0 || s.machineIs("v4") != berth.MachineReady {
		t.Errorf("step %d after a whole machine, which is %s", step, s.machineIs("v4"))
	}
}

// A new machine with a broken GPU is ended like one with a GPU less, and does not wait for an operator.
func TestANewMachineWithABrokenGPUIsEnded(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	s.offersTwo()
	secret := s.launches("v1")
	if _, _, err := s.db.JoinTokens.Join(t.Context(), secret, "v1"); err != nil {
		t.Fatal(err)
	}
	req := (&agent{stage: s, machine: "v1", host: "h", boot: "b"}).request() // with two H100
	req.Inventory.GPUs[1].Healthy, req.Inventory.GPUs[1].Quarantine, req.Inventory.GPUs[1].Reason = false, true, "row remapping failed"
	if _, _, err := s.db.Agents.Register(t.Context(), "v1", req); err != nil {
		t.Fatal(err)
	}
	if m := s.machine("", "v1"); m.Reason != "the machine has 1 of the 2 healthy H100 GPUs of its offer" || m.DrainBy != "cloud" {
		t.Errorf("the machine drains for %q by %s", m.Reason, m.DrainBy)
	}
}

// Machines of launches without an offer, and machines that join with a token of an admin, are accepted as they are.
func TestMachinesWithoutAnOfferAreAccepted(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	s.joinsLaunch("v1", s.launches("v1"))
	s.offersTwo() // too late for the launch
	s.launches("v2")
	admin, err := s.db.JoinTokens.Create(t.Context(), spec.NewJoinToken{}, "operator:test")
	if err != nil {
		t.Fatal(err)
	}
	s.joinsLaunch("v2", admin.Secret, "H100")
	for _, m := range []berth.MachineID{"v1", "v2"} {
		if got := s.machineIs(m); got != berth.MachineReady {
			t.Errorf("machine %s is %s", m, got)
		}
	}
	if step, _ := s.shortOf(); step != 0 {
		t.Errorf("a breaker of step %d", step)
	}
}

// A machine in service that loses a GPU stays in service with the others.
func TestALaterLossOfAGPUDrainsNoMachine(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	s.offersTwo()
	s.joinsLaunch("v1", s.launches("v1"), "H100", "H100")
	s.registersWith("v1", "again", "H100")
	if got := s.machineIs("v1"); got != berth.MachineReady {
		t.Errorf("the machine is %s", got)
	}
}

// stepsLaunch takes the next step of a launch after a time, without a call of the cloud. It returns the state.
func (s *stage) stepsLaunch(m berth.MachineID, in time.Duration) cloud.LaunchState {
	s.t.Helper()
	r, err := s.db.Launches.Change(s.t.Context(), cloud.Ref{Machine: m, N: 1}, func(r cloud.Record, now time.Time) (cloud.Record, error) {
		now = now.Add(in)
		next, _ := r.Take(cloud.Next(r, cloud.DefaultLimits, now), cloud.DefaultLimits, now)
		return next, nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return r.State
}

// An offering whose machines never join, for example by a wrong image, is tried ever more seldom.
func TestMachinesThatNeverJoinCloseTheirOffering(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	s.offersTwo()
	for i, ended := range []bool{false, true, false} {
		m := berth.MachineID(fmt.Sprint("v", i))
		s.launches(m)
		if i > 0 {
			mustExec(t, s.pool, `UPDATE breakers SET probe_at = now() - interval '14 minutes'`)
			if err := s.scaled(s.term(), "again", "again"); berth.CodeOf(err) != berth.CodeConflict {
				t.Errorf("a second probe while the first one boots: %v", err)
			}
		}
		if ended { // by BERTH_SHUTDOWN_AFTER, before our limit
			if _, err := s.db.Launches.Change(t.Context(), cloud.Ref{Machine: m, N: 1}, func(r cloud.Record, now time.Time) (cloud.Record, error) {
				return r.See(cloud.Instance{ID: r.Instance, State: cloud.Ending}, now)
			}); err != nil {
				t.Fatal(err)
			}
		} else if state := s.stepsLaunch(m, cloud.DefaultLimits.JoinLimit+time.Second); state != cloud.LaunchTerminating {
			t.Fatalf("the launch is %s", state)
		}
		step, reason := s.shortOf()
		if step != i+1 || !strings.Contains(reason, "machine "+string(m)+" has not joined: the ") {
			t.Fatalf("after %d machines: step %d, %s", i+1, step, reason)
		}
		s.later(time.Hour)
	}
	s.joinsLaunch("v4", s.launches("v4"), "H100", "H100")
	if step, _ := s.shortOf(); step != 0 {
		t.Errorf("step %d after a whole machine", step)
	}
}

// The end of a machine by request, or after a restore that may have lost the join, says nothing about the offering.
func TestOtherEndsBeforeTheJoinCloseNoOffering(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	s.offersTwo()
	s.launches("v1")
	s.launches("v2")
	if _, err := s.db.Launches.Change(t.Context(), cloud.Ref{Machine: "v1", N: 1}, func(r cloud.Record, now time.Time) (cloud.Record, error) {
		return r.WithStop(cloud.Stop{Actor: "user:test", Reason: "enough"}, now)
	}); err != nil {
		t.Fatal(err)
	}
	if state := s.stepsLaunch("v1", 0); state != cloud.LaunchTerminating {
		t.Fatalf("the launch is %s", state)
	}
	mustExec(t, s.pool, `UPDATE cluster SET incarnation = incarnation + 1`)
	if r, err := s.db.Launches.Change(t.Context(), cloud.Ref{Machine: "v2", N: 1}, func(r cloud.Record, now time.Time) (cloud.Record, error) {
		return r.See(cloud.Instance{ID: r.Instance, State: cloud.Ending}, now)
	}); err != nil || r.State != cloud.LaunchTerminating {
		t.Fatal(r.State, err)
	}
	if step, reason := s.shortOf(); step != 0 {
		t.Errorf("step %d: %s", step, reason)
	}
}

// A launch serves from the join on, and the registration, with which it is compared, comes later.
func TestAProbeOfJoinsLastsUntilTheRegistration(t *testing.T) {
	t.Parallel()
	for _, state := range []cloud.LaunchState{cloud.LaunchServing, cloud.LaunchUnresolved} {
		s := newFleet(t)
		s.offersTwo()
		s.joinsLaunch("v1", s.launches("v1"), "H100")
		s.later(4 * time.Minute)
		if state == cloud.LaunchServing {
			if _, _, err := s.db.JoinTokens.Join(t.Context(), s.launches("v2"), "v2"); err != nil {
				t.Fatal(err)
			}
			if got := s.stepsLaunch("v2", 0); got != state {
				t.Fatalf("the launch is %s", got)
			}
		} else {
			if err := s.scaled(s.term(), "r-v2", "v2"); err != nil {
				t.Fatal(err)
			}
			mustExec(t, s.pool, `UPDATE launches SET state = 'sent', sends = 1, request_hash = 'h', sent_at = now(), last_sent_at = now()
				WHERE machine = 'v2'`)
			mustExec(t, s.pool, `UPDATE launches SET state = 'unresolved' WHERE machine = 'v2'`)
		}
		mustExec(t, s.pool, `UPDATE breakers SET probe_at = now() - interval '4 minutes'`)
		if err := s.scaled(s.term(), "r3", "v3"); berth.CodeOf(err) != berth.CodeConflict {
			t.Errorf("%s: a second probe: %v", state, err)
		}
		if b, err := s.db.Scaling.Breakers(t.Context()); err != nil || len(b) != 1 || !b[0].Probing {
			t.Errorf("%s: breakers %+v, %v", state, b, err)
		}
		mustExec(t, s.pool, `ALTER TABLE launches DISABLE TRIGGER USER`)
		mustExec(t, s.pool, `UPDATE launches SET created_at = now() - interval '1 hour', joined_at = joined_at - interval '1 hour' WHERE machine = 'v2'`)
		if err := s.scaled(s.term(), "r4", "v4"); err != nil {
			t.Errorf("%s for an hour: another probe: %v", state, err)
		}
	}
}

// The workflow of a launch waits for its next look at the instance, unless it is poked.
func TestAJoinPokesTheWorkflowOfItsLaunch(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	secret := s.launches("v1")
	hints := s.db.Hub().Subscribe(db.TopicLaunch, "*")
	defer hints.Close()
	s.joinsWith(spec.NewJoinToken{})
	if hears(t, hints) {
		t.Errorf("a machine without a launch pokes the workflows of %v", hints.Keys())
	}
	if _, _, err := s.db.JoinTokens.Join(t.Context(), secret, "v1"); err != nil {
		t.Fatal(err)
	}
	if !hears(t, hints) || !slices.Equal(hints.Keys(), []string{"v1"}) {
		t.Error("the join of a launched machine pokes no workflow")
	}
}
