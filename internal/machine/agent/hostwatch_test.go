package agent_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/activities/node/fakeruntime"
	"berth/wire"
)

var errEngineAway = errors.New("the engine does not answer")

// reported returns the version of runc that the server has of a machine, and the process of the agent that reported.
func (s *site) reported(id berth.MachineID) (version, boot string) {
	s.t.Helper()
	err := s.db.Pool().QueryRow(s.t.Context(), `
		SELECT coalesce(jsonb_path_query_first(h.facts, '$.components[*] ? (@.name == "runc").version') #>> '{}', ''), h.agent_boot
		FROM machine_hosts h JOIN machines m ON m.id = h.machine_id AND m.agent_boot = h.agent_boot
		WHERE m.id = $1`, id).Scan(&version, &boot)
	if err != nil {
		return "", ""
	}
	return version, boot
}

func TestEachSessionReportsTheContainerEngine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.until("the engine is reported", func() bool { v, _ := s.reported("m1"); return v == "99.0.0" })
	_, first := s.reported("m1")
	m.runtime.SetVersion(wire.ComponentRunc, "1.1.5")
	m.restart()
	m.until("a new process reports", func() bool { v, boot := s.reported("m1"); return v == "1.1.5" && boot != first })
}

// An engine may be upgraded without a restart of the agent.
func TestAnUpgradedEngineIsReported(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.cfg.Timing.HostEvery = 20 * time.Millisecond
	m.restart()
	for _, version := range []string{"1.1.5", "1.3.6"} {
		m.runtime.SetVersion(wire.ComponentRunc, version)
		m.until("runc "+version+" is reported", func() bool { v, _ := s.reported("m1"); return v == version })
	}
}

// A report follows the return of an engine at once, and not at the next interval.
func TestAnEngineThatReturnsIsReported(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.cfg.Timing.EngineProbe = 10 * time.Millisecond // HostEvery is ten minutes
	m.restart()
	m.until("the engine is reported", func() bool { v, _ := s.reported("m1"); return v == "99.0.0" })
	var away, missed atomic.Bool
	m.runtime.Intercept(func(c fakeruntime.Call) error {
		if c.Method == "Probe" && away.Load() {
			missed.Store(true)
			return errEngineAway
		}
		return nil
	})
	m.runtime.SetVersion(wire.ComponentRunc, "1.3.6")
	away.Store(true)
	m.until("a probe is missed", missed.Load)
	away.Store(false)
	m.until("the new version is reported", func() bool { v, _ := s.reported("m1"); return v == "1.3.6" })
}

// An engine that is being started may not name its versions yet. HostEvery is ten minutes.
func TestAMissingVersionIsAskedForAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.cfg.Timing.HostRetry = 10 * time.Millisecond
	m.runtime.SetVersion(wire.ComponentRunc, "")
	m.restart()
	m.until("the missing version is reported", func() bool { v, boot := s.reported("m1"); return v == "" && boot != "" })
	m.runtime.SetVersion(wire.ComponentRunc, "1.3.6")
	m.until("the version is reported", func() bool { v, _ := s.reported("m1"); return v == "1.3.6" })
}

// An engine that does not answer leaves the last report, and is asked again.
func TestAReportIsRepeated(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	var asked atomic.Int64
	m.runtime.Intercept(func(c fakeruntime.Call) error {
		if c.Method == "Host" && asked.Add(1) < 4 {
			return errEngineAway
		}
		return nil
	})
	m.runtime.SetVersion(wire.ComponentRunc, "1.3.6")
	m.restart()
	m.until("the version is reported", func() bool { v, _ := s.reported("m1"); return v == "1.3.6" })
	if asked.Load() != 4 || s.machineState("m1") != berth.MachineReady {
		t.Errorf("asked %d times, machine %s", asked.Load(), s.machineState("m1"))
	}
}
