package db_test

import (
	"strings"
	"testing"
	"time"

	"berth"
	"berth/wire"
)

// hears is one call of the agent's whose container engine has been silent for so
// long.
func (a *agent) hears(silent time.Duration) {
	a.t.Helper()
	if _, err := a.sync(func(r *wire.SyncRequest) { r.EngineSilent = silent }); err != nil {
		a.t.Fatal(err)
	}
}

func TestF53ASilentEngineKeepsNewWorkOffItsMachine(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	before := s.loadQueue()
	a.hears(50 * time.Second)
	since := one[time.Time](s, `SELECT engine_silent_since FROM machines WHERE id = 'm0'`)
	if ago := one[float64](s, `SELECT extract(epoch FROM clock_timestamp() - engine_silent_since)::float8 FROM machines WHERE id = 'm0'`); ago < 50 || ago > 170 {
		t.Errorf("silent since %.0f s ago, want 50 s and the time of this test", ago)
	}
	m := s.machine("", "m0")
	want := "its container engine has not answered since " + since.UTC().Format(time.RFC3339) + "; restart it: systemctl restart docker, or bring back the file server that a container waits for"
	if m.State != berth.MachineReady || m.Reason != want || m.EngineSilentSince == nil || !m.EngineSilentSince.Equal(since) {
		t.Errorf("machine is %s, %q, silent since %v", m.State, m.Reason, m.EngineSilentSince)
	}
	fed := false
	for _, row := range s.catchUp(before.Next).Machines {
		fed = fed || row.ID == "m0" && row.EngineSilentSince != nil && row.EngineSilentSince.Equal(since)
	}
	if !fed {
		t.Error("the feed does not have it")
	}
	list, err := s.db.Machines.SilentEngines(t.Context(), []berth.MachineID{"m0", "m1"})
	if err != nil || len(list) != 1 || list[0].ID != "m0" || !list[0].Since.Equal(since) {
		t.Errorf("silent engines are %+v, %v", list, err)
	}
	if p, err := s.db.Cluster.Population(t.Context()); err != nil || p.SilentEngines != 1 {
		t.Errorf("%d silent engines are counted, %v", p.SilentEngines, err)
	}
	term := s.term()
	id := s.queued(nil)
	start := s.start(id, on("m0"))
	s.mustRefuse(term, start, "container engine does not answer")

	a.hears(70 * time.Second)
	if again := one[time.Time](s, `SELECT engine_silent_since FROM machines WHERE id = 'm0'`); !again.Equal(since) {
		t.Errorf("after another call it is silent since %s, want %s", again, since)
	}
	if err := s.db.Machines.Drain(t.Context(), "m0", "new disk", nil, "operator:test"); err != nil {
		t.Fatal(err)
	}
	if m := s.machine("", "m0"); m.Reason != "new disk; "+want {
		t.Errorf("drained, it says %q", m.Reason)
	}
	if err := s.db.Machines.Undrain(t.Context(), "m0", "operator:test"); err != nil {
		t.Fatal(err)
	}

	a.hears(0)
	if m := s.machine("", "m0"); m.State != berth.MachineReady || m.Reason != "" || m.EngineSilentSince != nil {
		t.Errorf("once the engine answers, the machine is %+v", m)
	}
	if c := s.commit(term, start); len(c.Started) != 1 {
		t.Errorf("once the engine answers: %+v", c)
	}
}

func TestOnlyThePresentSessionReportsAnEngine(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	old, _ := s.register("host1", "agent1")
	s.register("host1", "agent2")
	_, err := old.sync(func(r *wire.SyncRequest) { r.EngineSilent = time.Minute })
	if !berth.IsSlug(err, berth.SlugStaleEpoch) || s.machine("", "m0").EngineSilentSince != nil {
		t.Errorf("an agent that was replaced: %v; the machine is %+v", err, s.machine("", "m0"))
	}
}

// A registration lists containers: the engine answered it. So an agent of an older
// version, which reports nothing, leaves no machine out of work.
func TestARegistrationEndsTheSilenceOfAnEngine(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	a.hears(time.Minute)
	s.register("host1", "agent2")
	if m := s.machine("", "m0"); m.EngineSilentSince != nil || m.Reason != "" {
		t.Errorf("after a registration the machine is %+v", m)
	}
}

func TestOfALostMachineNoEngineIsSilent(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	a.hears(time.Minute)
	mustExec(t, s.pool, `UPDATE machines SET state = 'lost', reason = 'silent' WHERE id = 'm0'`)
	m := s.machine("", "m0")
	list, err := s.db.Machines.SilentEngines(t.Context(), []berth.MachineID{"m0"})
	if err != nil || len(list) != 0 || m.EngineSilentSince != nil || strings.Contains(m.Reason, "engine") {
		t.Errorf("machine is %+v; silent engines are %+v, %v", m, list, err)
	}
	if p, err := s.db.Cluster.Population(t.Context()); err != nil || p.SilentEngines != 0 {
		t.Errorf("%d silent engines are counted, %v", p.SilentEngines, err)
	}
}
