package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"berth/activities/node"
	"berth/internal/lib/failpoint"
	"berth/internal/lib/framed"
	"berth/wire"
)

// hangupGrace is the time from SIGHUP to SIGKILL for a command whose user has gone, and
// stopGrace that for one whose agent stops: the stop waits for it.
const (
	hangupGrace = 5 * time.Second
	stopGrace   = time.Second
)

// exec runs the command of a session. The end of the connection, of the container or of the agent
// ends the command too.
func (v *visit) exec() {
	controls := make(chan func(node.Exec), 64)
	c := framed.New(v.ws, []framed.Channel{framed.Stdin}, []framed.Channel{framed.Stdout, framed.Stderr}, v.beats,
		func(ch framed.Channel, payload []byte) {
			select {
			case controls <- v.control(ch, payload):
			default: // sizes and signals in a flood: the user may send them again
			}
		})
	ctx, cancel := context.WithCancel(context.WithoutCancel(v.inside))
	defer cancel()
	gone := make(chan struct{}) // closed at the end of the connection
	v.all.Go(func() {
		defer close(gone)
		_ = c.Serve(ctx)
	})
	status := v.command(c, controls, gone)
	v.part(c, status, gone)
	cancel()
	v.all.Wait()
}

// part sends the status, and waits until the user's end has closed the connection, which proves
// that the status has arrived.
func (v *visit) part(c *framed.Conn, status wire.SessionStatus, gone <-chan struct{}) {
	if c.SendStatus(status) != nil {
		return
	}
	select {
	case <-gone:
	case <-time.After(leaveLimit):
	}
}

// control returns the action of a control frame.
func (v *visit) control(ch framed.Channel, payload []byte) func(node.Exec) {
	switch ch {
	case framed.Resize:
		var size framed.Size
		if json.Unmarshal(payload, &size) != nil || size.Rows <= 0 || size.Columns <= 0 {
			return nil
		}
		return func(x node.Exec) { v.resize(x, size) }
	case framed.Signal:
		if name := string(payload); slices.Contains(sessionSignals, name) {
			return func(x node.Exec) { v.signal(x, name) }
		}
	}
	return nil
}

// sessionSignals are the signals that a user may send to a command.
var sessionSignals = []string{"SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGWINCH"}

// command starts the command, copies until its end and returns the status of the session.
func (v *visit) command(c *framed.Conn, controls <-chan func(node.Exec), gone <-chan struct{}) wire.SessionStatus {
	req := v.order.Request
	given := node.ExecSpec{Command: req.Command, TTY: req.TTY}
	if req.TTY && req.Term != "" {
		given.Env = []string{"TERM=" + req.Term}
	}
	_ = failpoint.Hit("agent.exec.before")
	starting, cancel := context.WithTimeout(v.inside, v.timing.EnginePatience)
	x, err := v.runtime.Exec(starting, v.name(), given)
	cancel()
	if err != nil {
		if v.inside.Err() != nil {
			return v.over()
		}
		v.log.Warn("exec failed", "err", err)
		return wire.SessionStatus{Cause: wire.CauseRefused, Message: "the container engine refused: " + err.Error()}
	}
	defer x.Close()
	v.remember(x.ID())
	_ = failpoint.Hit("agent.exec.after")
	ended := make(chan wire.SessionStatus, 1)
	// Both end with the connection at the latest, whether or not the user takes the output.
	v.all.Go(func() { ended <- v.copy(c, x) })
	v.all.Go(func() { v.input(c, x) })
	if req.Rows > 0 && req.Columns > 0 {
		v.resize(x, framed.Size{Rows: req.Rows, Columns: req.Columns})
	}
	for {
		select {
		case act := <-controls:
			if act != nil {
				act(x)
			}
		case status := <-ended:
			v.forget(x.ID())
			if v.inside.Err() != nil { // it was killed with its container
				status = v.over()
			}
			return status
		case <-v.inside.Done():
			if !errors.Is(context.Cause(v.inside), errContainerOver) {
				v.all.Go(func() { v.end(x.ID(), stopGrace) }) // the user learns the reason at once
			}
			return v.over()
		case <-gone:
			v.end(x.ID(), hangupGrace)
			return wire.SessionStatus{Cause: wire.CauseClientGone}
		}
	}
}

// input copies the user's input to the command, and its end.
func (v *visit) input(c *framed.Conn, x node.Exec) {
	in := x.Stdin()
	// A broken connection does not end the input: the command must not act on half of the input.
	if _, err := io.Copy(in, c.Reader(framed.Stdin)); err == nil {
		_ = in.Close()
	}
}

// copy sends the outputs of a command to the user and returns its end.
func (v *visit) copy(c *framed.Conn, x node.Exec) wire.SessionStatus {
	var outputs sync.WaitGroup
	for ch, from := range map[framed.Channel]io.Reader{framed.Stdout: x.Stdout(), framed.Stderr: x.Stderr()} {
		outputs.Go(func() {
			to := c.Writer(ch)
			_, _ = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 32<<10))
			_ = to.Close()
		})
	}
	outputs.Wait()
	code, err := x.Wait(v.inside)
	if err != nil {
		return wire.SessionStatus{Cause: wire.CauseRefused,
			Message: "the end of the command is not known: " + err.Error()}
	}
	return wire.SessionStatus{Cause: wire.CauseExited, Exit: &code}
}

// resize sets the size of the terminal. The engine refuses it before the command has begun, which
// takes it a moment.
func (v *visit) resize(x node.Exec, size framed.Size) {
	if !v.order.Request.TTY {
		return
	}
	ctx, cancel := context.WithTimeout(v.inside, resizePatience)
	defer cancel()
	for wait := (&backoff{min: 10 * time.Millisecond, max: 200 * time.Millisecond}); ; {
		err := x.Resize(ctx, size.Rows, size.Columns)
		if err == nil || wait.wait(ctx) != nil {
			return
		}
	}
}

const resizePatience = 2 * time.Second

// signal sends a signal to the command.
func (v *visit) signal(x node.Exec, name string) {
	if _, err := v.runtime.SignalExec(v.inside, v.name(), x.ID(), name); err != nil {
		v.log.Warn("signal not sent to a session's command", "signal", name, "err", err)
	}
}

// end ends a command: a hangup, as a closed terminal sends, and a kill after the grace.
func (v *visit) end(id string, grace time.Duration) {
	if endExec(context.WithoutCancel(v.inside), v.core, id, grace) {
		v.forget(id)
	}
}

// endExec ends the command with an id of the engine, and waits until it does not run. It reports
// whether the command has ended.
func endExec(ctx context.Context, c *core, id string, grace time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, grace+10*time.Second)
	defer cancel()
	running, err := c.runtime.SignalExec(ctx, c.name(), id, "SIGHUP")
	killed := time.Now().Add(grace)
	for wait := (&backoff{min: 10 * time.Millisecond, max: 250 * time.Millisecond}); running && err == nil; {
		if wait.wait(ctx) != nil {
			break
		}
		signal := ""
		if time.Now().After(killed) {
			signal = "SIGKILL"
		}
		running, err = c.runtime.SignalExec(ctx, c.name(), id, signal)
	}
	if running || err != nil {
		c.log.Warn("command of a session not ended, the agent's next process retries", "exec", id, "err", err)
		return false
	}
	return true
}

// A command outlives its agent. The member's folder has the id of each running command, so that the
// next agent process can stop it.

// remember notes a command.
func (v *visit) remember(id string) {
	dir := filepath.Join(v.scratch.dir, execsFolder)
	err := os.Mkdir(dir, 0o700) // not its parents: the member's folder may just be removed
	if err == nil || errors.Is(err, fs.ErrExist) {
		err = os.WriteFile(filepath.Join(dir, id), nil, 0o600)
	}
	if err != nil {
		v.log.Warn("cannot note the command of a session", "err", err)
	}
}

// forget removes the note of a command that has ended.
func (v *visit) forget(id string) { _ = os.Remove(filepath.Join(v.scratch.dir, execsFolder, id)) }

// execsFolder is the folder with the notes, in the member's folder.
const execsFolder = "execs"

// leftExecs returns the commands of sessions of an earlier agent process. The caller must not have
// let new sessions in yet.
func leftExecs(s *scratch) (ids []string) {
	entries, err := os.ReadDir(filepath.Join(s.dir, execsFolder))
	if err != nil {
		return nil // there were no sessions
	}
	for _, entry := range entries {
		ids = append(ids, entry.Name())
	}
	return ids
}

// endLeftExecs stops the commands that leftExecs returned.
func endLeftExecs(ctx context.Context, c *core, s *scratch, ids []string) {
	for _, id := range ids {
		c.log.Info("ending the command of a session of the agent's last process", "exec", id)
		if endExec(ctx, c, id, stopGrace) {
			_ = os.Remove(filepath.Join(s.dir, execsFolder, id))
		}
	}
}
