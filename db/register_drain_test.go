package db_test

import (
	"testing"
)

// A window would return the machine at its end.
func TestAShortMachineInAMaintenanceWindowStaysClosed(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	s.offersTwo()
	if _, _, err := s.db.JoinTokens.Join(t.Context(), s.launches("v1"), "v1"); err != nil {
		t.Fatal(err)
	}
	mustExec(t, s.pool, `UPDATE machines SET state = 'draining', reason = 'maintenance 1', drain_reason = 'maintenance 1', drain_deadline = now()
		WHERE id = 'v1'`)
	mustExec(t, s.pool, `UPDATE machines SET drain_actor = 'maintenance:1' WHERE id = 'v1'`)
	s.registersWith("v1", "boot", "H100")
	if m := s.machine("", "v1"); m.DrainBy != "cloud" {
		t.Errorf("the machine drains for %q by %q", m.Reason, m.DrainBy)
	}
	if got := s.stopped("v1"); got != "" { // not yet serving
		t.Errorf("the launch ends for %q", got)
	}
}

// drain_actor outlasts the drain.
func TestTheReasonOfASilentEngineIsNotEmpty(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	s.offersTwo()
	s.joinsLaunch("v1", s.launches("v1"), "H100")
	if err := s.db.Machines.Undrain(t.Context(), "v1", "operator:test"); err != nil {
		t.Fatal(err)
	}
	mustExec(t, s.pool, `UPDATE machines SET engine_silent_since = now() - interval '16 minutes' WHERE id = 'v1'`)
	if got := s.stopped("v1"); got != "the machine is empty and takes no work: its engine is silent" {
		t.Errorf("the launch ends for %q", got)
	}
}
