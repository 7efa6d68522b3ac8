package runtimetest

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth/activities/node"
	"berth/activities/node/runtimetest/prog"
)

// exitCodesArrive checks exit codes, the times of a run, and that a second Wait agrees with
// the first. 137 by the program's own exit must not count as an OOM kill.
func exitCodesArrive(b *bench) {
	for _, code := range []int{0, 3, 137, 255} {
		spec := b.spec(fmt.Sprint(code), "exit", fmt.Sprint(code))
		name := b.run(spec)
		c := b.wait(name)
		if c.State != node.ContainerExited || c.ExitCode != code || c.OOMKilled || c.PID != 0 {
			b.t.Errorf("exit %d ended as %+v", code, c)
		}
		if c.StartedAt.IsZero() || c.FinishedAt.Before(c.StartedAt) {
			b.t.Errorf("exit %d ran from %v to %v", code, c.StartedAt, c.FinishedAt)
		}
		// A Wait after the exit must return the same final state, since an agent may ask
		// again.
		if again := b.wait(name); again.ExitCode != code || !again.FinishedAt.Equal(c.FinishedAt) {
			b.t.Errorf("second wait says %+v, first said %+v", again, c)
		}
	}
}

// startRunsOnce checks that concurrent and late starts run the program once.
func startRunsOnce(b *bench) {
	spec := b.spec("a", "do", "echo once", "sleep 200ms", "exit 4")
	b.create(spec)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if err := b.Runtime.Start(b.ctx, spec.Name); err != nil {
				b.t.Errorf("start: %v", err)
			}
		})
	}
	all.Wait()
	if c := b.inspect(spec.Name); c.State == node.ContainerRunning &&
		(c.PID <= 0 || c.StartedAt.IsZero() || !c.FinishedAt.IsZero()) {
		b.t.Errorf("a running container is described as %+v", c)
	}
	first := b.wait(spec.Name)
	b.start(spec.Name)
	if c := b.inspect(spec.Name); c.State != node.ContainerExited || c.ExitCode != 4 ||
		!c.StartedAt.Equal(first.StartedAt) {
		b.t.Errorf("start changed an exited container: %+v", c)
	}
	wantLines(b.t, texts(b.logs(spec.Name, time.Time{})), "once")
}

// waitBeforeStartSeesTheExit checks that a Wait on a created container lasts until the
// exit.
func waitBeforeStartSeesTheExit(b *bench) {
	spec := b.spec("a", "exit", "6")
	b.create(spec)
	waits := make([]func() (node.Container, error), 3)
	for i := range waits {
		waits[i] = async(b.t, func() (node.Container, error) { return b.Runtime.Wait(b.ctx, spec.Name) })
	}
	b.start(spec.Name)
	for _, wait := range waits {
		if c, err := wait(); err != nil || c.ExitCode != 6 || c.State != node.ContainerExited {
			b.t.Errorf("wait returned %+v, %v", c, err)
		}
	}
}

// waitEndsWhenRemoved checks that no Wait outlives its container.
func waitEndsWhenRemoved(b *bench) {
	created, running := b.spec("created", "exit", "0"), b.spec("running", "sleep", "1h")
	b.create(created)
	b.run(running)
	for _, s := range []node.ContainerSpec{created, running} {
		wait := async(b.t, func() (node.Container, error) { return b.Runtime.Wait(b.ctx, s.Name) })
		if err := b.Runtime.Remove(b.ctx, s.Name); err != nil {
			b.t.Fatal(err)
		}
		// A Wait for a running container may see the exit before the removal.
		if c, err := wait(); !errors.Is(err, node.ErrNoContainer) && c.State != node.ContainerExited {
			b.t.Errorf("wait for the %s one returned %+v, %v", s.Command, c, err)
		}
	}
}

// waitEndsWithItsContext checks that a cancelled Wait leaves the container running.
func waitEndsWithItsContext(b *bench) {
	name := b.run(b.spec("a", "sleep", "1h"))
	ctx, cancel := context.WithCancel(b.ctx)
	wait := async(b.t, func() (node.Container, error) { return b.Runtime.Wait(ctx, name) })
	cancel()
	_, err := wait()
	wantError(b.t, err, context.Canceled, "wait")
	if c := b.inspect(name); c.State != node.ContainerRunning {
		b.t.Errorf("the container did not live on: %+v", c)
	}
}

// missingExecutableIsBadCommand checks a start that fails by the container's own spec.
func missingExecutableIsBadCommand(b *bench) {
	spec := b.spec("a")
	spec.Entrypoint, spec.Command = []string{"/no/such/program"}, []string{"x"}
	b.create(spec)
	err := b.Runtime.Start(b.ctx, spec.Name)
	if err != nil { // an engine whose init process finds out starts it, and it exits 127
		wantError(b.t, err, node.ErrBadCommand, "start")
		if c := b.inspect(spec.Name); c.State == node.ContainerRunning || c.Error == "" {
			b.t.Errorf("after a start that was refused: %+v", c)
		}
		return
	}
	if c := b.wait(spec.Name); c.ExitCode != 126 && c.ExitCode != 127 {
		b.t.Errorf("exit code %d, want 126 or 127", c.ExitCode)
	}
}

// entrypointAndCommand checks that a spec replaces the image's entry point, also with none.
func entrypointAndCommand(b *bench) {
	spec := b.spec("replaced")
	spec.Entrypoint, spec.Command = []string{"/testprog", "echo"}, []string{"a", "b c"}
	_, out := b.finish(spec)
	wantLines(b.t, out, "a", "b c")

	spec = b.spec("none")
	// An empty entry point, unlike nil, removes the image's own.
	spec.Entrypoint, spec.Command = []string{}, []string{"/testprog", "echo", "no entry point"}
	_, out = b.finish(spec)
	wantLines(b.t, out, "no entry point")
}

// environmentAndFolder checks variables, with special characters, and the working
// directory.
func environmentAndFolder(b *bench) {
	spec := b.spec("a", "do", "env ONE TWO NONE", "cwd")
	// A line break must survive: engines pass variables as one text each.
	spec.Env = map[string]string{"ONE": "1", "TWO": "a=b\nc"}
	spec.WorkingDir = "/srv/here"
	_, out := b.finish(spec)
	wantLines(b.t, out, "ONE=1", "TWO=a=b", "c", "NONE is unset", "/srv/here")
}

// mountsAreShared checks that mounts show the host's files, and that ReadOnly holds.
func mountsAreShared(b *bench) {
	in, out := b.t.TempDir(), b.t.TempDir()
	must(b.t, os.WriteFile(filepath.Join(in, "given"), []byte("from outside"), 0o644))
	spec := b.spec("a", "do", "read-file /in/given", "write-file /out/made inside", "write-file /in/forbidden x")
	spec.Mounts = []node.Mount{{Host: in, Target: "/in", ReadOnly: true}, {Host: out, Target: "/out"}}
	c, lines := b.finish(spec)
	slices.Sort(lines) // two streams have no order between them
	if c.ExitCode != 1 || len(lines) != 2 || lines[0] != "from outside" ||
		!strings.Contains(lines[1], "read-only file system") {
		b.t.Errorf("exit code %d with output %q", c.ExitCode, lines)
	}
	// The file is visible on the host after the container's end.
	if made, err := os.ReadFile(filepath.Join(out, "made")); string(made) != "inside" {
		b.t.Errorf("the written file holds %q (error %v)", made, err)
	}
	if _, err := os.Stat(filepath.Join(in, "forbidden")); !errors.Is(err, os.ErrNotExist) {
		b.t.Errorf("the read-only mount was written to: %v", err)
	}
}

// copiedOut checks CopyOut of folders, files and links, and of paths that do not exist. A
// link that leads to itself must fail rather than loop.
func copiedOut(b *bench) {
	dir := b.t.TempDir()
	must(b.t, os.MkdirAll(filepath.Join(dir, "model", "sub"), 0o755))
	must(b.t, os.WriteFile(filepath.Join(dir, "model", "sub", "given"), []byte("from outside"), 0o644))
	must(b.t, os.Symlink("sub/given", filepath.Join(dir, "model", "latest")))
	must(b.t, os.Symlink("loop", filepath.Join(dir, "loop")))
	spec := b.spec("a", "write-file", "/out/model/made", "inside")
	spec.Mounts = []node.Mount{{Host: dir, Target: "/out"}}
	b.finish(spec)
	for path, want := range map[string]map[string]string{
		"/out/model": {"model": "", "model/made": "inside", "model/sub": "", "model/sub/given": "from outside",
			"model/latest": "-> sub/given"},
		"/out/model/made": {"made": "inside"},
	} {
		in, err := b.Runtime.CopyOut(b.ctx, spec.Name, path)
		if err != nil {
			b.t.Fatal(err)
		}
		got := map[string]string{}
		for r := tar.NewReader(in); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			must(b.t, err)
			text, err := io.ReadAll(r)
			must(b.t, err)
			if h.Typeflag == tar.TypeSymlink {
				text = []byte("-> " + h.Linkname)
			}
			got[strings.TrimSuffix(h.Name, "/")] = string(text)
		}
		must(b.t, in.Close())
		if !maps.Equal(got, want) {
			b.t.Errorf("%s holds %q, want %q", path, got, want)
		}
	}
	for _, none := range []string{"/out/none", "/out/none/below", "/out/model/made/below", "/out/loop/below"} {
		_, err := b.Runtime.CopyOut(b.ctx, spec.Name, none)
		wantError(b.t, err, node.ErrNoPath, "copy what is not there")
	}
	_, err := b.Runtime.CopyOut(b.ctx, spec.Name+"-none", "/out")
	wantError(b.t, err, node.ErrNoContainer, "copy out of no container")
}

// gpuVariableFollowsReservation checks that a container without reserved GPUs gets none,
// although its image and its own environment ask for all.
func gpuVariableFollowsReservation(b *bench) {
	spec := b.spec("a", "env", "NVIDIA_VISIBLE_DEVICES")
	// The job asks for all GPUs as the image does.
	spec.Env = map[string]string{"NVIDIA_VISIBLE_DEVICES": "all"}
	_, out := b.finish(spec)
	wantLines(b.t, out, "NVIDIA_VISIBLE_DEVICES=void")
}

// stopLetsTheProcessFinish checks that a process which ends within its grace is not killed.
func stopLetsTheProcessFinish(b *bench) {
	name := b.run(b.spec("a", "trap-term", "7", "100ms"))
	b.await(name, "ready")
	if err := b.Runtime.Stop(b.ctx, name, patience); err != nil {
		b.t.Fatal(err)
	}
	c := b.inspect(name)
	if c.State != node.ContainerExited || c.ExitCode != 7 {
		b.t.Errorf("stopped as %+v, want exit code 7", c)
	}
	wantLines(b.t, texts(b.logs(name, time.Time{})), "ready", "term")
}

// stopKillsAfterGrace checks that a process which ignores SIGTERM is killed, not before its
// grace.
func stopKillsAfterGrace(b *bench) {
	// On a busy machine the program may not answer the signal within a short grace.
	for grace := 300 * time.Millisecond; !stopAnswered(b, grace); grace *= 4 {
		if grace > patience/4 {
			b.t.Fatalf("the program had %v to answer SIGTERM, and did not", grace)
		}
	}
}

// stopAnswered stops a program that ignores SIGTERM, and reports whether the program
// printed an answer to the signal before the kill.
func stopAnswered(b *bench, grace time.Duration) bool {
	b.t.Helper()
	name := b.run(b.spec(fmt.Sprint("within-", grace), "ignore-term"))
	b.await(name, "ready")
	begin := time.Now()
	if err := b.Runtime.Stop(b.ctx, name, grace); err != nil {
		b.t.Fatal(err)
	}
	if took := time.Since(begin); took < grace {
		b.t.Errorf("killed after %v, before its grace of %v", took, grace)
	}
	c := b.inspect(name)
	if c.State != node.ContainerExited || c.ExitCode != 137 || c.OOMKilled {
		b.t.Errorf("stopped as %+v, want exit code 137 without OOM", c)
	}
	lines := texts(b.logs(name, time.Time{}))
	if slices.Equal(lines, []string{"ready"}) {
		return false
	}
	wantLines(b.t, lines, "ready", "ignored SIGTERM")
	return true
}

// stopOfAnythingStopped checks that Stop and Signal succeed on containers that do not run.
func stopOfAnythingStopped(b *bench) {
	created := b.spec("created", "exit", "0")
	b.create(created)
	if err := b.Runtime.Stop(b.ctx, created.Name, patience); err != nil {
		b.t.Errorf("stop a created container: %v", err)
	}
	exited := b.run(b.spec("exited", "exit", "3"))
	b.wait(exited)
	if err := b.Runtime.Stop(b.ctx, exited, patience); err != nil {
		b.t.Errorf("stop an exited container: %v", err)
	}
	if c := b.inspect(exited); c.ExitCode != 3 {
		b.t.Errorf("exit code %d, want 3", c.ExitCode)
	}
	if err := b.Runtime.Signal(b.ctx, exited, "SIGUSR1"); err != nil {
		b.t.Errorf("signal an exited container: %v", err)
	}
	dead := b.run(b.spec("default", "sleep", "1h"))
	if err := b.Runtime.Stop(b.ctx, dead, patience); err != nil {
		b.t.Errorf("stop a running container: %v", err)
	}
	if c := b.inspect(dead); c.State != node.ContainerExited || c.ExitCode != 143 {
		b.t.Errorf("a process that leaves SIGTERM alone ended as %+v, want exit code 143", c)
	}
}

// signalReachesTheProcess checks that signals arrive in order, one by one.
func signalReachesTheProcess(b *bench) {
	name := b.run(b.spec("a", "trap", "SIGUSR1", "SIGUSR2"))
	b.await(name, "ready")
	for _, signal := range []string{"SIGUSR1", "SIGUSR2", "SIGTERM"} {
		if err := b.Runtime.Signal(b.ctx, name, signal); err != nil {
			b.t.Fatal(err)
		}
		b.await(name, "got "+signal)
	}
	if c := b.wait(name); c.ExitCode != 0 {
		b.t.Errorf("exit code %d, want 0", c.ExitCode)
	}
}

// memoryLimitIsFlagged checks OOMKilled for a process beyond the limit, and for one within.
func memoryLimitIsFlagged(b *bench) {
	c, _ := b.finish(b.spec("a", "eat-memory", "512"))
	if c.ExitCode != 137 || !c.OOMKilled {
		b.t.Errorf("ended as %+v, want exit code 137 with OOM", c)
	}
	c, out := b.finish(b.spec("modest", "eat-memory", "16"))
	if c.ExitCode != 0 || c.OOMKilled {
		b.t.Errorf("a modest process ended as %+v with %q", c, out)
	}
}

// childLostIsFlagged checks that OOMKilled is set for a killed child although the
// container's first process exits 0.
func childLostIsFlagged(b *bench) {
	// An engine learns of a lost child and of the container's exit in different ways, and
	// may miss the child if the exit comes too soon.
	for linger := 250 * time.Millisecond; ; linger *= 4 {
		name := fmt.Sprint("lingers-", linger)
		c, out := b.finish(b.spec(name, "do", "child-oom 512", "sleep "+linger.String()))
		if c.ExitCode != 0 {
			b.t.Errorf("ended as %+v, want exit code 0", c)
		}
		wantLines(b.t, out, "child exited 137")
		if c.OOMKilled {
			return
		}
		if linger > patience/8 {
			b.t.Fatalf("ended as %+v, want OOM", c)
		}
	}
}

// trainerGoesOn checks that an interrupted trainer resumes in a second container from the
// checkpoint of the first, with the result of an uninterrupted run.
func trainerGoesOn(b *bench) {
	dir := b.t.TempDir()
	train := func(name string, command ...string) node.ContainerSpec {
		s := b.spec(name, command...)
		s.Mounts = []node.Mount{{Host: dir, Target: "/checkpoint"}}
		return s
	}
	first := b.run(train("first", "train", "/checkpoint", "100000", "20ms")) // until SIGTERM
	b.await(first, "step 3")
	if err := b.Runtime.Signal(b.ctx, first, "SIGTERM"); err != nil {
		b.t.Fatal(err)
	}
	if c := b.wait(first); c.ExitCode != 0 {
		b.t.Fatalf("interrupted trainer exited %d", c.ExitCode)
	}
	done, err := filepath.Glob(filepath.Join(dir, "step-*", "DONE"))
	if err != nil || len(done) != 1 {
		b.t.Fatalf("checkpoints are %v (error %v), want one", done, err)
	}
	step := strings.TrimPrefix(filepath.Base(filepath.Dir(done[0])), "step-")
	// Where the signal arrives varies from run to run; the second run does 150 steps more.
	at, err := strconv.Atoi(step)
	must(b.t, err)
	steps := at + 150
	second := train("second", "train", "/checkpoint", strconv.Itoa(steps), "1ms", "50")
	second.Env = map[string]string{"BERTH_RESTORED_STEP": step}
	c, out := b.finish(second)
	if c.ExitCode != 0 || len(out) == 0 || out[0] != "restored step "+step ||
		out[len(out)-1] != prog.TrainResult(steps) {
		b.t.Errorf("resumed trainer exited %d with %q, want the result %q", c.ExitCode, out, prog.TrainResult(steps))
	}
}
