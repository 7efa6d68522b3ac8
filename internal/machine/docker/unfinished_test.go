package docker_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/activities/node"
	"berth/internal/machine/docker"
	"berth/internal/machine/unfinished"
)

// followed is a container whose unfinished line is read.
type followed struct {
	m     *machine
	spec  node.ContainerSpec
	id    string
	lines chan node.UnfinishedLine
	ended chan error
}

// follow runs a container and reads its unfinished line until the end of the test. It returns once the reader is
// attached.
func (m *machine) follow(command ...string) *followed {
	m.t.Helper()
	f := &followed{m: m, spec: m.spec(command...), lines: make(chan node.UnfinishedLine, 1000), ended: make(chan error, 1)}
	f.id = m.run(f.spec).ID
	ctx, cancel := context.WithCancel(context.Background())
	m.t.Cleanup(cancel)
	go func() {
		f.ended <- m.UnfinishedLines(ctx, f.spec.Name, func(l node.UnfinishedLine) { f.lines <- l })
	}()
	if first := f.next(); first.Text != "" {
		m.t.Fatalf("the first picture is %+v, want an empty one", first)
	}
	return f
}

// next returns the next picture.
func (f *followed) next() node.UnfinishedLine {
	f.m.t.Helper()
	select {
	case l := <-f.lines:
		return l
	case err := <-f.ended:
		f.m.t.Fatalf("the reader ended: %v", err)
	case <-time.After(time.Minute):
		f.m.t.Fatal("no picture within a minute")
	}
	return node.UnfinishedLine{}
}

// end returns the reader's result.
func (f *followed) end() error {
	f.m.t.Helper()
	select {
	case err := <-f.ended:
		return err
	case <-time.After(time.Minute):
		f.m.t.Fatal("the reader did not end within a minute")
		return nil
	}
}

// readersOf returns the processes that read the unfinished line of a container.
func readersOf(t *testing.T, id string) []int {
	t.Helper()
	list, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, path := range list {
		text, err := os.ReadFile(path)
		args := strings.Split(string(text), "\x00")
		if err != nil || len(args) < 4 || args[1] != unfinished.Argument || args[3] != id {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, pid)
	}
	return found
}

// freeze stops a process by SIGSTOP.
func freeze(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
}

// flood makes a container that waits in trap-term write, and returns how long the container took until it had written
// all and waits again. count is the number of waits so far.
func (m *machine) flood(s node.ContainerSpec, count int) time.Duration {
	m.t.Helper()
	began := time.Now()
	if err := m.Signal(m.t.Context(), s.Name, "SIGTERM"); err != nil {
		m.t.Fatal(err)
	}
	seen := 0
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	defer cancel()
	err := m.Logs(ctx, s.Name, time.Time{}, true, func(l node.LogLine) error {
		if l.Text == "ready" {
			if seen++; seen > count {
				return errSeen
			}
		}
		return nil
	})
	if !errors.Is(err, errSeen) {
		m.t.Fatalf("the container is held up: it has not written all within a minute: %v", err)
	}
	return time.Since(began)
}

func TestProgressBarIsReadBeforeItsLineEnds(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	f := m.follow("do", "trap-term 0", "redraw 3 1s", "trap-term 0")
	m.await(f.spec.Name, "ready")
	if err := m.Signal(t.Context(), f.spec.Name, "SIGTERM"); err != nil {
		t.Fatal(err)
	}
	var got []string
	for l := f.next(); l.Text != ""; l = f.next() {
		if !l.Stderr || l.At.IsZero() {
			t.Errorf("picture %+v, want one of stderr with a time", l)
		}
		got = append(got, l.Text)
	}
	want := []string{"1/3", "2/3", "3/3"}
	for _, text := range got {
		if !slices.Contains(want, text) {
			t.Errorf("pictures %q, want the pictures of %q", got, want)
		}
	}
	if len(got) < 2 {
		t.Errorf("pictures %q, want the bar to move", got)
	}
	if text := m.logs(f.spec.Name); !strings.Contains(text, "\r1/3\r2/3\r3/3\n") {
		t.Errorf("the log is %q, want the bar as one line", text)
	}
	if err := m.Signal(t.Context(), f.spec.Name, "SIGKILL"); err != nil {
		t.Fatal(err)
	}
	if err := f.end(); err != nil {
		t.Errorf("after the container's end: %v", err)
	}
}

// floods is 3 MB: more than twice what the engine buffers for a reader.
const floods = "spam 3000 1000"

func TestFrozenReaderIsKilledAndTheContainerGoesOn(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	f := m.follow("do", "trap-term 0", floods, "trap-term 0")
	m.await(f.spec.Name, "ready")
	readers := readersOf(t, f.id)
	if len(readers) != 1 {
		t.Fatalf("%d readers, want 1", len(readers))
	}
	freeze(t, readers[0])
	t.Logf("the container took %s to write 3 MB next to a frozen reader", m.flood(f.spec, 1))
	if err := f.end(); !errors.Is(err, node.ErrReaderKilled) {
		t.Errorf("a frozen reader ended by %v, want %v", err, node.ErrReaderKilled)
	}
}

func TestFrozenAgentHoldsUpNoContainer(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	s := m.spec("do", "trap-term 0", floods, "trap-term 0", floods, "trap-term 0")
	id := m.run(s).ID
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	agent := exec.Command(self)
	agent.Env = append(os.Environ(), followEnv+"="+s.Name)
	out, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = agent.Process.Kill()
		_ = agent.Wait()
	})
	if first, err := bufio.NewReader(out).ReadString('\n'); err != nil || first != "\"\"\n" {
		t.Fatalf("the agent printed %q, %v", first, err)
	}
	m.await(s.Name, "ready")
	freeze(t, agent.Process.Pid)
	t.Logf("the container took %s to write 3 MB next to a frozen agent", m.flood(s, 1))
	for _, pid := range readersOf(t, id) {
		freeze(t, pid)
	}
	t.Logf("the container took %s to write 3 MB next to a frozen agent and reader", m.flood(s, 2))
	if left := readersOf(t, id); len(left) > 0 {
		t.Errorf("readers %d are left", left)
	}
}

func TestReaderEndsWithItsAgent(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	s := m.spec("sleep", "1h")
	id := m.run(s).ID
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	agent := exec.Command(self)
	agent.Env = append(os.Environ(), followEnv+"="+s.Name)
	out, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if len(readersOf(t, id)) != 1 {
		t.Fatal("no reader")
	}
	_ = agent.Process.Kill()
	_ = agent.Wait()
	for limit := time.Now().Add(time.Minute); len(readersOf(t, id)) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("the reader outlives its agent by a minute")
		}
	}
}
