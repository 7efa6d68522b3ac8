package deadman

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestStatesFollowTheTable(t *testing.T) {
	t.Parallel()
	l := Lease{Sent: Instant(time.Hour), Fence: 15 * time.Minute}
	r := Rank{Grace: 30 * time.Second}
	for age, want := range map[time.Duration]State{
		0:                                   Watching,
		15*time.Minute - 1:                  Watching,
		15 * time.Minute:                    Stopping,
		15*time.Minute + 30*time.Second - 1: Stopping,
		15*time.Minute + 30*time.Second:     Killing,
		48 * time.Hour:                      Killing,
	} {
		if got := judge(l, r, l.Sent+Instant(age)); got != want {
			t.Errorf("%s after the sync was sent it is %s, want %s", age, got, want)
		}
	}
	if got := judge(l, Rank{}, l.Sent+Instant(15*time.Minute)); got != Killing {
		t.Errorf("without grace it is %s at the fence, want %s", got, Killing)
	}
}

func TestALeaseThatCannotBeTrueIsRefused(t *testing.T) {
	t.Parallel()
	good := Lease{Boot: "b", Sent: 10, Fence: time.Second, Ranks: []Rank{{Container: newID()}}}
	if err := good.check("b", 10); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*Lease){
		"sent in the future":   func(l *Lease) { l.Sent = 11 },
		"no fence":             func(l *Lease) { l.Fence = 0 },
		"a rank without an id": func(l *Lease) { l.Ranks = []Rank{{Container: "abc"}} },
	} {
		l := good
		edit(&l)
		if l.check("b", 10) == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestKillEndsEveryProcessOfTheContainerAndNoOther(t *testing.T) {
	t.Parallel()
	ours, others := newContainer(t), newContainer(t)
	victims := []*child{ours.run("sleep", "1000"), ours.run("sh", "-c", "trap '' TERM; while :; do sleep 1000; done"), ours.run("sleep", "1000")}
	bystander := others.run("sleep", "1000")
	free := spawn(t, "sleep", "1000")
	ours.pause()
	if pids, err := Processes(ours.id); err != nil || len(pids) < len(victims) {
		t.Fatalf("processes %v, %v", pids, err)
	}
	until(t, "nothing of it is left", func() bool {
		n, err := Kill(ours.id)
		if err != nil {
			t.Fatal(err)
		}
		return n == 0
	})
	for _, v := range victims {
		v.mustEnd()
	}
	if !bystander.lives() || !free.lives() {
		t.Error("a process of nobody's was killed")
	}
}

func TestAReusedNumberIsNotKilled(t *testing.T) {
	t.Parallel()
	c := newContainer(t)
	stranger := spawn(t, "sleep", "1000")
	// Found as the container's a moment ago; by now the number is another's.
	if err := (process{pid: stranger.cmd.Process.Pid}).signal(c.id, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// If the deadman had sent the signal, the process would die of it.
	mustDo(t, stranger.cmd.Process.Signal(syscall.SIGTERM))
	stranger.mustEnd()
	if how := stranger.cmd.ProcessState.Sys().(syscall.WaitStatus); how.Signal() != syscall.SIGTERM {
		t.Errorf("a stranger was ended by %s", how.Signal())
	}
}

func TestKillsAtTheFenceAndGoesOnUntilAFreshLease(t *testing.T) {
	t.Parallel()
	c, dir := newContainer(t), t.TempDir()
	gate := filepath.Join(t.TempDir(), "gate")
	mustDo(t, os.Mkdir(gate, 0o700))
	lease := Lease{Boot: boot(t), Sent: Now(), Fence: time.Hour, Seq: 1, Ranks: []Rank{{Name: "x", Container: c.id, Gate: gate}}}
	mustDo(t, WriteLease(dir, lease))
	begin(t, Options{Dir: dir, Beat: 10 * time.Millisecond})
	first := c.run("sleep", "1000")
	until(t, "it watches", func() bool { p, err := Answer(dir); return err == nil && p.State == Watching && p.Seq == 1 })
	lease.Sent, lease.Seq, lease.Fence = Now(), 2, time.Second
	mustDo(t, WriteLease(dir, lease))
	first.mustEnd()
	if age := lease.Age(Now()); age < lease.Fence {
		t.Errorf("killed after %s, before the fence", age)
	}
	until(t, "the gate is closed", func() bool { _, closed := GateClosed(gate); return closed })
	if at, _ := GateClosed(gate); at.IsZero() || time.Since(at) > time.Hour {
		t.Errorf("the gate was closed at %s", at)
	}
	late := c.run("sleep", "1000") // an engine that was slow
	late.mustEnd()

	lease.Sent, lease.Seq, lease.Fence = Now(), 3, time.Hour
	mustDo(t, WriteLease(dir, lease))
	until(t, "it watches again", func() bool { p, err := Answer(dir); return err == nil && p.State == Watching && p.Seq == 3 })
	fresh := c.run("sleep", "1000")
	until(t, "it has looked again", func() bool { p, _ := Answer(dir); return p.At > Now()-Instant(time.Second) && p.At > lease.Sent })
	if !fresh.lives() {
		t.Error("killed under a fresh lease")
	}
}

func TestAsksBeforeItKills(t *testing.T) {
	t.Parallel()
	c, dir := newContainer(t), t.TempDir()
	ready := filepath.Join(t.TempDir(), "ready")
	polite := c.runFirst("sh", "-c", "trap 'exit 7' TERM; : >"+ready+"; while :; do sleep 0.05; done")
	// The kernel drops signals to the first process of a namespace until the process handles
	// them.
	until(t, "it listens", func() bool { _, err := os.Stat(ready); return err == nil })
	mustDo(t, WriteLease(dir, Lease{Boot: boot(t), Sent: Now(), Fence: time.Millisecond, Ranks: []Rank{{Container: c.id, Grace: time.Hour}}}))
	begin(t, Options{Dir: dir, Beat: 10 * time.Millisecond})
	if code := polite.mustEnd(); code != 7 {
		t.Errorf("ended with %d, not by its own hand", code)
	}
}

func TestWhatIsNotALeaseOfThisBootHarmsNobody(t *testing.T) {
	t.Parallel()
	c, dir := newContainer(t), t.TempDir()
	mustDo(t, WriteLease(dir, Lease{Boot: "another", Sent: 1, Fence: 1, Seq: 1, Ranks: []Rank{{Container: c.id}}}))
	p := c.run("sleep", "1000")
	begin(t, Options{Dir: dir, Beat: 10 * time.Millisecond})
	until(t, "it beats", func() bool { a, err := Answer(dir); return err == nil && a.State == Idle && a.Seq == 1 })
	if !p.lives() {
		t.Error("killed by the lease of another boot")
	}
}

func TestADamagedLeaseFileLeavesTheLastGoodOneToAge(t *testing.T) {
	t.Parallel()
	c, dir := newContainer(t), t.TempDir()
	mustDo(t, WriteLease(dir, Lease{Boot: boot(t), Sent: Now(), Fence: 2 * time.Second, Seq: 1, Ranks: []Rank{{Container: c.id}}}))
	p := c.run("sleep", "1000")
	begin(t, Options{Dir: dir, Beat: 10 * time.Millisecond})
	until(t, "it has read the lease", func() bool { a, err := Answer(dir); return err == nil && a.Seq == 1 })
	mustDo(t, os.WriteFile(filepath.Join(dir, "lease.json"), []byte("{"), 0o600))
	p.mustEnd()
}

func TestAFolderThatIsGoneTakesItsContainersAlong(t *testing.T) {
	t.Parallel()
	c, dir := newContainer(t), filepath.Join(t.TempDir(), "fence")
	mustDo(t, os.Mkdir(dir, 0o700))
	mustDo(t, WriteLease(dir, Lease{Boot: boot(t), Sent: Now(), Fence: time.Hour, Seq: 1, Ranks: []Rank{{Container: c.id}}}))
	p := c.run("sleep", "1000")
	ended := begin(t, Options{Dir: dir, Beat: 10 * time.Millisecond})
	until(t, "it has read the lease", func() bool { a, err := Answer(dir); return err == nil && a.Seq == 1 })
	until(t, "the folder is removed", func() bool { return os.RemoveAll(dir) == nil })
	p.mustEnd()
	<-ended
}

func TestOneDeadmanForEachFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := Answer(dir); err == nil {
		t.Error("nobody watches, and somebody answers")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, Options{Dir: dir, Beat: 10 * time.Millisecond}) }()
	until(t, "it beats", func() bool { _, err := Answer(dir); return err == nil })
	if err := Run(t.Context(), Options{Dir: dir}); !errors.Is(err, ErrWatched) {
		t.Errorf("a second one: %v", err)
	}
	cancel()
	mustDo(t, <-done)
	if _, err := Answer(dir); err == nil {
		t.Error("it has ended, and still answers")
	}
}

func TestAnIdleOneEndsOnlyWhenNoAgentIsThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	held, err := Hold(dir)
	mustDo(t, err)
	ended := begin(t, Options{Dir: dir, Beat: 10 * time.Millisecond, EndIdle: true})
	for range 3 { // three beats
		var was Pulse
		until(t, "it beats", func() bool { p, err := Answer(dir); was = p; return err == nil })
		until(t, "it beats on", func() bool { p, err := Answer(dir); return err == nil && p.At > was.At })
	}
	mustDo(t, held.Close())
	<-ended
}

// container is a group of processes that is named as an engine names a
// container's.
type container struct {
	t   *testing.T
	id  string
	dir string
}

func newID() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // it never fails
	return hex.EncodeToString(b)
}

func newContainer(t *testing.T) *container {
	t.Helper()
	c := &container{t: t, id: newID()}
	for _, root := range []string{"/sys/fs/cgroup/freezer", "/sys/fs/cgroup"} {
		c.dir = filepath.Join(root, "berth-"+c.id+".scope")
		if os.Mkdir(c.dir, 0o755) == nil {
			break
		}
	}
	if _, err := os.Stat(filepath.Join(c.dir, "cgroup.procs")); err != nil {
		t.Fatalf("no cgroup can be made here: %v", err)
	}
	t.Cleanup(func() {
		until(t, "the group is removed", func() bool {
			_, _ = Kill(c.id)
			return os.Remove(c.dir) == nil
		})
	})
	return c
}

func (c *container) run(args ...string) *child {
	c.t.Helper()
	return c.join(spawn(c.t, args...))
}

// runFirst runs a process that is number 1 of a namespace.
func (c *container) runFirst(args ...string) *child {
	c.t.Helper()
	return c.join(start(c.t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}, args...))
}

func (c *container) join(p *child) *child {
	c.t.Helper()
	mustDo(c.t, os.WriteFile(filepath.Join(c.dir, "cgroup.procs"), fmt.Append(nil, p.cmd.Process.Pid), 0))
	return p
}

// pause freezes the group, as an engine's pause does.
func (c *container) pause() {
	c.t.Helper()
	err := os.WriteFile(filepath.Join(c.dir, "freezer.state"), []byte("FROZEN"), 0)
	if errors.Is(err, os.ErrNotExist) {
		err = os.WriteFile(filepath.Join(c.dir, "cgroup.freeze"), []byte("1"), 0)
	}
	mustDo(c.t, err)
}

type child struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended chan struct{}
}

func spawn(t *testing.T, args ...string) *child {
	t.Helper()
	return start(t, nil, args...)
}

func start(t *testing.T, attr *syscall.SysProcAttr, args ...string) *child {
	t.Helper()
	p := &child{t: t, cmd: exec.Command(args[0], args[1:]...), ended: make(chan struct{})}
	p.cmd.SysProcAttr = attr
	mustDo(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // how it ended is in its state
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
	})
	return p
}

func (p *child) lives() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

func (p *child) mustEnd() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(3 * time.Minute):
		p.t.Fatalf("process %d was not ended", p.cmd.Process.Pid)
	}
	return p.cmd.ProcessState.ExitCode()
}

// begin runs a deadman for the time of the test; the channel is closed when it
// has ended.
func begin(t *testing.T, o Options) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := Run(ctx, o); err != nil {
			t.Errorf("deadman: %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return ended
}

func boot(t *testing.T) string {
	t.Helper()
	id, err := BootID()
	mustDo(t, err)
	return id
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(3 * time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("never: %s", what)
		}
	}
}

func mustDo(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
