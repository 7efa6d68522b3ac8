package wait_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/activities/wait"
	"berth/failure"
	"berth/wire"
)

const patience = 5 * time.Minute

// site is the rows, the hints and the Temporal server that a registry works with.
type site struct {
	t     *testing.T
	hints chan struct{}

	mu       sync.Mutex
	rows     map[berth.AllocationID]wire.MemberView
	hinted   []berth.AllocationID
	missed   bool
	noStore  error            // of every read
	noServer error            // of every call to Temporal
	gone     map[string]bool  // tokens that the server does not know
	done     map[string][]end // by token: what arrived
	beats    map[string][]wire.RunProgress
	reads    int
	sweeps   int
	most     int // completions at once
	now      int
	slow     chan struct{} // not nil: completions wait for it
}

// end is a completion that the server received.
type end struct {
	result wire.RunResult
	moved  bool // handed over
	delay  time.Duration
}

func newSite(t *testing.T) *site {
	return &site{
		t: t, hints: make(chan struct{}, 1), rows: map[berth.AllocationID]wire.MemberView{},
		gone: map[string]bool{}, done: map[string][]end{}, beats: map[string][]wire.RunProgress{},
	}
}

func (s *site) Members(_ context.Context, ids []berth.AllocationID) ([]wire.MemberView, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	var list []wire.MemberView
	for _, id := range ids {
		if v, ok := s.rows[id]; ok {
			list = append(list, v)
		}
	}
	return list, s.noStore
}

func (s *site) Ended(context.Context) ([]berth.AllocationID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweeps++
	var list []berth.AllocationID
	for id, v := range s.rows {
		if v.Sealed {
			list = append(list, id)
		}
	}
	return list, s.noStore
}

func (s *site) News() <-chan struct{} { return s.hints }

func (s *site) Take() ([]berth.AllocationID, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list, missed := s.hinted, s.missed
	s.hinted, s.missed = nil, false
	return list, missed
}

func (s *site) answer(token []byte) error {
	switch {
	case s.noServer != nil:
		return s.noServer
	case s.gone[string(token)]:
		return wait.ErrGone
	}
	return nil
}

func (s *site) Complete(_ context.Context, token []byte, r wire.RunResult) error {
	s.mu.Lock()
	s.now++
	s.most = max(s.most, s.now)
	slow := s.slow
	s.mu.Unlock()
	if slow != nil {
		<-slow
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now--
	if err := s.answer(token); err != nil {
		return err
	}
	s.done[string(token)] = append(s.done[string(token)], end{result: r})
	return nil
}

func (s *site) Beat(_ context.Context, token []byte, p wire.RunProgress) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.answer(token); err != nil {
		return err
	}
	s.beats[string(token)] = append(s.beats[string(token)], p)
	return nil
}

func (s *site) HandOver(_ context.Context, token []byte, delay time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.answer(token); err != nil {
		return err
	}
	s.done[string(token)] = append(s.done[string(token)], end{moved: true, delay: delay})
	return nil
}

// run sets a registry to work for the test's time. A sweep of 0 never comes.
func (s *site) run(o wait.Options) *wait.Registry {
	s.t.Helper()
	if o.Sweep == 0 {
		o.Sweep = time.Hour
	}
	r := wait.New(s, s, o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx, s); !errors.Is(err, context.Canceled) {
			s.t.Errorf("run: %v", err)
		}
	}()
	s.t.Cleanup(func() { cancel(); <-done })
	return r
}

// set stores a member's row.
func (s *site) set(v wire.MemberView) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows[v.Alloc] = v
}

func (s *site) hint(ids ...berth.AllocationID) {
	s.mu.Lock()
	s.hinted = append(s.hinted, ids...)
	s.mu.Unlock()
	select {
	case s.hints <- struct{}{}:
	default:
	}
}

func (s *site) until(what string, ok func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		yes := ok()
		s.mu.Unlock()
		if yes {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("never: %s", what)
		}
	}
}

// ends waits for the completion of an activity.
func (s *site) ends(token string) end {
	s.t.Helper()
	s.until("activity "+token+" ends", func() bool { return len(s.done[token]) > 0 })
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done[token][0]
}

func running(id berth.AllocationID) wire.MemberView {
	return wire.MemberView{Alloc: id, State: berth.AllocActive, Current: true, Progress: wire.RunProgress{Phase: berth.PhaseRunning, Step: 7, Machine: "m1"}}
}

func sealed(id berth.AllocationID) wire.MemberView {
	v := running(id)
	v.State, v.Sealed, v.Exit = berth.AllocExited, true, &failure.Exit{Cause: failure.CauseExited, Code: 3}
	return v
}

func wantSealed(t *testing.T, e end) {
	t.Helper()
	if e.moved || e.result.Phase != berth.PhaseSealed || e.result.Exit == nil || e.result.Exit.Code != 3 {
		t.Errorf("the activity ended with %+v", e)
	}
}

func TestAHintedEndIsReturned(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r := s.run(wait.Options{})
	s.set(running(1))
	r.Enter(1, []byte("a"))
	s.until("the row is read", func() bool { return s.reads > 0 })
	s.set(sealed(1))
	s.hint(1, 99) // no waiter of 99 is here
	wantSealed(t, s.ends("a"))
	if waiting, _ := r.Waiting(); waiting != 0 {
		t.Errorf("%d wait still", waiting)
	}
}

func TestAnEndRecordedBeforeTheWaiterCameIsReturnedAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.set(sealed(1))
	r := s.run(wait.Options{}) // no sweep, no hint
	r.Enter(1, []byte("a"))
	wantSealed(t, s.ends("a"))
}

func TestAnEndWhoseHintIsLostIsSweptUp(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	// A heartbeat reads the row as well, so none comes here.
	r := s.run(wait.Options{Sweep: 5 * time.Millisecond, Beat: 24 * time.Hour})
	s.set(running(1))
	s.set(running(2))
	r.Enter(1, []byte("a"))
	r.Enter(2, []byte("b"))
	s.until("the rows are read", func() bool { return s.reads > 0 })
	s.set(sealed(1))
	wantSealed(t, s.ends("a"))
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.done["b"]) > 0 {
		t.Errorf("the other ended with %+v", s.done["b"])
	}
}

func TestAfterABreakOfTheHintsAllRowsAreRead(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r := s.run(wait.Options{})
	s.set(running(1))
	r.Enter(1, []byte("a"))
	s.until("the row is read", func() bool { return s.reads > 0 })
	s.set(sealed(1))
	s.mu.Lock()
	s.missed = true
	s.mu.Unlock()
	s.hint()
	wantSealed(t, s.ends("a"))
}

// The wait for a superseded attempt ends without a result: the workflow reads
// the row, which alone says what became of it.
func TestAMemberThatIsNotToBeWaitedForEndsUnsealed(t *testing.T) {
	t.Parallel()
	superseded, orphaned, released := running(1), running(2), running(3)
	superseded.Current = false
	orphaned.State, released.State = berth.AllocOrphaned, berth.AllocReleased
	s := newSite(t)
	s.set(superseded)
	s.set(orphaned)
	s.set(released)
	r := s.run(wait.Options{})
	for id, token := range map[berth.AllocationID]string{1: "superseded", 2: "orphaned", 3: "released", 4: "without a row"} {
		r.Enter(id, []byte(token))
		if e := s.ends(token); e.moved || e.result != (wire.RunResult{}) {
			t.Errorf("%s ended with %+v", token, e)
		}
	}
}

func TestEveryWaiterOfAMemberIsTold(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.gone["old"] = true // the server has repeated it: the later one counts
	r := s.run(wait.Options{})
	s.set(running(1))
	r.Enter(1, []byte("old"))
	r.Enter(1, []byte("new"))
	s.set(sealed(1))
	s.hint(1)
	wantSealed(t, s.ends("new"))
	s.until("nothing is under way", func() bool { w, e := r.Waiting(); return w+e == 0 })
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.done["old"]) > 0 {
		t.Error("the server took a result of an activity that is over")
	}
}

func TestADatabaseThatIsAwayEndsNoWait(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.noStore = errors.New("away")
	r := s.run(wait.Options{Sweep: 5 * time.Millisecond})
	r.Enter(1, []byte("a"))
	s.until("it tried to read", func() bool { return s.reads > 0 })
	s.mu.Lock()
	if len(s.done) > 0 {
		t.Errorf("ended with %+v", s.done)
	}
	s.noStore = nil
	s.rows[1] = sealed(1)
	s.mu.Unlock()
	wantSealed(t, s.ends("a"))
}

func TestEndsAreToldUntilTheServerTakesThem(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.noServer = errors.New("away")
	s.set(sealed(1))
	r := s.run(wait.Options{})
	r.Enter(1, []byte("a"))
	s.until("it is on its way", func() bool { _, ending := r.Waiting(); return ending > 0 })
	s.mu.Lock()
	s.noServer = nil
	s.mu.Unlock()
	wantSealed(t, s.ends("a"))
}

// Thousands of ends at once must not become thousands of calls at once: a server
// that is slower than that would let all of them time out.
func TestManyEndsAtOnceLeaveByFewCalls(t *testing.T) {
	t.Parallel()
	const n = 3000
	s := newSite(t)
	s.slow = make(chan struct{})
	r := s.run(wait.Options{})
	for id := range berth.AllocationID(n) {
		s.set(sealed(id))
		r.Enter(id, []byte{byte(id), byte(id >> 8)})
	}
	go func() {
		for range n {
			s.slow <- struct{}{}
		}
	}()
	s.until("all have ended", func() bool { return len(s.done) == n })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most > 16 {
		t.Errorf("%d calls at once", s.most)
	}
	if s.reads > n/2 {
		t.Errorf("%d reads for %d members: they are read together", s.reads, n)
	}
}

func TestAStoppingReplicaHandsItsWaitersOver(t *testing.T) {
	t.Parallel()
	const n = 500
	s := newSite(t)
	s.gone["\x01\x00"] = true
	r := s.run(wait.Options{})
	for id := range berth.AllocationID(n) {
		s.set(running(id))
		r.Enter(id, []byte{byte(id), byte(id >> 8)})
	}
	if left := r.HandOver(t.Context()); left != 0 {
		t.Errorf("%d are left", left)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var delays []time.Duration
	for _, list := range s.done {
		for _, e := range list {
			if !e.moved {
				t.Fatalf("one ended with %+v", e)
			}
			delays = append(delays, e.delay)
		}
	}
	slices.Sort(delays)
	if len(delays) != n-1 {
		t.Errorf("%d were handed over", len(delays))
	}
	// Taken up at the same moment they would be a burst for the replicas that go on.
	if spread := delays[len(delays)-1] - delays[0]; spread < 3*time.Second {
		t.Errorf("all are taken up within %s", spread)
	}
	if r.Enter(1, []byte("late")) {
		t.Error("a replica that stops takes a waiter")
	}
}

func TestAReplicaThatStopsWithoutTemporalStopsAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.noServer = errors.New("away")
	r := s.run(wait.Options{})
	for id := range berth.AllocationID(500) {
		s.set(running(id))
		r.Enter(id, []byte{byte(id), byte(id >> 8)})
	}
	if left := r.HandOver(t.Context()); left != 500 {
		t.Errorf("%d are left", left)
	}
}
