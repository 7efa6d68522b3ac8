package agent_test

import (
	"strings"
	"testing"

	"berth"
)

// forget makes the database one that was restored from a backup older than the
// job.
func (s *site) forget(id berth.JobID) {
	s.t.Helper()
	conn, err := s.db.Pool().Acquire(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Release()
	for _, sql := range []string{
		"SET session_replication_role = replica", // a restore fires no triggers
		"DELETE FROM device_allocations",
		"DELETE FROM allocations WHERE job = '" + string(id) + "'",
		"DELETE FROM attempts WHERE job = '" + string(id) + "'",
		"DELETE FROM jobs WHERE id = '" + string(id) + "'",
		"UPDATE machines SET cpu_m_used = 0, mem_mb_used = 0, disk_mb_used = 0, gpu_milli_used = 0",
		"UPDATE gpu_devices SET milli_used = 0",
		"RESET session_replication_role",
	} {
		if _, err := conn.Exec(s.t.Context(), sql); err != nil {
			s.t.Fatalf("%v\n%s", err, sql)
		}
	}
}

// The rows of a container are lost with the tail of the database. It is neither
// adopted nor killed, and its machine takes no work before it has ended.
func TestF15ContainersThatTheDatabaseForgotAreLeftAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, "sleep", "1h")
	req, _ := m.run(id)
	m.running(req)
	before, err := m.container(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	s.forget(id)
	m.start()
	m.until("it is in quarantine", func() bool { return strings.Contains(m.logs.text(), "does not know a container") })
	found, err := s.db.Machines.Get(t.Context(), "", "m1")
	if err != nil || found.State != berth.MachineJoining || !strings.Contains(found.Reason, "does not know") {
		t.Errorf("the machine is %s: %s, %v", found.State, found.Reason, err)
	}
	m.restart()
	if after, err := m.container(req); err != nil || after.ID != before.ID || s.machineState("m1") != berth.MachineJoining {
		t.Errorf("after another registration the container is %+v, %v; the machine is %s", after, err, s.machineState("m1"))
	}
	m.runtime.Exit(berth.ContainerName(id, 0, 1), 0)
	m.until("the machine takes work again", func() bool { return s.machineState("m1") == berth.MachineReady })
	next := s.submit(nil, "exit", "0")
	_, w := m.run(next)
	if x := w.exit(); x.Code != 0 {
		t.Errorf("exit is %+v", x)
	}
}
