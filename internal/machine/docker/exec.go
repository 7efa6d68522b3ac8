package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"
	"golang.org/x/sys/unix"

	"berth/activities/node"
)

// execs runs commands in the containers of an engine.
type execs struct{ engine *Engine }

// execution is a command in a container. Without a terminal, the engine sends both outputs on one
// connection, and a goroutine takes them apart.
type execution struct {
	api    *client.Client
	id     string
	tty    bool
	conn   types.HijackedResponse
	stdout io.Reader
	stderr io.Reader
	split  sync.WaitGroup
	pipes  []*io.PipeReader
}

// Exec starts a command. It names no user and no right: the engine uses the user and the rights of the container.
func (r *execs) Exec(ctx context.Context, name string, spec node.ExecSpec) (node.Exec, error) {
	e := r.engine
	c, err := e.Inspect(ctx, name)
	if err != nil {
		return nil, err
	}
	if c.State != node.ContainerRunning {
		return nil, fmt.Errorf("exec in container %s: %w", name, node.ErrNotRunning)
	}
	made, err := e.api.ContainerExecCreate(ctx, c.ID, container.ExecOptions{
		Cmd: spec.Command, Env: spec.Env, Tty: spec.TTY, AttachStdin: true, AttachStdout: true, AttachStderr: true,
	})
	if err == nil {
		x := &execution{api: e.api, id: made.ID, tty: spec.TTY}
		x.conn, err = e.api.ContainerExecAttach(ctx, made.ID, container.ExecAttachOptions{Tty: spec.TTY})
		if err == nil {
			x.read(spec.TTY)
			return x, nil
		}
	}
	switch {
	case absent(name, err) != nil:
		return nil, absent(name, err)
	case cerrdefs.IsConflict(err):
		return nil, fmt.Errorf("exec in container %s: %w: %w", name, node.ErrNotRunning, err)
	default:
		return nil, fmt.Errorf("exec in container %s: %w", name, err)
	}
}

// read provides the outputs.
func (x *execution) read(tty bool) {
	if tty {
		x.stdout, x.stderr = x.conn.Reader, strings.NewReader("")
		return
	}
	out, outIn := io.Pipe()
	errs, errsIn := io.Pipe()
	x.stdout, x.stderr, x.pipes = out, errs, []*io.PipeReader{out, errs}
	x.split.Go(func() {
		_, err := stdcopy.StdCopy(outIn, errsIn, x.conn.Reader)
		_ = outIn.CloseWithError(err)
		_ = errsIn.CloseWithError(err)
	})
}

func (x *execution) ID() string            { return x.id }
func (x *execution) Stdin() io.WriteCloser { return execInput{x} }
func (x *execution) Stdout() io.Reader     { return x.stdout }
func (x *execution) Stderr() io.Reader     { return x.stderr }

// execInput is the input of a command. Its end leaves the outputs open. The engine closes both sides
// of a terminal with its input, so that the end of the input is the byte for it, Ctrl-D.
type execInput struct{ x *execution }

const endOfInput = 0x04

func (in execInput) Write(p []byte) (int, error) { return in.x.conn.Conn.Write(p) }

func (in execInput) Close() error {
	if in.x.tty {
		_, err := in.Write([]byte{endOfInput})
		return err
	}
	return in.x.conn.CloseWrite()
}

// Resize sets the size of the terminal.
func (x *execution) Resize(ctx context.Context, rows, columns int) error {
	err := x.api.ContainerExecResize(ctx, x.id, container.ResizeOptions{Height: uint(rows), Width: uint(columns)})
	if err != nil {
		return fmt.Errorf("resize terminal of exec %s: %w", x.id, err)
	}
	return nil
}

// Wait asks until the command has ended. The engine has no call that waits; the caller comes after
// the end of the outputs, so that one or two questions are enough.
func (x *execution) Wait(ctx context.Context) (int, error) {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		now, err := x.api.ContainerExecInspect(ctx, x.id)
		if err != nil {
			return 0, fmt.Errorf("inspect exec %s: %w", x.id, err)
		}
		if !now.Running {
			return now.ExitCode, nil
		}
		if err := pause(ctx, wait); err != nil {
			return 0, fmt.Errorf("wait for exec %s: %w", x.id, err)
		}
	}
}

// Close ends the connection.
func (x *execution) Close() error {
	x.conn.Close()
	for _, p := range x.pipes {
		_ = p.Close()
	}
	x.split.Wait()
	return nil
}

// SignalExec finds the command's process on the host by the engine's word, and signals it and the
// processes of its session.
func (r *execs) SignalExec(ctx context.Context, name, id, signal string) (bool, error) {
	e := r.engine
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	x, err := r.begun(ctx, id, signal != "")
	if err != nil {
		return x.Running, err
	}
	if !x.Running || signal == "" {
		return x.Running, nil
	}
	c, err := e.Inspect(ctx, name)
	if errors.Is(err, node.ErrNoContainer) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	number := unix.SignalNum(signal)
	if number == 0 {
		return true, fmt.Errorf("no signal %q", signal)
	}
	if x.ContainerID != c.ID {
		return true, fmt.Errorf("exec %s belongs to another container than %s", id, name)
	}
	return true, signalSession(x.Pid, c, number)
}

// begun returns the state of a command in the engine. The engine calls a command running before it
// has a process; awaitProcess waits for the process, so that a signal at that moment is not lost.
func (r *execs) begun(ctx context.Context, id string, awaitProcess bool) (container.ExecInspect, error) {
	for {
		x, err := r.engine.api.ContainerExecInspect(ctx, id)
		switch {
		case cerrdefs.IsNotFound(err):
			return container.ExecInspect{}, nil // the engine forgets the commands of a container with it
		case err != nil:
			return x, fmt.Errorf("inspect exec %s: %w", id, err)
		case !x.Running || x.Pid != 0 || !awaitProcess:
			return x, nil
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return x, fmt.Errorf("wait for the process of exec %s: %w", id, err)
		}
	}
}
