package fakeruntime

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"berth/activities/node"
	"berth/activities/node/runtimetest/prog"
	"berth/spec"
)

// firstPID lies above the largest pid that Linux can give (2^22), so that a caller which
// mistakes a fake container for a real one signals no other process.
const firstPID = 1 << 22

// container is one container. Its goroutine runs from start until the program's end.
type container struct {
	spec    node.ContainerSpec
	log     *logBuffer
	exited  chan struct{} // closed once the program has ended and its log is whole
	removed chan struct{} // closed when the engine removes the container

	mu     sync.Mutex
	state  node.Container
	gone   bool                   // removed
	hung   bool                   // no signal has an effect
	cancel context.CancelFunc     // of the program, while it runs
	killed bool                   // exit with code, and ignore the program's own
	code   int                    // of killed
	catch  map[string]chan string // by signal; see prog.Process.Catch
	execs  map[string]*execution  // by id
	root   string                 // folder of files outside of mounts; "": none
	owner  spec.UserID            // of the root folder and its content
}

// newContainer returns a created container. It clones the maps, since the caller may reuse
// the spec.
func newContainer(spec node.ContainerSpec, number, maxLines int) *container {
	spec.Labels = maps.Clone(spec.Labels)
	spec.Env = maps.Clone(spec.Env)
	id := sha256.Sum256(fmt.Appendf(nil, "%s %d", spec.Name, number))
	return &container{
		spec:    spec,
		log:     newLogBuffer(maxLines),
		exited:  make(chan struct{}),
		removed: make(chan struct{}),
		catch:   make(map[string]chan string),
		execs:   make(map[string]*execution),
		state: node.Container{
			ID:     hex.EncodeToString(id[:]),
			Name:   spec.Name,
			Labels: spec.Labels,
			State:  node.ContainerCreated,
			PID:    firstPID + number,
		},
	}
}

// snapshot returns a copy of the state for a caller of the engine.
func (c *container) snapshot() node.Container {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.state
	s.Labels = maps.Clone(s.Labels)
	if s.State != node.ContainerRunning {
		s.PID, s.Address, s.Subnet = 0, "", netip.Prefix{}
	}
	return s
}

func (c *container) hasLabels(want map[string]string) bool { return carries(c.spec.Labels, want) }

// start runs the program in a goroutine counted by all. After a fault, or with a command
// other than the test program, the container stays created, as on an engine. A repeated
// start does nothing.
func (c *container) start(all *sync.WaitGroup, program func(context.Context, *prog.Process) int, fault error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.State != node.ContainerCreated {
		return nil
	}
	if c.gone {
		return noContainer(c.spec.Name)
	}
	args, err := c.command()
	if fault != nil {
		err = fault
	}
	if err != nil {
		c.state.Error = err.Error()
		return fmt.Errorf("start container %s: %w", c.spec.Name, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	c.state.State = node.ContainerRunning
	c.state.Error = ""
	c.state.StartedAt = time.Now()
	if c.spec.Network != node.HostNetwork {
		c.state.Address = "127.0.0.1" // programs listen in this process
		c.state.Subnet = netip.MustParsePrefix("127.0.0.0/8")
	}
	all.Go(func() {
		defer cancel()
		out, errs := c.log.stream(false), c.log.stream(true)
		code := program(ctx, c.process(args, out, errs))
		out.flush()
		errs.flush()
		c.finish(code)
	})
	return nil
}

// command returns the arguments for the test program.
func (c *container) command() ([]string, error) {
	if c.spec.Entrypoint == nil {
		return c.spec.Command, nil
	}
	argv := append(append([]string(nil), c.spec.Entrypoint...), c.spec.Command...)
	if len(argv) == 0 || argv[0] != "/testprog" {
		return nil, fmt.Errorf("%w: exec %q: no such file or directory", node.ErrBadCommand, argv)
	}
	return argv[1:], nil
}

// finish records the end of the program. It closes the log before exited, so that a reader
// who waits for exited has every line.
func (c *container) finish(code int) {
	c.mu.Lock()
	if c.killed {
		code = c.code
	}
	c.state.State = node.ContainerExited
	c.state.ExitCode = code & 0xff
	c.state.FinishedAt = time.Now()
	c.cancel = nil
	c.mu.Unlock()
	c.log.close()
	close(c.exited)
}

// end makes a running container exit with code now; false means that the container did not
// run.
func (c *container) end(code int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.endLocked(code)
}

// endLocked is end; c.mu is held. The first kill decides the exit code.
func (c *container) endLocked(code int) bool {
	if c.hung || c.cancel == nil {
		return false
	}
	if !c.killed {
		c.killed, c.code = true, code
	}
	c.cancel()
	return true
}

// hang sets whether the container ignores all signals.
func (c *container) hang(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hung = on
}

// remove ends all waits for the container. Repeated calls do nothing.
func (c *container) remove() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gone {
		c.gone = true
		c.dropRoot()
		close(c.removed)
	}
}

// outOfMemory acts as the kernel's OOM killer on the program, or on child alone if that is
// not nil. The container counts as OOM-killed either way, as in Docker.
func (c *container) outOfMemory(child context.CancelFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.OOMKilled = true
	if child != nil {
		child()
		return
	}
	c.endLocked(137)
}

// signal delivers a signal: to the program if caught, else with the default action of a Go
// program under an init process.
func (c *container) signal(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hung || c.cancel == nil {
		return
	}
	if ch, ok := c.catch[name]; ok && name != "SIGKILL" {
		select {
		case ch <- name:
		default: // like pending signals, more of the same are merged
		}
		return
	}
	switch name {
	case "SIGKILL":
		c.endLocked(137)
	case "SIGTERM":
		c.endLocked(143)
	case "SIGINT":
		c.endLocked(130)
	case "SIGHUP":
		c.endLocked(129)
	case "SIGQUIT", "SIGABRT":
		c.endLocked(2)
	}
}

// process returns the program's view of the container. Paths resolve to the host's folders
// of its mounts.
func (c *container) process(args []string, out, errs *stream) *prog.Process {
	p := &prog.Process{
		Args:   args,
		Env:    c.env,
		Stdin:  strings.NewReader(""),
		Stdout: out,
		Stderr: errs,
		Dir:    path.Clean("/" + c.spec.WorkingDir),
		ReadPath: func(p string) (string, error) {
			m, rest, err := c.mount(p)
			return filepath.Join(m.Host, rest), err
		},
		WritePath: func(p string) (string, error) {
			m, rest, err := c.mount(p)
			if err == nil && m.ReadOnly {
				err = fmt.Errorf("%s: read-only file system", p)
			}
			return filepath.Join(m.Host, rest), err
		},
		Catch: c.catchSignals,
		Hog:   func(ctx context.Context, mib int64) { c.hog(ctx, mib, nil) },
		Spin:  func(ctx context.Context) { <-ctx.Done() },
		Halt:  func(ctx context.Context) { <-ctx.Done() },
		User:  func() string { return cmp.Or(c.spec.User, "0:0") },
	}
	p.Spawn = func(ctx context.Context, args ...string) (int, error) { return c.spawn(ctx, p, args) }
	return p
}

// env returns a variable with the value that an engine sets: NVIDIA_VISIBLE_DEVICES follows
// the reservation, and the values of image and job are ignored.
func (c *container) env(name string) (string, bool) {
	if name == "NVIDIA_VISIBLE_DEVICES" {
		if len(c.spec.GPUs) == 0 {
			return "void", true
		}
		return strings.Join(c.spec.GPUs, ","), true
	}
	v, ok := c.spec.Env[name]
	return v, ok
}

// errNoMount reports a path outside of all mounts.
var errNoMount = errors.New("read-only file system: the fake has no files outside mounts")

// mount returns the deepest mount that contains a path, and the path below that mount.
func (c *container) mount(p string) (best node.Mount, rest string, err error) {
	if !path.IsAbs(p) {
		p = path.Join("/", c.spec.WorkingDir, p)
	}
	p = path.Clean(p)
	err = fmt.Errorf("%s: %w", p, errNoMount)
	for _, m := range c.spec.Mounts {
		target := path.Clean(m.Target)
		below, ok := strings.CutPrefix(p, target)
		if ok && (below == "" || below[0] == '/' || target == "/") &&
			(err != nil || len(target) > len(path.Clean(best.Target))) {
			best, rest, err = m, below, nil
		}
	}
	return best, rest, err
}

// catchSignals replaces the default action of the named signals; see prog.Process.Catch.
func (c *container) catchSignals(names ...string) <-chan string {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := make(chan string, 16)
	for _, name := range names {
		c.catch[name] = ch
	}
	return ch
}

// hog pretends to allocate memory: an amount below the limit succeeds, any other kills the
// program or the child.
func (c *container) hog(ctx context.Context, mib int64, child context.CancelFunc) {
	if mib < c.spec.MemoryMiB {
		return
	}
	c.outOfMemory(child)
	<-ctx.Done() // a killed process does nothing more
}

// spawn runs a child as a call in the parent's goroutine, with a context of its own: its
// death by the OOM killer leaves the parent running.
func (c *container) spawn(ctx context.Context, parent *prog.Process, args []string) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	oom := false
	p := *parent
	p.Args = args
	p.Hog = func(ctx context.Context, mib int64) {
		c.hog(ctx, mib, func() { oom = true; cancel() })
	}
	code := prog.Run(ctx, &p)
	if oom {
		code = 137
	}
	return code, nil
}
