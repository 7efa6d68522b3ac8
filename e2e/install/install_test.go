package install_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/e2e/commands"
)

const (
	page  = "../../docs/operate/install.md"
	units = "../../deploy/systemd"

	bootLimit  = 2 * time.Minute // of a host, on a busy machine
	blockLimit = 4 * time.Minute // of a block of commands
)

// hosts are the names that the page gives its blocks, each with its names in DNS.
var hosts = map[string][]string{"control": {"berth.internal"}, "machine": nil}

// Kinds of an installation: from packages, or from programs that are copied.
const (
	archives = "archives"
	packages = "packages"
)

// block is a fenced block of the page.
type block struct {
	line int // of the page
	host string
	kind string // of the installations that need it; "": both
	text string
}

// blocks reads the blocks of the page for one kind of installation. Every fence must name a host: a block that
// no test runs may be wrong.
func blocks(t testing.TB, kind string) []block {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var found []block
	fence := regexp.MustCompile("(?ms)^```(.*?)\n(.*?)^```\n")
	for _, at := range fence.FindAllSubmatchIndex(b, -1) {
		line := 1 + strings.Count(string(b[:at[0]]), "\n")
		text, ok := strings.CutPrefix(string(b[at[2]:at[3]]), "sh ")
		host, only, _ := strings.Cut(text, " ")
		if _, known := hosts[host]; !ok || !known || only != "" && only != archives && only != packages {
			t.Fatalf("%s:%d: a block of %q; want ```sh control or ```sh machine, for one kind with %s or %s", page, line,
				b[at[2]:at[3]], archives, packages)
		}
		if only == "" || only == kind {
			found = append(found, block{line: line, host: host, kind: only, text: string(b[at[4]:at[5]])})
		}
	}
	if len(found) < 10 || !strings.Contains(found[len(found)-1].text, "berth-check") {
		t.Fatalf("%s has %d blocks, or ends without the check of the history", page, len(found))
	}
	return found
}

// TestEachBlockOfTheInstallationPageNamesItsHost reads the page as the benchmarks do. Each host has blocks of its
// own for each kind of installation.
func TestEachBlockOfTheInstallationPageNamesItsHost(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{archives, packages} {
		own := map[string]int{}
		for _, b := range blocks(t, kind) {
			if b.kind == kind {
				own[b.host]++
			}
		}
		for host := range hosts {
			if own[host] == 0 {
				t.Errorf("%s has no block of %s for host %s", page, kind, host)
			}
		}
	}
}

// BenchmarkTheInstallationPageLeadsFromEmptyHostsToAJob runs the commands of the page and nothing else.
func BenchmarkTheInstallationPageLeadsFromEmptyHostsToAJob(t *testing.B) {
	s := newSite(t, archivesHandover)
	s.follow(blocks(t, archives))
}

// follow runs blocks of the page in their order. One of them must run a job.
func (s *site) follow(list []block) {
	t := s.t
	t.Helper()
	jobs := 0
	for _, b := range list {
		began := time.Now()
		out := s.shell(b.host, b.text)
		t.Logf("line %d, %s: %s", b.line, b.host, time.Since(began).Round(10*time.Millisecond))
		if strings.Contains(b.text, "\nberth run ") || strings.HasPrefix(b.text, "berth run ") {
			jobs++
			if !strings.Contains(out, "succeeded") {
				t.Errorf("%s:%d: the job did not succeed:\n%s", page, b.line, out)
			}
		}
	}
	if jobs == 0 {
		t.Error("no block of the page runs a job")
	}
}

// shell runs commands on a host and returns their output, both streams. As root's shell at a terminal would, but
// the commands stop at the first failure, which fails the test.
func (s *site) shell(host, commands string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), blockLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, "docker", "exec", "-e", "HOME=/root", s.container(host),
		"bash", "-euo", "pipefail", "-c", commands).CombinedOutput()
	if err != nil {
		s.t.Fatalf("on host %s: %v\n%s\n%s\n%s", host, err, commands, out, s.journals())
	}
	return string(out)
}

// site is the two hosts of one test.
type site struct {
	t    testing.TB
	name string // of its network, and the beginning of the names of its containers
}

// label marks containers and networks with the process that made them.
const label = "berth.install.pid"

// requireHierarchies refuses a host with cgroup v1 that leaves out a hierarchy. systemd in a
// container activates all of them, and they stay active: the host's engine then finds
// processes in a hierarchy that is not mounted, and no longer notices when the kernel kills
// for lack of memory.
func requireHierarchies(t testing.TB) {
	t.Helper()
	b, err := os.ReadFile("/proc/cgroups")
	if err != nil {
		return // a kernel without cgroup v1
	}
	if v2, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers"); err == nil && len(v2) > 0 {
		return
	}
	var missing []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line) // name, hierarchy, number of groups, enabled
		if len(f) != 4 || strings.HasPrefix(f[0], "#") || f[3] != "1" {
			continue
		}
		if _, err := os.Stat(filepath.Join("/sys/fs/cgroup", f[0])); f[1] == "0" || err != nil {
			missing = append(missing, f[0])
		}
	}
	if len(missing) > 0 {
		t.Fatalf("this host does not mount the cgroup hierarchies of %s; mount each below /sys/fs/cgroup first, or use a host with cgroup v2",
			strings.Join(missing, ", "))
	}
}

// newSite boots the hosts. handover fills the folder that both have at the beginning.
func newSite(t testing.TB, handover func(s *site, dir string)) *site {
	t.Helper()
	requireHierarchies(t)
	s := &site{t: t, name: "berth-install-" + strconv.Itoa(os.Getpid())}
	s.removeLeftovers()
	root := strings.TrimSpace(s.run("bash", "../../scripts/install-root.sh"))
	image := "berth-install:" + strings.TrimSuffix(filepath.Base(root), ".tar")
	if exec.Command("docker", "image", "inspect", image).Run() != nil {
		s.run("docker", "import", root, image)
	}
	folder := t.TempDir()
	handover(s, folder)
	t.Cleanup(s.remove)
	s.run("docker", "network", "create", "--label", label+"="+strconv.Itoa(os.Getpid()), s.name)
	for host, names := range hosts {
		// What systemd and a container engine need of the kernel. --privileged would ask for
		// all capabilities, which a test machine may lack itself.
		args := []string{"run", "--detach", "--name", s.container(host), "--hostname", host, "--network", s.name,
			"--label", label + "=" + strconv.Itoa(os.Getpid()), "--cgroupns", "host", "--volume", "/sys/fs/cgroup:/sys/fs/cgroup",
			"--cap-add", "SYS_ADMIN", "--cap-add", "NET_ADMIN", "--cap-add", "SYS_PTRACE", "--cap-add", "DAC_READ_SEARCH",
			"--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined", "--security-opt", "systempaths=unconfined",
			"--tmpfs", "/run", "--tmpfs", "/run/lock", "--tmpfs", "/tmp", "--volume", "/var/lib/docker",
			"--env", "container=docker", "--volume", folder + ":/srv/handover"}
		for _, n := range names {
			args = append(args, "--network-alias", n)
		}
		s.run("docker", append(args, image, "/sbin/init")...)
	}
	for host := range hosts {
		s.await("boot of "+host, "docker", "exec", s.container(host), "systemctl", "is-active", "--quiet", "multi-user.target")
	}
	// Instead of a registry: an image of a shell, with the name that the page uses.
	s.await("image", "docker", "exec", s.container("machine"), "bash", "-euo", "pipefail", "-c", `
		cd / && tar --dereference --no-recursion -c bin bin/sh bin/echo lib64 lib64/ld-linux-x86-64.so.2 \
		  lib lib/x86_64-linux-gnu lib/x86_64-linux-gnu/libc.so.6 | docker import - debian:12`)
	return s
}

// archivesHandover fills the folder that both hosts have at the beginning with programs and units, as the page
// describes it.
func archivesHandover(s *site, dir string) {
	if err := commands.Build(filepath.Join(dir, "berth", "bin"), commands.Shipped,
		"berthd", "berth", "berth-agent", "berth-deadman", "berth-check", "berth-temporal"); err != nil {
		s.t.Fatal(err)
	}
	s.run("cp", "-r", units, filepath.Join(dir, "berth", "systemd"))
}

func (s *site) container(host string) string { return s.name + "-" + host }

// run runs a command of the test machine and returns its standard output.
func (s *site) run(name string, args ...string) string {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), name, args...)
	var says strings.Builder
	cmd.Stderr = &says
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, says.String())
	}
	return string(out)
}

// await repeats a command until it succeeds.
func (s *site) await(what, name string, args ...string) {
	s.t.Helper()
	for deadline := time.Now().Add(bootLimit); ; time.Sleep(200 * time.Millisecond) {
		out, err := exec.CommandContext(s.t.Context(), name, args...).CombinedOutput()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s takes more than %s: %v\n%s\n%s", what, bootLimit, err, out, s.journals())
		}
	}
}

// journals returns the last lines that each host logged.
func (s *site) journals() string {
	var all strings.Builder
	for host := range hosts {
		out, _ := exec.Command("docker", "exec", s.container(host), "journalctl", "--no-pager", "--lines", "60", "--output", "short").CombinedOutput()
		fmt.Fprintf(&all, "-- journal of %s\n%s", host, out)
	}
	return all.String()
}

// remove removes the hosts with all that they stored.
func (s *site) remove() {
	for host := range hosts {
		_ = exec.Command("docker", "rm", "--force", "--volumes", s.container(host)).Run()
	}
	if out, err := exec.Command("docker", "network", "rm", s.name).CombinedOutput(); err != nil {
		s.t.Logf("remove network: %v: %s", err, out)
	}
}

// removeLeftovers removes hosts and networks of test processes that were killed.
func (s *site) removeLeftovers() {
	for _, kind := range [][]string{{"ps", "--all"}, {"network", "ls"}} {
		list := s.run("docker", append(kind, "--filter", "label="+label, "--format", `{{.ID}} {{.Label "`+label+`"}}`)...)
		for line := range strings.Lines(list) {
			id, pid, _ := strings.Cut(strings.TrimSpace(line), " ")
			if _, err := os.Stat("/proc/" + pid); pid == "" || !os.IsNotExist(err) {
				continue
			}
			if kind[0] == "ps" {
				_ = exec.Command("docker", "rm", "--force", "--volumes", id).Run()
			} else {
				_ = exec.Command("docker", "network", "rm", id).Run()
			}
		}
	}
}
