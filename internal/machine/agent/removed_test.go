package agent_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/activities/node/fakeruntime"
	"berth/failure"
	"berth/internal/machine/agent"
	"berth/spec"
)

func TestAgentOfARemovedMachineEnds(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	cfg := s.machine("m1").cfg
	cfg.Machine, cfg.StateDir = "m2", t.TempDir()
	cfg.GPUs = declared{}
	token, err := s.db.JoinTokens.Create(t.Context(), spec.NewJoinToken{}, "operator:test")
	if err != nil {
		t.Fatal(err)
	}
	cfg.JoinToken = token.Secret
	run := func() chan error {
		done := make(chan error, 1)
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(cancel)
		go func() { done <- agent.Run(ctx, cfg) }()
		return done
	}
	ends := func(done chan error) {
		t.Helper()
		select {
		case err := <-done:
			if !berth.IsSlug(err, berth.SlugMachineRetired) || !strings.Contains(err.Error(), "credential.json") {
				t.Errorf("it ended with %v", err)
			}
		case <-time.After(patience):
			t.Error("it does not end")
		}
	}
	done := run()
	s.until("m2 is ready", func() bool { return s.machineState("m2") == berth.MachineReady })
	if err := s.db.Machines.Retire(t.Context(), "m2", "operator:test"); err != nil {
		t.Fatal(err)
	}
	ends(done)
	ends(run()) // and again when it is started again
}

// A report that the server cannot store is sent again later; the reports of other ranks are not
// held up.
func TestAReportThatIsRefusedIsSentAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.cfg.Timing.RefusedPause = 50 * time.Millisecond
	m.start()
	id := s.submit(nil, "sleep", "1h")
	req, w := m.run(id)
	m.running(req)
	pool := s.db.Pool()
	if _, err := pool.Exec(t.Context(), `ALTER TABLE allocations ADD CONSTRAINT no_end CHECK (exit IS NULL)`); err != nil {
		t.Fatal(err)
	}
	m.runtime.Exit(berth.ContainerName(id, 0, 1), 0)
	m.until("the agent is told", func() bool { return strings.Contains(m.logs.text(), "refused a member report") })
	if _, err := pool.Exec(t.Context(), `ALTER TABLE allocations DROP CONSTRAINT no_end`); err != nil {
		t.Fatal(err)
	}
	if x := w.exit(); x.Code != 0 {
		t.Errorf("exit is %+v", x)
	}
}

func TestARankThatIsNotPreparedInTimeGoesElsewhere(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.cfg.Timing.PreparePatience = time.Second
	m.start()
	m.runtime.Intercept(func(c fakeruntime.Call) error {
		if c.Method == "EnsureImage" {
			time.Sleep(1500 * time.Millisecond) // a registry that takes its time
			return context.DeadlineExceeded
		}
		return nil
	})
	id := s.submit(nil, "exit", "0")
	_, w := m.run(id)
	if x := w.exit(); x.Cause != failure.CauseImageUnavailable || !strings.Contains(x.Message, "not ready within 1s") {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Retrying || j.Reason.Code != berth.ReasonImageUnavailable {
		t.Errorf("job is %s: %+v", j.Status, j.Reason)
	}
}
