package prog

import (
	"context"
	"fmt"
	"io"
	"time"
)

// Process is a command's view of its container.
type Process struct {
	Args   []string // the command and its arguments, without the program's name
	Env    func(name string) (string, bool)
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Dir is the working directory as the process sees it.
	Dir string
	// ReadPath and WritePath translate a path inside the container to one that package os
	// can open, and fail for a path that the container lacks or may not write.
	ReadPath  func(path string) (string, error)
	WritePath func(path string) (string, error)
	// Catch handles the named signals (SIGTERM, SIGUSR1, …) for the rest of the process's
	// life: they arrive on the channel and lose their default action.
	Catch func(signals ...string) <-chan string
	// Hog allocates memory and keeps it. In a container with a smaller limit the process
	// does not survive the call.
	Hog func(ctx context.Context, mib int64)
	// Spin uses the CPU, and Halt stops all threads of the process, until a signal ends it. The
	// fake runtime only waits.
	Spin, Halt func(ctx context.Context)
	// User returns the effective user and group of the process as UID:GID.
	User func() string
	// Spawn runs the same program as a child and returns its exit code.
	Spawn func(ctx context.Context, args ...string) (int, error)
	// Attack makes one attempt to break out of the container, and returns the kernel's error.
	// Attack is nil in the fake, whose programs run in the test's own process.
	Attack func(name, argument string) error
}

// UsageExit is the exit code of a command with wrong arguments.
const UsageExit = 2

// Run runs the command that p.Args names and returns its exit code. The code has no meaning
// if ctx ends, which is how the fake runtime kills.
func Run(ctx context.Context, p *Process) int {
	if len(p.Args) == 0 {
		return 0
	}
	c, ok := lookup(p.Args[0])
	if !ok {
		return p.usage("unknown command %q", p.Args[0])
	}
	if args := p.Args[1:]; len(args) >= c.args {
		return c.run(ctx, p, args)
	}
	return p.usage("%s: want %s", p.Args[0], c.usage)
}

func (p *Process) usage(format string, args ...any) int {
	fmt.Fprintf(p.Stderr, "testprog: "+format+"\n", args...)
	return UsageExit
}

func (p *Process) say(format string, args ...any) {
	fmt.Fprintf(p.Stdout, format+"\n", args...)
}

// fail reports an error and returns the exit code of a user failure.
func (p *Process) fail(err error) int {
	fmt.Fprintf(p.Stderr, "testprog: %v\n", err)
	return 1
}

// pause waits for d and reports whether ctx is still alive afterwards.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
