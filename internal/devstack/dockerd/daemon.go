package dockerd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Limits of the steps that end or take over an engine. A crowded machine needs a multiple of the usual time for
// each, and a step that is cut short leaves its rest to the next call.
const (
	killLimit     = 2 * time.Minute // for the end of processes that were sent SIGKILL
	removeLimit   = 5 * time.Minute // for the programs that remove bridge and rules, one after the other
	takeOverLimit = 2 * time.Minute // for the answer of an engine that runs: without it the engine is killed
)

// Daemon is one private engine. Its methods may be called concurrently.
type Daemon struct {
	opts    Options
	machine machine

	mu      sync.Mutex // held for the whole of a start, stop or kill
	child   *child     // nil where the engine was taken over from another process
	lock    *os.File   // nil once the machine was given up
	adopted bool
}

// Start brings the machine up and returns when its engine answers. An engine
// that an earlier process left running on the folder is taken over as it is,
// with its containers, unless Options.Wipe asks for an empty machine.
func Start(ctx context.Context, opts Options) (*Daemon, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	m, err := newMachine(opts.Dir)
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("dockerd in %s: a private Docker engine needs root", m.dir)
	}
	d := &Daemon{opts: opts, machine: m}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.start(ctx); err != nil {
		if d.lock != nil {
			_ = d.lock.Close()
		}
		return nil, fmt.Errorf("dockerd in %s: %w", m.dir, err)
	}
	return d, nil
}

// start takes the machine's lock and takes over a running engine, or boots a new one.
func (d *Daemon) start(ctx context.Context) error {
	m := d.machine
	if err := os.MkdirAll(m.dir, 0o711); err != nil {
		return err
	}
	var err error
	if d.lock, err = lockMachine(m); err != nil {
		return err
	}
	// A machine is wiped after its processes have ended, which could write to the data otherwise.
	if d.opts.Wipe {
		if err := d.powerOff(ctx); err != nil {
			return err
		}
		if err := os.RemoveAll(m.data()); err != nil {
			return fmt.Errorf("wipe: %w", err)
		}
	}
	running, err := findEngine(m)
	if err != nil {
		return err
	}
	if running != nil {
		if err := d.takeOver(ctx, running.pid); err == nil {
			d.adopted = true
			d.opts.Logger.Info("docker engine adopted", "socket", m.socket(), "pid", running.pid)
			return nil
		}
		// The engine runs and does not answer. With live-restore its containers could stay, but
		// the caller needs an engine that answers.
		_ = syscall.Kill(running.pid, syscall.SIGKILL)
	}
	return d.boot(ctx)
}

// takeOver waits until the running engine answers.
func (d *Daemon) takeOver(ctx context.Context, pid int) error {
	ctx, cancel := context.WithTimeout(ctx, takeOverLimit)
	defer cancel()
	return awaitAnswer(ctx, d.machine.socket(), func() bool { return alive(pid) })
}

// errHeld is the error of a machine that another process holds.
var errHeld = errors.New("another process runs this machine")

// lockMachine takes the folder for this process until the file is closed. The error is errHeld if it may succeed later.
func lockMachine(m machine) (*os.File, error) {
	f, err := os.OpenFile(m.lock(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errHeld
		}
		return nil, err
	}
	return f, nil
}

// Host returns the engine's address in the form of Docker clients: unix:///...
func (d *Daemon) Host() string { return "unix://" + d.machine.socket() }

// Adopted reports whether Start found the engine running.
func (d *Daemon) Adopted() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.adopted
}

// KillDaemon kills the engine alone, as a crash of dockerd would, and returns when the process is
// gone. With Options.LiveRestore containers go on without the engine.
func (d *Daemon) KillDaemon(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.end(ctx, syscall.SIGKILL)
}

// Restart boots the machine again after KillDaemon, KillMachine or Stop. It
// does nothing while the engine runs.
func (d *Daemon) Restart(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.restart(ctx); err != nil {
		return fmt.Errorf("restart dockerd in %s: %w", d.machine.dir, err)
	}
	return nil
}

// Revive replaces an engine that runs and no longer answers. It asks the engine to
// write the stacks of its goroutines first (SIGUSR1), kills it and boots it again.
// The stacks lie in Dir, in a file whose name begins with goroutine-stacks. With
// Options.LiveRestore containers go on meanwhile.
func (d *Daemon) Revive(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := errors.Join(d.keepStacks(ctx), d.end(ctx, syscall.SIGKILL)); err != nil {
		return fmt.Errorf("revive dockerd in %s: %w", d.machine.dir, err)
	}
	if err := d.restart(ctx); err != nil {
		return fmt.Errorf("revive dockerd in %s: %w", d.machine.dir, err)
	}
	return nil
}

// stacksLimit bounds the wait for the stacks of an engine that may be unable to write any.
const stacksLimit = 10 * time.Second

// keepStacks moves the engine's stacks out of its run folder, which is lost with
// the machine.
func (d *Daemon) keepStacks(ctx context.Context) error {
	running, err := findEngine(d.machine)
	if err != nil || running == nil {
		return err
	}
	_ = syscall.Kill(running.pid, syscall.SIGUSR1) // ESRCH: it ended just now
	ctx, cancel := context.WithTimeout(ctx, stacksLimit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		// The pattern is well-formed.
		found, _ := filepath.Glob(filepath.Join(d.machine.execDir(), "goroutine-stacks-*"))
		for _, path := range found {
			if b, err := os.ReadFile(path); err == nil && len(b) > 0 {
				kept := filepath.Join(d.machine.dir, filepath.Base(path))
				return errors.Join(os.WriteFile(kept, b, 0o600), os.Remove(path))
			}
		}
		select {
		case <-ctx.Done():
			return nil // the engine is killed without them
		case <-tick.C:
		}
	}
}

// restart boots the engine unless the engine runs. After Stop it takes the machine's lock again.
// d.mu is held.
func (d *Daemon) restart(ctx context.Context) error {
	if d.lock == nil {
		lock, err := lockMachine(d.machine)
		if err != nil {
			return err
		}
		d.lock = lock
	}
	running, err := findEngine(d.machine)
	if err != nil || running != nil {
		return err
	}
	return d.boot(ctx)
}

// KillMachine kills all processes of the machine at once, as a power cut would: the engine,
// containerd, shims and all processes in containers. Images and stopped containers stay on its
// disk; Restart boots the machine again.
func (d *Daemon) KillMachine(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.powerOff(ctx); err != nil {
		return fmt.Errorf("kill machine %s: %w", d.machine.dir, err)
	}
	d.opts.Logger.Info("machine killed", "dir", d.machine.dir)
	return nil
}

// Stop shuts the engine down, which stops its containers, and takes back
// bridge, rules, mounts and cgroups. Images and containers stay on disk, and
// the folder is free for another Start. When ctx ends first the machine is
// killed instead, and ctx's error returned.
func (d *Daemon) Stop(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	endErr := d.end(ctx, syscall.SIGTERM)
	if err := errors.Join(endErr, d.powerOff(context.WithoutCancel(ctx)), d.unlock()); err != nil {
		return fmt.Errorf("stop dockerd in %s: %w", d.machine.dir, err)
	}
	return nil
}

// Release leaves the engine running for a later Start on the same folder.
func (d *Daemon) Release() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unlock()
}

// Remove kills all processes of the machine and deletes the machine with all its data.
func (d *Daemon) Remove(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.powerOff(ctx); err != nil {
		return fmt.Errorf("remove machine %s: %w", d.machine.dir, err)
	}
	if err := os.RemoveAll(d.machine.dir); err != nil {
		return fmt.Errorf("remove machine: %w", err)
	}
	return d.unlock()
}

// unlock releases the folder for another process.
func (d *Daemon) unlock() error {
	if d.lock == nil {
		return nil
	}
	// By its name: a program that is just being started holds the file, too, until
	// it is itself.
	err := errors.Join(syscall.Flock(int(d.lock.Fd()), syscall.LOCK_UN), d.lock.Close())
	d.lock = nil
	return err
}

// end sends the engine a signal and waits for the end of the process.
func (d *Daemon) end(ctx context.Context, s syscall.Signal) error {
	running, err := findEngine(d.machine)
	if err != nil || running == nil {
		return err
	}
	_ = syscall.Kill(running.pid, s) // ESRCH: it ended just now
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for alive(running.pid) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the engine to end: %w", ctx.Err())
		case <-tick.C:
		}
	}
	d.reap()
	return nil
}

// powerOff kills all processes of the machine and removes everything except its disk: the run
// folder, mounts, network and cgroup.
func (d *Daemon) powerOff(ctx context.Context) error {
	killing, cancel := context.WithTimeout(ctx, killLimit)
	defer cancel()
	if err := killAll(killing, d.machine); err != nil {
		return err
	}
	d.reap()
	removing, cancel := context.WithTimeout(ctx, removeLimit)
	defer cancel()
	return errors.Join(
		unmountAll(d.machine),
		removeNetwork(removing, d.machine),
		removeCgroups(d.machine),
		os.RemoveAll(d.machine.run()),
		removeIfEmpty(filepath.Dir(d.machine.run())),
	)
}

// removeIfEmpty tidies the folder that all machines' run folders share.
func removeIfEmpty(dir string) error {
	err := syscall.Rmdir(dir)
	if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) || errors.Is(err, syscall.ENOENT) {
		return nil
	}
	return err
}

// reap waits for the engine that this process started, after its end was seen.
func (d *Daemon) reap() {
	if d.child != nil {
		<-d.child.exited
		d.child = nil
	}
}

// alive reports whether the process exists and is no zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !isZombie(stat)
}
