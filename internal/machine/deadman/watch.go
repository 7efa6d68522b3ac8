package deadman

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Options configure a deadman. Dir is required.
type Options struct {
	Dir    string        // the agent's folder for it; see Dir
	Beat   time.Duration // zero: 1 s
	Logger *slog.Logger  // nil: discard

	// EndIdle ends the process once the lease lists no member and no agent runs. It is for a
	// deadman that an agent has started; a deadman of the service manager runs on.
	EndIdle bool
}

// ErrWatched says that another deadman watches the folder.
var ErrWatched = errors.New("another berth-deadman watches this folder")

// watch is a deadman at work.
type watch struct {
	Options
	boot  string
	lease Lease           // the last good one
	told  map[string]bool // containers that were sent SIGTERM in this fence
	state State
	fault string // the last one logged, so that each is said once
}

// Run watches until ctx ends, or until nothing is left to watch. It returns
// ErrWatched if the folder has a deadman already.
func Run(ctx context.Context, o Options) error {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Beat <= 0 {
		o.Beat = time.Second
	}
	boot, err := BootID()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fmt.Errorf("make the fence's folder: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(o.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("lock the fence's folder: %w", err)
	}
	defer func() {
		// A program that is being started at this moment has a copy of the file, and
		// with the copy the lock, until the program runs.
		_ = syscall.Flock(int(lock.Fd()), syscall.LOCK_UN)
		_ = lock.Close()
	}()
	if err := take(ctx, lock); err != nil {
		return fmt.Errorf("%w: %s", err, o.Dir)
	}
	w := &watch{Options: o, boot: boot, told: map[string]bool{}}
	tick := time.NewTicker(o.Beat)
	defer tick.Stop()
	for !w.beat() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			if w.state != Idle {
				o.Logger.Error("deadman stopped while at_most_one work is running", "ranks", len(w.lease.Ranks))
			}
			return nil
		}
	}
	return nil
}

// take locks the folder. Who asks whether a deadman answers holds the lock for a
// moment, so one refusal proves nothing.
func take(ctx context.Context, lock *os.File) error {
	for deadline := time.Now().Add(time.Second); ; {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return err
		case time.Now().After(deadline):
			return ErrWatched
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// beat makes one pass. It reads the lease, acts on each member, writes the pulse, and reports
// whether the deadman must end.
func (w *watch) beat() (over bool) {
	w.read()
	now := Now()
	state, living := Idle, 0
	if _, err := os.Stat(w.Dir); errors.Is(err, os.ErrNotExist) {
		state = Gone
	}
	if w.lease.Boot == w.boot {
		for _, r := range w.lease.Ranks {
			s := judge(w.lease, r, now)
			if state == Gone {
				s = Gone
			}
			state = worse(state, s)
			living += w.act(r, s)
		}
	}
	if state != w.state {
		w.Logger.Info("deadman state changed", "from", w.state, "to", state, "ranks", len(w.lease.Ranks))
		w.state = state
	}
	if state == Idle || state == Watching {
		clear(w.told)
	}
	if state == Gone {
		return living == 0
	}
	w.note("cannot write the pulse file", replace(filepath.Join(w.Dir, "pulse.json"), Pulse{
		PID: os.Getpid(), Boot: w.boot, At: Now(), State: state, Seq: w.lease.Seq,
	}))
	return w.EndIdle && state == Idle && w.deserted()
}

// read takes over the lease file if the file exists and is sound. Otherwise the last good lease
// stays in force.
func (w *watch) read() {
	l, err := ReadLease(w.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err == nil {
		err = l.check(w.boot, Now())
	}
	if err != nil {
		w.note("cannot read the lease file, using the last good one", err)
		return
	}
	w.lease = l
}

// judge is the state of one member: the table of the package's documentation.
func judge(l Lease, r Rank, now Instant) State {
	switch age := l.Age(now); {
	case age < l.Fence:
		return Watching
	case age < l.Fence+r.Grace:
		return Stopping
	default:
		return Killing
	}
}

// act carries out a state's action on one member, and returns the number of processes found that
// must not live.
func (w *watch) act(r Rank, s State) int {
	switch s {
	case Stopping:
		w.note("gate not closed", w.close(r))
		if !w.told[r.Container] {
			w.told[r.Container] = true
			w.Logger.Warn("lease ended, stopping container", "container", r.Name, "grace", r.Grace)
			w.note("cannot send SIGTERM to a fenced container", Terminate(r.Container))
		}
		return 0
	case Killing, Gone:
		if s == Killing {
			w.note("gate not closed", w.close(r))
		}
		n, err := Kill(r.Container)
		w.note("cannot kill a fenced container", err)
		if n > 0 {
			w.Logger.Warn("lease ended, killing container", "container", r.Name, "processes", n)
		}
		return n
	case Idle, Watching:
		return 0
	default:
		panic("unknown state " + string(s))
	}
}

// close closes the member's gate, if the member has one.
func (w *watch) close(r Rank) error {
	if r.Gate == "" {
		return nil
	}
	return CloseGate(r.Gate)
}

// worse is the later of two states in the order of the table.
func worse(a, b State) State {
	order := map[State]int{Idle: 0, Watching: 1, Stopping: 2, Killing: 3, Gone: 4}
	if order[b] > order[a] {
		return b
	}
	return a
}

// deserted reports whether no agent holds the folder.
func (w *watch) deserted() bool {
	f, err := os.OpenFile(filepath.Join(w.Dir, "agent"), os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return true
	}
	if err != nil {
		return false
	}
	defer f.Close() // which gives the lock back
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// note logs an error, the same one once.
func (w *watch) note(what string, err error) {
	if err == nil {
		return
	}
	if text := what + ": " + err.Error(); text != w.fault {
		w.fault = text
		w.Logger.Error(what, "err", err)
	}
}
