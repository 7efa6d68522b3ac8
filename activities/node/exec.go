package node

import (
	"context"
	"errors"
	"io"
)

// Executor runs further commands in running containers, as the container's user and under the
// container's own restrictions. Commands are addressed by the engine's id, which another agent
// process may use too.
type Executor interface {
	// Exec starts a command in a running container; ErrNotRunning for any other one. A
	// command that is not in the image starts, writes the reason and ends with 126 or 127,
	// as in a shell. ctx bounds the start alone. The caller must Close the answer.
	Exec(ctx context.Context, name string, spec ExecSpec) (Exec, error)
	// SignalExec sends a signal to the processes of the session that a command leads, and
	// reports whether the command still runs. Signal "" only asks. It signals processes of
	// the container alone, also if a process id was given again.
	SignalExec(ctx context.Context, name, id, signal string) (running bool, err error)
}

// ErrNotRunning is the error of a command for a container that does not run.
var ErrNotRunning = errors.New("container does not run")

// ExecSpec is a command for a running container.
type ExecSpec struct {
	Command []string
	Env     []string // NAME=VALUE, in addition to the container's
	TTY     bool     // give the command a terminal
}

// Exec is a command under way.
type Exec interface {
	// ID is the engine's id of the command.
	ID() string
	// Stdin is the input of the command; Close ends it.
	Stdin() io.WriteCloser
	// Stdout and Stderr end after the command. A terminal has no Stderr: it ends at once.
	Stdout() io.Reader
	Stderr() io.Reader
	// Resize sets the size of the terminal. It fails before the command has begun.
	Resize(ctx context.Context, rows, columns int) error
	// Wait returns the exit code of the command, 128 + n after signal n.
	Wait(ctx context.Context) (int, error)
	// Close releases the connection to the command, which continues without one.
	Close() error
}
