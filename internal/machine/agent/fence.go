package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"berth"
	"berth/activities/node"
	"berth/internal/machine/deadman"
)

// Fence configures how this machine fences at_most_one work.
type Fence struct {
	After time.Duration // from the last accepted sync to the end; 0: the machine takes no such work
	// Program is the berth-deadman that the agent starts if none answers; "": the
	// service manager runs it.
	Program string
}

// beat is the interval of a deadman that the agent starts.
func (f Fence) beat() time.Duration {
	return min(time.Second, max(f.After/10, 10*time.Millisecond))
}

// fence is the agent's side of the deadman: it keeps the lease file, and verifies that a running
// deadman obeys the file. All methods may be called concurrently.
//
// The one rule to know: a container of at_most_one work starts only while the lease is fresh, its
// gate is open, and the deadman has read the list with the container.
type fence struct {
	cfg   Fence
	state string // the agent's folder
	dir   string // the fence's
	boot  string
	log   *slog.Logger
	held  *os.File

	starting sync.Mutex // one caller at a time starts a deadman

	mu     sync.Mutex
	sent   deadman.Instant // the newest sync that the server took
	seq    int64           // of the list
	ranks  map[string]deadman.Rank
	old    map[string]bool // the members listed by an earlier process and not adopted yet
	broken time.Time       // when a deadman last could not be started
	stated time.Duration   // in the last registration
	unable string          // why the machine cannot fence, as last logged
}

// errFenced says that a member has been fenced and must not run.
var errFenced = errors.New("fenced")

// errNotYet says that a member may not start now, but perhaps in a moment.
var errNotYet = errors.New("not yet")

// openFence continues the lease file of an earlier process: the containers on its list
// may live.
func openFence(state string, cfg Fence, log *slog.Logger) (*fence, error) {
	f := &fence{
		cfg: cfg, state: state, dir: deadman.Dir(state), log: log,
		ranks: map[string]deadman.Rank{}, old: map[string]bool{},
	}
	var err error
	if f.boot, err = deadman.BootID(); err != nil {
		return nil, err
	}
	if f.held, err = deadman.Hold(f.dir); err != nil {
		return nil, err
	}
	old, err := deadman.ReadLease(f.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		_ = f.held.Close()
		return nil, fmt.Errorf("%w: remove it once no container of at_most_one work runs here", err)
	}
	// Numbers of lists only grow, even if the file was lost: the deadman may still obey
	// it.
	f.seq = int64(deadman.Now())
	if err == nil && old.Boot == f.boot {
		f.sent, f.seq = old.Sent, max(f.seq, old.Seq+1)
		for _, r := range old.Ranks {
			f.ranks[r.Container], f.old[r.Container] = r, true
		}
	}
	return f, nil
}

// close releases the hold on the fence's folder. A running deadman keeps watching.
func (f *fence) close() { _ = f.held.Close() }

// renewed notes that the server has accepted a sync that was sent then. If the lease had
// ended in between, the containers listed before may not start, whether or not a deadman
// has ended them.
func (f *fence) renewed(sent deadman.Instant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if sent <= f.sent {
		return
	}
	if f.sent > 0 && f.cfg.After > 0 && sent.Sub(f.sent) >= f.cfg.After {
		for _, r := range f.ranks {
			f.log.Warn("lease ended, container will not be started", "container", r.Name)
			if err := deadman.CloseGate(r.Gate); err != nil {
				f.log.Error("gate not closed", "container", r.Name, "err", err)
			}
		}
	}
	f.sent = sent
	if len(f.ranks) > 0 {
		f.write()
	}
}

// write replaces the lease file. f.mu is held. If that fails, the old file ages, and work
// ends without need, which is the safe error.
func (f *fence) write() {
	after := f.cfg.After
	if after <= 0 {
		after = berth.DefaultFence // of work that an earlier process took
	}
	l := deadman.Lease{Boot: f.boot, Sent: f.sent, Fence: after, Seq: f.seq}
	for _, id := range slices.Sorted(maps.Keys(f.ranks)) {
		l.Ranks = append(l.Ranks, f.ranks[id])
	}
	if err := deadman.WriteLease(f.dir, l); err != nil {
		f.log.Error("cannot write the lease file, the deadman uses the previous one", "err", err)
	}
}

// list puts a member under the fence.
func (f *fence) list(r deadman.Rank) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.old, r.Container)
	if f.ranks[r.Container] == r {
		return
	}
	f.ranks[r.Container] = r
	f.seq++
	f.write()
}

// drop takes a container off the list. The caller is certain that it does not run.
func (f *fence) drop(container string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, listed := f.ranks[container]; !listed {
		return
	}
	delete(f.ranks, container)
	delete(f.old, container)
	f.seq++
	f.write()
}

// containerOf returns the id under which a container is listed, "" for an unlisted one.
func (f *fence) containerOf(name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, r := range f.ranks {
		if r.Name == name {
			return id
		}
	}
	return ""
}

// forget drops containers that an earlier process listed and that the engine no longer
// has. A container with live processes stays listed, even if the engine has forgotten it.
func (f *fence) forget(found []node.Container) {
	has := map[string]bool{}
	for _, c := range found {
		has[c.ID] = true
	}
	f.mu.Lock()
	old := slices.Collect(maps.Keys(f.old))
	f.mu.Unlock()
	for _, id := range old {
		if has[id] {
			continue
		}
		if pids, err := deadman.Processes(id); err == nil && len(pids) == 0 {
			f.drop(id)
		}
	}
}

// admits returns nil if a container may be started now, and otherwise errFenced, errNotYet, or
// the reason why no deadman would end the container.
func (f *fence) admits(r deadman.Rank) error {
	if _, closed := deadman.GateClosed(r.Gate); closed {
		return errFenced
	}
	f.list(r)
	f.mu.Lock()
	age, seq := deadman.Now().Sub(f.sent), f.seq
	f.mu.Unlock()
	if age >= min(berth.MachineLeaseTTL, f.cfg.After) {
		return fmt.Errorf("%w: the control plane has not been heard for %s", errNotYet, age.Round(time.Millisecond))
	}
	pulse, err := deadman.Answer(f.dir)
	switch {
	case err != nil:
		return err
	case pulse.Seq < seq:
		return fmt.Errorf("%w: the deadman has not read the list", errNotYet)
	}
	return nil
}

// demand makes sure that a deadman watches, or returns the reason why none does.
func (f *fence) demand(ctx context.Context) (err error) {
	if f.cfg.After <= 0 {
		return errors.New("this machine cannot fence at_most_one work: its agent runs without a deadman")
	}
	f.starting.Lock()
	defer f.starting.Unlock()
	if _, err = deadman.Answer(f.dir); err == nil || f.cfg.Program == "" {
		return err
	}
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.broken = (time.Time{}); err != nil && ctx.Err() == nil {
			f.broken = time.Now()
		}
	}()
	if err = f.start(); err != nil {
		return err
	}
	for deadline := time.Now().Add(deadmanPatience); ; {
		if _, err = deadman.Answer(f.dir); err == nil || time.Now().After(deadline) {
			return err
		}
		if err = sleep(ctx, fencePoll); err != nil {
			return err
		}
	}
}

const (
	deadmanPatience = 10 * time.Second // with the first answer of a started deadman
	deadmanPause    = time.Minute      // without at_most_one work after a deadman could not be started
)

// start starts a deadman in a session of its own, so that the deadman survives this process. If
// another one runs already, the new one ends by itself.
func (f *fence) start() error {
	out, err := os.OpenFile(filepath.Join(f.dir, "deadman.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("start berth-deadman: %w", err)
	}
	defer out.Close()
	cmd := exec.Command(f.cfg.Program, "--state-dir", f.state, "--beat", f.cfg.beat().String(), "--end-idle")
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start berth-deadman: %w", err)
	}
	f.log.Info("deadman started", "pid", cmd.Process.Pid, "fence", f.cfg.After)
	go func() { _ = cmd.Wait() }() // it outlives the agent; its end shows in its pulse
	return nil
}

// able returns the silence after which this machine ends at_most_one work, 0 if the machine
// cannot fence.
func (f *fence) able() time.Duration {
	if f.cfg.After <= 0 {
		return 0
	}
	_, err := deadman.Answer(f.dir)
	if err != nil && f.cfg.Program != "" {
		err = f.startable()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != f.unable && err != nil {
		f.log.Warn("machine cannot fence at_most_one work", "err", err)
	}
	if f.unable = text; err != nil {
		return 0
	}
	return f.cfg.After
}

// startable returns nil if this process can start a deadman, or the reason why not. A deadman
// that has failed counts as not startable for deadmanPause.
func (f *fence) startable() error {
	f.mu.Lock()
	broken := !f.broken.IsZero() && time.Since(f.broken) < deadmanPause
	f.mu.Unlock()
	if broken {
		return errors.New("berth-deadman could not be started a moment ago")
	}
	if os.Geteuid() != 0 {
		return errors.New("a deadman ends other users' processes: the agent must run as root to start one")
	}
	_, err := exec.LookPath(f.cfg.Program)
	return err
}

// registered returns able for a registration, and records the value that the server now holds;
// watch compares against the record.
func (f *fence) registered() time.Duration {
	able := f.able()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stated = able
	return able
}

// Times between two checks of the deadman.
const (
	fenceLook = 2 * time.Second
	fenceIdle = 10 * time.Second // of a machine that cannot fence and has no work to fence
)

// pause returns the time to the next check of the deadman.
func (f *fence) pause() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cfg.After <= 0 && len(f.ranks) == 0 {
		return fenceIdle
	}
	return fenceLook
}

// watch supervises the deadman: while work is listed, a dead deadman is replaced. watch calls
// changed when the machine must register again, since it can fence now, or cannot.
func (f *fence) watch(ctx context.Context, beat beat, changed func()) {
	for beat.sleep(ctx, f.pause()) == nil {
		f.mu.Lock()
		listed, stated := len(f.ranks), f.stated
		f.mu.Unlock()
		if listed > 0 {
			if err := f.demand(ctx); err != nil && ctx.Err() == nil {
				f.log.Error("no deadman watches the at_most_one work on this machine", "ranks", listed, "err", err)
			}
		}
		if f.able() != stated && ctx.Err() == nil {
			changed()
		}
	}
}
