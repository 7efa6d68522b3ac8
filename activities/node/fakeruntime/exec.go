package fakeruntime

import (
	"context"
	"fmt"
	"io"
	"sync"

	"berth/activities/node"
)

// execs runs commands in the containers of an engine.
type execs struct{ fake *Fake }

// execution is a command of the test program in a running container.
type execution struct {
	fake   *Fake
	name   string
	id     string
	tty    bool
	stdin  *io.PipeWriter
	stdout *io.PipeReader
	stderr *io.PipeReader
	done   chan struct{} // closed once the command has ended

	mu     sync.Mutex
	cancel context.CancelFunc
	ended  bool
	killed bool
	code   int
	catch  map[string]chan string
}

// Exec runs a command of the test program next to the container's own.
func (e *execs) Exec(ctx context.Context, name string, spec node.ExecSpec) (node.Exec, error) {
	f := e.fake
	if err := f.allow(ctx, Call{Method: "Exec", Subject: name}); err != nil {
		return nil, err
	}
	c, err := f.find(name)
	if err != nil {
		return nil, err
	}
	inOut, in := io.Pipe()
	out, outIn := io.Pipe()
	errs, errsIn := io.Pipe()
	running, cancel := context.WithCancel(context.Background())
	x := &execution{
		fake: f, name: name, tty: spec.TTY, stdin: in, stdout: out, stderr: errs, done: make(chan struct{}),
		cancel: cancel, catch: map[string]chan string{},
	}
	if err := c.enter(x); err != nil {
		cancel()
		return nil, err
	}
	p := c.process(nil, nil, nil)
	p.Stdin, p.Stdout, p.Stderr, p.Catch = inOut, outIn, errsIn, x.catchSignals
	if spec.TTY {
		p.Stderr = outIn
	}
	f.programs.Go(func() {
		code := 127
		if len(spec.Command) > 0 && spec.Command[0] == "/testprog" {
			p.Args = spec.Command[1:]
			code = f.options.Program(running, p)
		} else {
			fmt.Fprintf(p.Stderr, "exec %q: no such file or directory\n", spec.Command)
		}
		x.finish(code)
		_ = outIn.Close()
		_ = errsIn.Close()
	})
	f.programs.Go(func() { // the kernel kills a command with its container
		select {
		case <-c.exited:
			x.signal("SIGKILL")
		case <-x.done:
		}
	})
	f.programs.Go(func() { // a killed process reads and writes nothing more
		<-running.Done()
		_ = inOut.CloseWithError(io.ErrClosedPipe)
		_ = outIn.Close()
		_ = errsIn.Close()
	})
	return x, nil
}

// enter registers a command in a running container.
func (c *container) enter(x *execution) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return noContainer(c.spec.Name)
	}
	if c.state.State != node.ContainerRunning {
		return fmt.Errorf("exec in container %s: %w", c.spec.Name, node.ErrNotRunning)
	}
	x.id = fmt.Sprintf("%s-exec-%d", c.state.ID[:12], len(c.execs))
	c.execs[x.id] = x
	return nil
}

// SignalExec signals a command; see node.Executor.
func (e *execs) SignalExec(ctx context.Context, name, id, signal string) (bool, error) {
	f := e.fake
	if err := f.allow(ctx, Call{Method: "SignalExec", Subject: signal}); err != nil {
		return false, err
	}
	c, err := f.find(name)
	if err != nil {
		return false, nil
	}
	c.mu.Lock()
	x := c.execs[id]
	c.mu.Unlock()
	if x == nil {
		return false, nil
	}
	return x.signal(signal), nil
}

// RunningExecs returns the number of commands that run in a container next to its main process.
func (e *execs) RunningExecs(name string) (n int) {
	c, err := e.fake.find(name)
	if err != nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.execs {
		if x.signal("") {
			n++
		}
	}
	return n
}

// signal delivers a signal and reports whether the command runs.
func (x *execution) signal(name string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	// A killed process is gone before its output ends, although its goroutine may still run.
	if runs := !x.ended && !x.killed; !runs || name == "" {
		return runs
	}
	if ch, ok := x.catch[name]; ok && name != "SIGKILL" {
		select {
		case ch <- name:
		default:
		}
		return true
	}
	code := map[string]int{"SIGHUP": 129, "SIGINT": 130, "SIGQUIT": 131, "SIGKILL": 137, "SIGTERM": 143}[name]
	if code > 0 {
		x.killed, x.code = true, code
		x.cancel()
	}
	return true
}

// catchSignals replaces the default action of signals; see prog.Process.Catch.
func (x *execution) catchSignals(names ...string) <-chan string {
	x.mu.Lock()
	defer x.mu.Unlock()
	ch := make(chan string, 16)
	for _, name := range names {
		x.catch[name] = ch
	}
	return ch
}

// finish records the end of the command.
func (x *execution) finish(code int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.killed {
		x.code = code & 0xff
	}
	x.ended = true
	x.cancel()
	close(x.done)
}

func (x *execution) ID() string            { return x.id }
func (x *execution) Stdin() io.WriteCloser { return x.stdin }
func (x *execution) Stdout() io.Reader     { return x.stdout }
func (x *execution) Stderr() io.Reader     { return x.stderr }

// Resize passes the size to the hook of Intercept.
func (x *execution) Resize(ctx context.Context, rows, columns int) error {
	if !x.tty {
		return fmt.Errorf("exec %s has no terminal", x.id)
	}
	return x.fake.allow(ctx, Call{Method: "ResizeExec", Subject: fmt.Sprintf("%dx%d", rows, columns)})
}

// Wait waits for the end of the command.
func (x *execution) Wait(ctx context.Context) (int, error) {
	select {
	case <-x.done:
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.code, nil
	case <-ctx.Done():
		return 0, fmt.Errorf("wait for exec %s: %w", x.id, ctx.Err())
	}
}

// Close ends the connection: the output of the command goes nowhere from then on.
func (x *execution) Close() error {
	_ = x.stdin.Close()
	_ = x.stdout.Close()
	_ = x.stderr.Close()
	return nil
}
