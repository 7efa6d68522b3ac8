package workers

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"berth/activities/wait"
	"berth/internal/lib/overload"
	"berth/wire"
)

// limited1 is a limit of one call at a time that records its calls.
type limited1 struct {
	*overload.Limiter

	mu   sync.Mutex
	errs []error // of the calls, as the limit sees them
}

func newLimited1() *limited1 {
	return &limited1{Limiter: overload.New(overload.Options{Name: "temporal", Min: 1, First: 1, Max: 1})}
}

func (l *limited1) Call(ctx context.Context, class overload.Class, call func(context.Context) error) error {
	return l.Do(ctx, class, func(ctx context.Context) error {
		err := call(ctx)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.errs = append(l.errs, err)
		return err
	})
}

func (l *limited1) Await(ctx context.Context, class overload.Class) error {
	p, err := l.Acquire(ctx, class)
	if err == nil {
		p.Drop()
	}
	return err
}

// take holds the only permit until the function that it returns is called.
func (l *limited1) take(t *testing.T) (giveBack func()) {
	t.Helper()
	p, err := l.Acquire(t.Context(), overload.Vital)
	if err != nil {
		t.Fatal(err)
	}
	return p.Drop
}

// queued waits until so many calls of a class wait.
func (l *limited1) queued(t *testing.T, class overload.Class, n int) {
	t.Helper()
	tick, late := time.NewTicker(time.Millisecond), time.After(5*time.Minute)
	defer tick.Stop()
	for l.Stats().Queued[class] != n {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("never: %d calls of class %s wait: %v", n, class, l.Stats().Queued)
		}
	}
}

// answers is a Temporal client with an answer for each kind of call.
type answers struct {
	client.Client
	complete, beat error

	mu    sync.Mutex
	calls []string
}

func (a *answers) record(call string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, call)
}

func (a *answers) made() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.calls)
}

func (a *answers) CompleteActivity(_ context.Context, token []byte, _ any, _ error) error {
	a.record("complete " + string(token))
	return a.complete
}

func (a *answers) RecordActivityHeartbeat(_ context.Context, token []byte, _ ...any) error {
	a.record("beat " + string(token))
	return a.beat
}

// Without the limit thousands of waiters would complete, beat and leave at the
// speed of their senders, in front of starts.
func TestCallsByTokenWaitForTheLimit(t *testing.T) {
	t.Parallel()
	limit, server := newLimited1(), &answers{}
	calls := byToken{server, limit}
	giveBack := limit.take(t)
	var all sync.WaitGroup
	check := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	all.Go(func() { check(calls.HandOver(t.Context(), []byte("leaves"), time.Second)) })
	limit.queued(t, overload.Reattach, 1)
	all.Go(func() { check(calls.Beat(t.Context(), []byte("beats"), wire.RunProgress{})) })
	limit.queued(t, overload.End, 1)
	all.Go(func() { check(calls.Complete(t.Context(), []byte("ends"), wire.RunResult{})) })
	limit.queued(t, overload.End, 2)
	if made := server.made(); len(made) > 0 {
		t.Errorf("made past the limit: %v", made)
	}
	giveBack()
	all.Wait()
	if got, want := server.made(), []string{"beat beats", "complete ends", "complete leaves"}; !slices.Equal(got, want) {
		t.Errorf("calls %v, want %v", got, want)
	}
}

// A server that says that an activity is canceled, paused or over is well.
func TestAnswersAboutActivitiesAreNoFaultsOfTheServer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answers *answers
		want    error
		calls   int
	}{
		"canceled":           {&answers{beat: temporal.NewCanceledError()}, wait.ErrGone, 2},
		"canceled and over":  {&answers{beat: temporal.NewCanceledError(), complete: serviceerror.NewNotFound("over")}, wait.ErrGone, 2},
		"paused":             {&answers{beat: activity.ErrActivityPaused}, wait.ErrGone, 1},
		"reset":              {&answers{beat: activity.ErrActivityReset}, wait.ErrGone, 1},
		"repeated elsewhere": {&answers{beat: serviceerror.NewNotFound("over")}, wait.ErrGone, 1},
	} {
		limit := newLimited1()
		err := byToken{c.answers, limit}.Beat(t.Context(), []byte("a"), wire.RunProgress{})
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if len(limit.errs) != c.calls || errors.Join(limit.errs...) != nil {
			t.Errorf("%s: the limit saw %d calls, with the errors %v", name, len(limit.errs), limit.errs)
		}
	}
	limit, away := newLimited1(), serviceerror.NewUnavailable("away")
	err := byToken{&answers{beat: away}, limit}.Beat(t.Context(), []byte("a"), wire.RunProgress{})
	if !errors.Is(err, away) || !errors.Is(limit.errs[0], away) {
		t.Errorf("away: %v, the limit saw %v", err, limit.errs)
	}
}

// After the loss of a replica with thousands of waiters, the others must first
// serve ends and new jobs.
func TestActivitiesThatComeAgainLetEndsAndStartsPass(t *testing.T) {
	t.Parallel()
	limit := newLimited1()
	w := NewWaiters(WaiterDeps{Client: &answers{}, Limit: limit, Hints: noHints{}}, wait.Options{})
	giveBack := limit.take(t)
	var mu sync.Mutex
	var order []string
	var all sync.WaitGroup
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, what)
	}
	all.Go(func() { w.reattach(t.Context()); note("reattach") })
	limit.queued(t, overload.Reattach, 1)
	for _, class := range []overload.Class{overload.Start, overload.End} {
		all.Go(func() {
			if err := limit.Call(t.Context(), class, func(context.Context) error { note(class.String()); return nil }); err != nil {
				t.Error(err)
			}
		})
		limit.queued(t, class, 1)
	}
	giveBack()
	all.Wait()
	if want := []string{"end", "start", "reattach"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

// Held-back activities leave half of the slots to new members.
func TestActivitiesThatComeAgainHoldHalfOfTheSlots(t *testing.T) {
	t.Parallel()
	limit := newLimited1()
	w := NewWaiters(WaiterDeps{Client: &answers{}, Limit: limit, Hints: noHints{}}, wait.Options{})
	giveBack := limit.take(t)
	var all sync.WaitGroup
	for range waiterSlots / 2 {
		all.Go(func() { w.reattach(t.Context()) })
	}
	limit.queued(t, overload.Reattach, waiterSlots/2)
	w.reattach(t.Context()) // would wait for giveBack
	giveBack()
	all.Wait()
	if n := len(w.held); n != 0 {
		t.Errorf("%d slots are still held", n)
	}
}
