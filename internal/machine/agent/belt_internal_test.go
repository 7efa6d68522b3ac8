package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/activities/node/fakeruntime"
)

// beltHost is a machine with a belt of 15 minutes, in virtual time.
type beltHost struct {
	*belt
	work    atomic.Int64
	silent  atomic.Bool // the engine does not answer
	leasing atomic.Bool // the lease is renewed each second
	ended   atomic.Bool
}

// newBeltHost starts a belt that ends with the test.
func newBeltHost(t *testing.T) *beltHost {
	h := &beltHost{}
	h.belt = &belt{limit: 15 * time.Minute, every: 10 * time.Second, log: slog.New(slog.DiscardHandler),
		look: func(context.Context) (work, error) {
			if h.silent.Load() {
				return workNone, errors.New("no answer")
			}
			return work(h.work.Load()), nil
		}}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go h.watch(ctx, func() { h.ended.Store(true) })
	go func() {
		for tick := time.NewTicker(time.Second); ctx.Err() == nil; {
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
			if h.leasing.Load() {
				h.renewed()
			}
		}
	}()
	return h
}

// endsWithin checks that the belt ends the machine in a time from now, and not before.
func (h *beltHost) endsWithin(t *testing.T, from, to time.Duration) {
	t.Helper()
	time.Sleep(from)
	synctest.Wait()
	if h.ended.Load() {
		t.Errorf("the machine has ended after %s", from)
	}
	time.Sleep(to - from)
	synctest.Wait()
	if !h.ended.Load() {
		t.Errorf("the machine lives after %s", to)
	}
}

// lives checks that the machine does not end in a time from now.
func (h *beltHost) lives(t *testing.T, d time.Duration) {
	t.Helper()
	time.Sleep(d)
	synctest.Wait()
	if h.ended.Load() {
		t.Fatal("the machine has ended")
	}
}

func TestBeltEndsAMachineOfNoUse(t *testing.T) {
	t.Parallel()
	const limit = 15 * time.Minute
	for name, test := range map[string]func(t *testing.T, h *beltHost){
		"a machine that does not join ends": func(t *testing.T, h *beltHost) {
			h.endsWithin(t, limit-10*time.Second, limit+10*time.Second)
		},
		"a machine with a lease lives, and ends after the lease": func(t *testing.T, h *beltHost) {
			h.leasing.Store(true)
			h.lives(t, 24*time.Hour)
			h.leasing.Store(false)
			h.endsWithin(t, limit, berth.MachineLeaseTTL+limit+20*time.Second)
		},
		"a machine with work lives through an outage, and ends after the work": func(t *testing.T, h *beltHost) {
			h.leasing.Store(true)
			h.work.Store(int64(workRunning))
			h.lives(t, time.Hour)
			h.leasing.Store(false)
			h.lives(t, 2*reportPatience)
			h.work.Store(int64(workNone))
			h.endsWithin(t, limit-10*time.Second, limit+10*time.Second)
		},
		"results keep a machine for a day after the last container": func(t *testing.T, h *beltHost) {
			h.work.Store(int64(workWaiting))
			h.lives(t, reportPatience/2)
			h.work.Store(int64(workRunning))
			h.lives(t, 2*reportPatience)
			h.work.Store(int64(workWaiting))
			h.endsWithin(t, reportPatience+limit-time.Minute, reportPatience+limit+time.Minute)
		},
		"a lease renews the time for results": func(t *testing.T, h *beltHost) {
			h.work.Store(int64(workWaiting))
			h.lives(t, reportPatience-time.Hour)
			h.leasing.Store(true)
			h.lives(t, time.Minute)
			h.leasing.Store(false)
			h.endsWithin(t, reportPatience+limit-time.Minute, reportPatience+limit+time.Minute)
		},
		"an outage that ends in time begins again": func(t *testing.T, h *beltHost) {
			h.lives(t, limit-time.Minute)
			h.leasing.Store(true)
			h.lives(t, time.Minute)
			h.leasing.Store(false)
			h.endsWithin(t, limit, berth.MachineLeaseTTL+limit+20*time.Second)
		},
		"a silent engine neither ends a machine nor saves it for good": func(t *testing.T, h *beltHost) {
			h.lives(t, limit/2)
			h.silent.Store(true)
			h.lives(t, 24*time.Hour)
			h.silent.Store(false)
			h.endsWithin(t, limit/2-20*time.Second, limit/2+20*time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { test(t, newBeltHost(t)) })
		})
	}
}

// A machine that stood still for an hour, as a virtual machine that is moved, gets the time to renew its lease.
func TestPauseOfTheProcessIsOneStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &belt{limit: 15 * time.Minute, every: 10 * time.Second, log: slog.New(slog.DiscardHandler)}
		looks := 0
		h.look = func(context.Context) (work, error) {
			if looks++; looks == 2 {
				time.Sleep(time.Hour) // in the middle of a look
			}
			return workNone, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := false
		go h.watch(ctx, func() { ended = true })
		time.Sleep(time.Hour + 5*time.Minute)
		synctest.Wait()
		if ended || looks < 3 {
			t.Errorf("ended %v after %d looks: the pause counts as one step at most", ended, looks)
		}
		cancel()
		synctest.Wait()
	})
}

// A look may take long, so the lease is looked at after it, too.
func TestBeltHeedsARenewalDuringALook(t *testing.T) {
	t.Parallel()
	b := &belt{limit: time.Minute, log: slog.New(slog.DiscardHandler)}
	b.look = func(context.Context) (work, error) { return workNone, nil }
	if b.count(t.Context(), b.limit-1) || !b.count(t.Context(), 1) {
		t.Fatal("the limit is not reached in time")
	}
	b.look = func(context.Context) (work, error) {
		b.renewed()
		return workNone, nil
	}
	if b.count(t.Context(), 1) || b.unused != 0 {
		t.Errorf("the machine ends with a lease that was just renewed, or counts %s", b.unused)
	}
}

// The last look is after the end of all members. A machine that was removed ends in spite of its last lease.
func TestUnneededMachineHasNoLeaseAndNoWork(t *testing.T) {
	t.Parallel()
	fake := fakeruntime.New(fakeruntime.Options{})
	t.Cleanup(fake.Shutdown)
	a := &Agent{cfg: Config{Machine: "m1", Runtime: fake}, belt: &belt{}}
	if err := a.unneeded(t.Context()); !errors.Is(err, ErrUnneeded) {
		t.Errorf("without lease and work: %v", err)
	}
	a.belt.renewed()
	if err := a.unneeded(t.Context()); err == nil || errors.Is(err, ErrUnneeded) {
		t.Errorf("with a lease: %v", err)
	}
	a.fail()
	if err := a.unneeded(t.Context()); !errors.Is(err, ErrUnneeded) {
		t.Errorf("after a failure: %v", err)
	}
}

// Without a limit the belt looks at nothing.
func TestBeltIsOffByDefault(t *testing.T) {
	t.Parallel()
	b := &belt{every: time.Nanosecond, log: slog.New(slog.DiscardHandler)}
	b.watch(t.Context(), func() { t.Error("the machine ends") })
}
