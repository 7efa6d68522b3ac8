package wait_test

import (
	"errors"
	"testing"
	"time"

	"berth"
	"berth/activities/wait"
)

// often is a registry whose heartbeats are due all the time.
var often = wait.Options{Sweep: 2 * time.Millisecond, Beat: 20 * time.Millisecond}

func TestHeartbeatsTellWhatTheRowSays(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.set(running(1))
	r := s.run(often)
	r.Enter(1, []byte("a"))
	s.until("it beats", func() bool { return len(s.beats["a"]) > 1 })
	v := running(1)
	v.Progress.Step = 8
	s.set(v)
	s.until("it tells of the next step", func() bool { return s.beats["a"][len(s.beats["a"])-1] == v.Progress })
	s.mu.Lock()
	defer s.mu.Unlock()
	if first := s.beats["a"][0]; first != running(1).Progress {
		t.Errorf("the first told %+v", first)
	}
}

// The lease is what detects a dead machine; a waiter whose machine is silent for
// longer than a verdict takes only stops to say that all is well.
func TestAWaiterOfASilentMachineBeatsNoMore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	silent, heard := running(1), running(2)
	silent.Overdue = true
	s.set(silent)
	s.set(heard)
	r := s.run(often)
	r.Enter(1, []byte("silent"))
	r.Enter(2, []byte("heard"))
	s.until("the other beats", func() bool { return len(s.beats["heard"]) > 5 })
	s.mu.Lock()
	if len(s.beats["silent"]) > 0 || len(s.done) > 0 {
		t.Errorf("it beat %d times; ended: %v", len(s.beats["silent"]), s.done)
	}
	s.mu.Unlock()
	s.set(running(1)) // heard again, or verdicts are frozen
	s.until("it beats again", func() bool { return len(s.beats["silent"]) > 0 })
}

func TestWithoutTheDatabaseHeartbeatsGoOn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.set(running(1))
	r := s.run(wait.Options{Sweep: 2 * time.Millisecond, Beat: 20 * time.Millisecond})
	r.Enter(1, []byte("a"))
	s.until("it beats", func() bool { return len(s.beats["a"]) > 0 })
	s.mu.Lock()
	s.noStore = errors.New("away")
	n := len(s.beats["a"])
	s.mu.Unlock()
	s.until("it beats on", func() bool { return len(s.beats["a"]) > n+2 })
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := s.beats["a"][len(s.beats["a"])-1]; last != running(1).Progress {
		t.Errorf("it tells %+v", last)
	}
}

func TestAnActivityThatIsOverIsForgotten(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.set(running(1))
	s.set(running(2))
	s.gone["repeated"], s.gone["first"] = true, true
	r := s.run(often)
	for _, token := range []string{"first", "repeated", "now"} {
		r.Enter(1, []byte(token))
	}
	r.Enter(2, []byte("repeated"))
	s.until("the others are forgotten", func() bool { waiting, _ := r.Waiting(); return waiting == 1 })
	s.set(sealed(1))
	s.hint(1)
	wantSealed(t, s.ends("now"))
}

func TestAHeartbeatThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.set(running(1))
	s.noServer = errors.New("away")
	r := s.run(often)
	r.Enter(1, []byte("a"))
	s.until("it was due", func() bool { return s.reads > 1 })
	if waiting, _ := r.Waiting(); waiting != 1 {
		t.Errorf("%d wait", waiting)
	}
	s.mu.Lock()
	s.noServer = nil
	s.rows[1] = sealed(1)
	s.mu.Unlock()
	wantSealed(t, s.ends("a"))
}

// A first heartbeat long before or after the others is what keeps thousands of
// waiters that came at once from sending their heartbeats at once always.
func TestHeartbeatsOfWaitersThatCameAtOnceAreSpread(t *testing.T) {
	t.Parallel()
	const n = 400
	s := newSite(t)
	r := s.run(wait.Options{Sweep: 5 * time.Millisecond, Beat: 20 * time.Second})
	for id := range berth.AllocationID(n) {
		s.set(running(id))
		r.Enter(id, []byte{byte(id), byte(id >> 8)})
	}
	s.until("some beat", func() bool { return len(s.beats) > 20 })
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.beats) > n/2 {
		t.Errorf("%d of %d beat at once", len(s.beats), n)
	}
}
