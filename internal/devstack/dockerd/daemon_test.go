package dockerd_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"

	"berth/internal/devstack/dockerd"
)

// helperEnv makes this test binary start an engine on the folder it names,
// "tied" or "untied", and wait to be killed.
const helperEnv = "BERTH_DOCKERD_TEST_HELPER"

func TestMain(m *testing.M) {
	if spec := os.Getenv(helperEnv); spec != "" {
		kind, dir, _ := strings.Cut(spec, ":")
		d, err := dockerd.Start(context.Background(), dockerd.Options{Dir: dir, Tied: kind == "tied"})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("up", d.Host())
		select {}
	}
	os.Exit(m.Run())
}

// machine is an engine with a client, removed with all its data at the end.
type machine struct {
	*dockerd.Daemon
	dir string
	api *client.Client
}

func boot(t *testing.T, opts dockerd.Options) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("private Docker engines need root: run the tests of this package as root")
	}
	if opts.Dir == "" {
		opts.Dir = t.TempDir()
	}
	d, err := dockerd.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if err := d.Remove(ctx); err != nil {
			t.Error(err)
		}
		assertNothingLeft(t, opts.Dir)
	})
	api, err := client.NewClientWithOpts(client.WithHost(d.Host()), client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Close() })
	return &machine{Daemon: d, dir: opts.Dir, api: api}
}

// assertNothingLeft checks the promises of Remove, by looking at the host.
func assertNothingLeft(t *testing.T, dir string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), dir+"/") {
		t.Errorf("mounts are left below %s", dir)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", dir, err)
	}
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		b, _ := os.ReadFile(path)
		if bytes.Contains(b, []byte(dir)) && bytes.HasPrefix(b, []byte("/usr/sbin/dockerd")) {
			t.Errorf("a process is left: %s %q", path, b)
		}
	}
}

// pauseImage is a tarball of an image's root file system, built once.
var pauseImage = sync.OnceValues(func() ([]byte, error) {
	// The program stays up to date for the next build, since linking takes long.
	path, err := filepath.Abs("../../../bin/tests/pause")
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "build", "-o", path, "./testdata/pause")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the test image: %w: %s", err, out)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.WriteHeader(&tar.Header{Name: "pause", Mode: 0o755, Size: int64(len(program))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(program); err != nil {
		return nil, err
	}
	return buf.Bytes(), w.Close()
})

func (m *machine) load(t *testing.T) {
	t.Helper()
	rootfs, err := pauseImage()
	if err != nil {
		t.Fatal(err)
	}
	src := image.ImportSource{Source: bytes.NewReader(rootfs), SourceName: "-"}
	r, err := m.api.ImageImport(t.Context(), src, "pause:1", image.ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Fatal(err)
	}
}

// run starts a container under limits and returns its id once it has printed
// its first line.
func (m *machine) run(t *testing.T, args ...string) string {
	t.Helper()
	created, err := m.api.ContainerCreate(t.Context(),
		&container.Config{Image: "pause:1", Cmd: append([]string{"/pause"}, args...)},
		&container.HostConfig{Resources: container.Resources{Memory: 64 << 20, NanoCPUs: 500_000_000}}, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.api.ContainerStart(t.Context(), created.ID, container.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	m.awaitReady(t, created.ID)
	return created.ID
}

// awaitReady follows the container's log until it says that it is ready.
func (m *machine) awaitReady(t *testing.T, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	logs, err := m.api.ContainerLogs(ctx, id, container.LogsOptions{ShowStdout: true, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	// Each line has a header of eight bytes.
	if line, err := bufio.NewReader(logs).ReadString('\n'); err != nil || !strings.HasSuffix(line, "ready\n") {
		t.Fatalf("container %s printed %q, %v", id, line, err)
	}
}

// output waits for the container's end and returns its output.
func (m *machine) output(t *testing.T, id string) string {
	t.Helper()
	done, failed := m.api.ContainerWait(t.Context(), id, container.WaitConditionNotRunning)
	select {
	case <-done:
	case err := <-failed:
		t.Fatal(err)
	}
	logs, err := m.api.ContainerLogs(t.Context(), id, container.LogsOptions{ShowStdout: true, ShowStderr: true})
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	var out bytes.Buffer
	if _, err := stdcopy.StdCopy(&out, &out, logs); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func (m *machine) inspect(t *testing.T, id string) container.InspectResponse {
	t.Helper()
	c, err := m.api.ContainerInspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat[bytes.LastIndexByte(stat, ')'):]), ") Z")
}

// children returns the processes whose parent is pid.
func children(t *testing.T, pid int) []int {
	t.Helper()
	var pids []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, _ := os.ReadFile(path)
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			n, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, n)
		}
	}
	return pids
}

func TestMachinesLiveSideBySide(t *testing.T) {
	t.Parallel()
	a, b := boot(t, dockerd.Options{}), boot(t, dockerd.Options{})
	a.load(t)
	b.load(t)
	server := a.run(t, "serve")
	if got := a.inspect(t, server).HostConfig.Memory; got != 64<<20 {
		t.Errorf("memory limit is %d", got)
	}
	if list, err := b.api.ContainerList(t.Context(), container.ListOptions{All: true}); err != nil || len(list) != 0 {
		t.Errorf("one machine sees the other's containers: %v, %v", list, err)
	}
	address := a.inspect(t, server).NetworkSettings.Networks["bridge"].IPAddress
	if address == "" {
		t.Fatal("the container has no address")
	}
	client, err := b.api.ContainerCreate(t.Context(), &container.Config{
		Image: "pause:1", Cmd: []string{"/pause", "get", "http://" + net.JoinHostPort(address, "8080")},
	}, nil, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.api.ContainerStart(t.Context(), client.ID, container.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := b.output(t, client.ID); got != "served" {
		t.Errorf("from the other machine's container: %q", got)
	}
}

func TestStopAndStartKeepImagesAndContainers(t *testing.T) {
	t.Parallel()
	m := boot(t, dockerd.Options{})
	m.load(t)
	id := m.run(t)
	if err := m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c := m.inspect(t, id); c.State.Running || c.State.ExitCode != 0 {
		t.Errorf("after a stop in order the container is %+v", c.State)
	}
	if err := m.api.ContainerStart(t.Context(), id, container.StartOptions{}); err != nil {
		t.Error(err)
	}
}

func TestKilledMachineLeavesNothingRunningAndBootsAgain(t *testing.T) {
	t.Parallel()
	m := boot(t, dockerd.Options{})
	m.load(t)
	id := m.run(t)
	first := m.inspect(t, id).State.Pid
	all := append(children(t, first), first)
	if len(all) != 2 {
		t.Fatalf("the container runs %v, want two processes", all)
	}
	if err := m.KillMachine(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, pid := range all {
		if running(pid) {
			t.Errorf("process %d of a container survived", pid)
		}
	}
	if err := m.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c := m.inspect(t, id); c.State.Running {
		t.Error("the container came back by itself")
	}
	m.run(t)
}

func TestLiveRestoreKeepsContainersOverACrashOfTheEngine(t *testing.T) {
	t.Parallel()
	m := boot(t, dockerd.Options{LiveRestore: true})
	m.load(t)
	id := m.run(t)
	pid := m.inspect(t, id).State.Pid
	if err := m.KillDaemon(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !running(pid) {
		t.Error("the container died with the engine")
	}
	if err := m.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c := m.inspect(t, id); !c.State.Running || c.State.Pid != pid {
		t.Errorf("after the crash: %+v, want pid %d running", c.State, pid)
	}
}

func TestRevivedEngineAnswersAndKeepsContainersAndStacks(t *testing.T) {
	t.Parallel()
	m := boot(t, dockerd.Options{LiveRestore: true})
	m.load(t)
	id := m.run(t)
	pid := m.inspect(t, id).State.Pid
	if err := m.Revive(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c := m.inspect(t, id); !c.State.Running || c.State.Pid != pid {
		t.Errorf("after the revival: %+v, want pid %d running", c.State, pid)
	}
	found, err := filepath.Glob(filepath.Join(m.dir, "goroutine-stacks-*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("stacks in %v, %v: want one file", found, err)
	}
	b, err := os.ReadFile(found[0])
	if err != nil || !bytes.Contains(b, []byte("goroutine ")) {
		t.Errorf("%s holds %.100q, %v: want stacks", found[0], b, err)
	}
}

func TestSecondManagerIsRefused(t *testing.T) {
	t.Parallel()
	m := boot(t, dockerd.Options{})
	if _, err := dockerd.Start(t.Context(), dockerd.Options{Dir: m.dir}); err == nil || !strings.Contains(err.Error(), "another process runs this machine") {
		t.Errorf("got %v", err)
	}
}

// startHelper runs an engine under another process and returns that process.
func startHelper(t *testing.T, kind, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+kind+":"+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || !strings.HasPrefix(line, "up ") {
		t.Fatalf("helper said %q, %v", line, err)
	}
	return cmd
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(syscall.SIGKILL)
	_ = cmd.Wait()
}

func TestEngineOutlivesItsStarterAndIsTakenOver(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	kill(startHelper(t, "untied", dir))
	m := boot(t, dockerd.Options{Dir: dir})
	if !m.Adopted() {
		t.Error("a new engine was started beside the running one")
	}
	m.load(t)
	m.run(t)
}

func TestTiedEngineEndsWithItsStarter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	kill(startHelper(t, "tied", dir))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		log, err := os.ReadFile(filepath.Join(dir, "dockerd.log"))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(log), "Processing signal 'terminated'") {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the engine was not asked to end; log:\n%s", log)
		}
	}
	if m := boot(t, dockerd.Options{Dir: dir, Wipe: true}); m.Adopted() {
		t.Error("a wiped machine was taken over")
	}
}

func TestWipedMachineIsEmpty(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	m := boot(t, dockerd.Options{Dir: dir})
	m.load(t)
	m.run(t)
	if err := m.Release(); err != nil {
		t.Fatal(err)
	}
	again := boot(t, dockerd.Options{Dir: dir, Wipe: true})
	images, err := again.api.ImageList(t.Context(), image.ListOptions{})
	if err != nil || len(images) != 0 {
		t.Errorf("images after a wipe: %v, %v", images, err)
	}
}

func TestHostFirewallIsLeftAlone(t *testing.T) {
	// Not parallel: it compares the host's rules before and after.
	before := rulesOfOthers(t)
	m := boot(t, dockerd.Options{})
	id := filepath.Base(filepath.Dir(m.Host()))
	if now := rulesOfOthers(t); now != before {
		t.Errorf("rules of others changed from\n%s\nto\n%s", before, now)
	}
	if !strings.Contains(rules(t), id) {
		t.Errorf("no rule lets the machine %s out", id)
	}
	if err := m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := rules(t); strings.Contains(now, id) {
		t.Errorf("rules of machine %s were left behind:\n%s", id, now)
	}
	if _, err := net.InterfaceByName("bd-" + id); err == nil {
		t.Errorf("bridge bd-%s was left behind", id)
	}
}

func rules(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, table := range []string{"filter", "nat"} {
		out, err := exec.Command("/usr/sbin/iptables", "-w", "300", "-t", table, "-S").Output()
		if err != nil {
			t.Fatal(err)
		}
		all.Write(out)
	}
	return all.String()
}

// rulesOfOthers leaves out the rules of private engines, and the rules of the host's engine for
// networks other than its own, those of jobs (bn) among them: tests of other packages have such networks.
func rulesOfOthers(t *testing.T) string {
	t.Helper()
	var kept strings.Builder
	for line := range strings.Lines(rules(t)) {
		if !strings.Contains(line, "berth-") && !strings.Contains(line, " br-") && !strings.Contains(line, " bn") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}
