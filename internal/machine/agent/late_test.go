package agent_test

import (
	"errors"
	"testing"

	"berth"
	"berth/activities/node"
)

// A machine did not receive its work, which was then placed elsewhere. When the machine comes
// back, and however often it does, it starts nothing of that work: only its set of assignments
// brings work.
func TestF19WorkThatWentElsewhereIsNotStartedLate(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	deaf, other := s.machine("m1"), s.machine("m2")
	id := s.submit(nil, "sleep", "1h")
	if err := deaf.stop(); err != nil {
		t.Fatal(err)
	}
	late := deaf.place(id)
	if _, err := s.db.Pool().Exec(t.Context(), `UPDATE allocations SET reserved_at = now() - interval '3 min' WHERE job = $1`, id); err != nil {
		t.Fatal(err)
	}
	if j := s.settle(id); j.Status != berth.Retrying || j.Reason.Code != berth.ReasonUnclaimed {
		t.Fatalf("job is %s: %+v", j.Status, j.Reason)
	}
	if _, err := s.db.Pool().Exec(t.Context(), `UPDATE jobs SET eligible_at = now() WHERE id = $1`, id); err != nil {
		t.Fatal(err)
	}
	req, w := other.run(id)
	other.running(req)
	deaf.start()
	for range 2 {
		deaf.restart()
		if r := deaf.wait(late).result(); r.Exit != nil || r.Phase == berth.PhaseRunning {
			t.Errorf("the late work came to %+v", r)
		}
	}
	if c, err := deaf.container(late); !errors.Is(err, node.ErrNoContainer) {
		t.Errorf("it has made a container: %+v, %v", c, err)
	}
	other.runtime.Exit(berth.ContainerName(id, 0, 2), 0)
	if x := w.exit(); x.Code != 0 {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Succeeded {
		t.Errorf("job is %s", j.Status)
	}
}
