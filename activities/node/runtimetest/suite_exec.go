package runtimetest

import (
	"context"
	"io"
	"strings"
	"sync"

	"berth/activities/node"
)

// exec starts a command of the test program in a container.
func (b *bench) exec(name string, tty bool, command ...string) node.Exec {
	b.t.Helper()
	x, err := b.Runtime.Exec(b.ctx, name, node.ExecSpec{Command: append([]string{"/testprog"}, command...), TTY: tty})
	if err != nil {
		b.t.Fatalf("exec %q: %v", command, err)
	}
	b.t.Cleanup(func() { _ = x.Close() })
	return x
}

// outcome reads a command to its end.
func (b *bench) outcome(x node.Exec) (out, errs string, code int) {
	b.t.Helper()
	defer context.AfterFunc(b.ctx, func() { _ = x.Close() })() // a command that never ends fails the test
	var all sync.WaitGroup
	read := func(r io.Reader, into *string) {
		all.Go(func() {
			text, err := io.ReadAll(r)
			if err != nil {
				b.t.Errorf("read output: %v", err)
			}
			*into = string(text)
		})
	}
	read(x.Stdout(), &out)
	read(x.Stderr(), &errs)
	all.Wait()
	code, err := x.Wait(b.ctx)
	if err != nil {
		b.t.Errorf("wait for exec: %v", err)
	}
	return out, errs, code
}

// execRunsACommand checks input, outputs apart, half-close and exit code.
func execRunsACommand(b *bench) {
	name := b.run(b.spec("a", "sleep", "1h"))
	if out, errs, code := b.outcome(b.exec(name, false, "do", "echo out", "stderr err", "exit 3")); out != "out\n" ||
		errs != "err\n" || code != 3 {
		b.t.Errorf("out %q, err %q, exit %d", out, errs, code)
	}
	x := b.exec(name, false, "cat")
	text := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB
	go func() {
		_, _ = io.WriteString(x.Stdin(), text)
		_ = x.Stdin().Close()
	}()
	if out, _, code := b.outcome(x); out != text || code != 0 {
		b.t.Errorf("cat returned %d bytes, exit %d", len(out), code)
	}
	x, err := b.Runtime.Exec(b.ctx, name, node.ExecSpec{Command: []string{"/no/such/program"}})
	if err != nil {
		b.t.Fatalf("exec of a missing program: %v", err)
	}
	defer x.Close()
	if _, _, code := b.outcome(x); code != 126 && code != 127 {
		b.t.Errorf("a missing program exits with %d", code)
	}
	if c := b.inspect(name); c.State != node.ContainerRunning {
		b.t.Errorf("the container is %s", c.State)
	}
}

// execHasATerminal checks the terminal: one output, and a size that can change.
func execHasATerminal(b *bench) {
	name := b.run(b.spec("a", "sleep", "1h"))
	x := b.exec(name, true, "cat")
	for x.Resize(b.ctx, 33, 101) != nil { // it fails before the command has begun
		if b.ctx.Err() != nil {
			b.t.Fatal("never resized")
		}
	}
	running, err := b.Runtime.SignalExec(b.ctx, name, x.ID(), "SIGHUP")
	if err != nil || !running {
		b.t.Fatalf("hangup: %v, %v", running, err)
	}
	if _, _, code := b.outcome(x); code == 0 {
		b.t.Error("a hung up command exits with 0")
	}
}

// execIsSignaled checks that a signal reaches the command, also by another connection to the
// engine, and not the container's own process.
func execIsSignaled(b *bench) {
	name := b.run(b.spec("a", "sleep", "1h"))
	x := b.exec(name, false, "sleep", "1h")
	again := b.Again(b.t)
	defer again.Close()
	if running, err := again.SignalExec(b.ctx, name, x.ID(), ""); err != nil || !running {
		b.t.Fatalf("asked: %v, %v", running, err)
	}
	for _, signal := range []string{"SIGHUP", "SIGKILL"} {
		if _, err := again.SignalExec(b.ctx, name, x.ID(), signal); err != nil {
			b.t.Fatal(err)
		}
	}
	if _, _, code := b.outcome(x); code == 0 {
		b.t.Error("a killed command exits with 0")
	}
	if running, err := again.SignalExec(b.ctx, name, x.ID(), "SIGKILL"); err != nil || running {
		b.t.Errorf("after its end: %v, %v", running, err)
	}
	if running, err := again.SignalExec(b.ctx, name, "0123456789abcdef", "SIGKILL"); err != nil || running {
		b.t.Errorf("a command that is none: %v, %v", running, err)
	}
	if c := b.inspect(name); c.State != node.ContainerRunning {
		b.t.Errorf("the container is %s", c.State)
	}
}

// execEndsWithItsContainer checks that no command outlives the container.
func execEndsWithItsContainer(b *bench) {
	name := b.run(b.spec("a", "sleep", "1h"))
	x := b.exec(name, false, "sleep", "1h")
	if err := b.Runtime.Signal(b.ctx, name, "SIGKILL"); err != nil {
		b.t.Fatal(err)
	}
	b.wait(name)
	defer context.AfterFunc(b.ctx, func() { _ = x.Close() })()
	if _, err := io.ReadAll(x.Stdout()); err != nil {
		b.t.Errorf("the output ends with %v", err)
	}
	if running, err := b.Runtime.SignalExec(b.ctx, name, x.ID(), "SIGKILL"); err != nil || running {
		b.t.Errorf("after the container: %v, %v", running, err)
	}
	_, err := b.Runtime.Exec(b.ctx, name, node.ExecSpec{Command: []string{"/testprog", "exit", "0"}})
	wantError(b.t, err, node.ErrNotRunning, "exec in an ended container")
	_, err = b.Runtime.Exec(b.ctx, name+"-none", node.ExecSpec{Command: []string{"/testprog", "exit", "0"}})
	wantError(b.t, err, node.ErrNoContainer, "exec in no container")
}
