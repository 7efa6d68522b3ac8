package unfinished

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"berth/activities/node"
)

// Read runs a reader for a container and calls emit with each picture, the first one empty as soon as the reader is
// attached, at most one in each Every. It returns nil when the container has ended, and the cause of ctx's end when ctx
// has. A reader that ends earlier is node.ErrOutputTooFast, node.ErrReaderKilled, or an error of its own. socket is the
// path of the engine's socket. The program of this process must call Main first.
func Read(ctx context.Context, socket, container string, emit func(node.UnfinishedLine)) error {
	if !prepared.Load() { // the process would be a second one of this program's own work
		return errors.New("read the unfinished line: this program does not begin with unfinished.Main")
	}
	// This file remains the agent's own program when an update replaces the program on disk.
	cmd := exec.CommandContext(ctx, "/proc/self/exe", Argument, socket, container)
	cmd.Env = []string{"GOMAXPROCS=2"} // nothing of the agent's, which may have secrets
	// After the end of ctx, Wait closes the pipes after this time, even if another process holds them open.
	cmd.WaitDelay = time.Second
	var fault strings.Builder
	cmd.Stderr = &limited{to: &fault, left: 1000}
	in, err := cmd.StdinPipe() // never written to: its end ends the reader
	if err != nil {
		return fmt.Errorf("start a reader of unfinished lines: %w", err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start a reader of unfinished lines: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a reader of unfinished lines: %w", err)
	}
	scan := bufio.NewScanner(out)
	scan.Buffer(nil, 64<<10)
	for scan.Scan() {
		var l node.UnfinishedLine
		// A reader that is killed may leave half a line.
		if json.Unmarshal(scan.Bytes(), &l) == nil {
			emit(l)
		}
	}
	err = cmd.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return nil
	case ok && exit.ExitCode() == exitTooFast:
		return node.ErrOutputTooFast
	// A negative code means a signal, as from the OOM killer.
	case ok && exit.ExitCode() < 0:
		return fmt.Errorf("%w (%s)", node.ErrReaderKilled, exit)
	default:
		return fmt.Errorf("read the unfinished line: %w: %s", err, strings.TrimSpace(fault.String()))
	}
}

// limited passes on the first bytes and drops the rest.
type limited struct {
	to   *strings.Builder
	left int
}

// Write never fails.
func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.to.Write(p[:n])
	l.left -= n
	return len(p), nil
}
