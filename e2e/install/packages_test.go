package install_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// programs are the programs in the packages.
var programs = []string{
	"berthd", "berth", "berth-agent", "berth-check", "berth-cloud", "berth-deadman", "berth-temporal",
}

// pack makes the packages of a version for amd64 from the programs in a folder, and returns their folder.
func pack(t testing.TB, version, folder string) string {
	t.Helper()
	out := t.TempDir()
	notice := filepath.Join(t.TempDir(), "NOTICE")
	if err := os.WriteFile(notice, []byte("notices\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("../../scripts/package.sh", version, "amd64", folder, notice, out)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("package.sh: %v\n%s", err, text)
	}
	return out
}

// standIns returns a folder with files in place of the programs: the tests below look at packages and run no
// program of them.
func standIns(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range programs {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\necho "+name+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// output runs a command and returns its standard output.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	var says bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stderr = &says
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s%s", name, args, err, out, says.String())
	}
	return string(out)
}

func TestPackagesHaveProgramsUnitsAndSettings(t *testing.T) {
	t.Parallel()
	out := pack(t, "1.2.3", standIns(t))
	for name, files := range map[string][]string{
		"berth": {"-rwxr-xr-x ./usr/bin/berth"},
		"berthd": {
			"-rwxr-xr-x ./usr/bin/berthd", "-rwxr-xr-x ./usr/bin/berth-check", "-rwxr-xr-x ./usr/bin/berth-cloud",
			"-rw-r--r-- ./usr/lib/systemd/system/berthd.service",
			"-rw-r--r-- ./usr/lib/systemd/system/berth-check.timer",
			"-rw-r--r-- ./usr/lib/systemd/system/berth-check.service", "-rw-r--r-- ./usr/lib/sysusers.d/berthd.conf",
			"-rw-r--r-- ./usr/lib/tmpfiles.d/berthd.conf", "-rw-r----- ./etc/berth/berthd.yaml",
			"-rw------- ./etc/berth/berthd.env", "-rw------- ./etc/berth/berth-check.env",
		},
		"berth-agent": {
			"-rwxr-xr-x ./usr/bin/berth-agent", "-rwxr-xr-x ./usr/bin/berth-deadman",
			"-rw-r--r-- ./usr/lib/systemd/system/berth-agent.service", "-rw------- ./etc/berth/agent.yaml",
			"-rw-r--r-- ./usr/lib/systemd/system/berth-deadman.service", "-rw------- ./etc/berth/agent.env",
		},
		"berth-temporal": {
			"-rwxr-xr-x ./usr/bin/berth-temporal", "-rw-r--r-- ./usr/lib/systemd/system/berth-temporal.service",
			"-rw-r--r-- ./usr/lib/sysusers.d/berth-temporal.conf", "-rw-r----- ./etc/berth/temporal.yaml",
			"-rw------- ./etc/berth/temporal.env",
		},
	} {
		deb := filepath.Join(out, name+"_1.2.3_amd64.deb")
		var list []string // mode and path
		for line := range strings.Lines(output(t, "dpkg-deb", "--contents", deb)) {
			f := strings.Fields(line) // mode, owner, size, date, time, path
			if f[1] != "root/root" {
				t.Errorf("%s: %s belongs to %s", name, f[5], f[1])
			}
			list = append(list, f[0]+" "+f[5])
		}
		for _, want := range append(files, "-rw-r--r-- ./usr/share/doc/"+name+"/copyright") {
			if !slices.Contains(list, want) {
				t.Errorf("%s lacks %s; it has\n%s", name, want, strings.Join(list, "\n"))
			}
		}
		conffiles := ""
		if name != "berth" {
			conffiles = output(t, "dpkg-deb", "--info", deb, "conffiles")
		}
		for _, f := range list {
			path := strings.TrimPrefix(f[11:], ".")
			setting := strings.HasPrefix(path, "/etc/berth/") && path != "/etc/berth/"
			if setting && !strings.Contains(conffiles, path+"\n") {
				t.Errorf("%s: an upgrade would overwrite %s, which is no conffile", name, path)
			}
		}
	}
}

func TestUnitsOfPackagesRunTheirPrograms(t *testing.T) {
	t.Parallel()
	out := pack(t, "1.2.3", standIns(t))
	for _, name := range []string{"berthd", "berth-agent", "berth-temporal"} {
		root := t.TempDir()
		output(t, "dpkg-deb", "--extract", filepath.Join(out, name+"_1.2.3_amd64.deb"), root)
		found, err := filepath.Glob(filepath.Join(root, "usr/lib/systemd/system/*.service"))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s has no services: %v", name, err)
		}
		for _, unit := range found {
			text, err := os.ReadFile(unit)
			if err != nil {
				t.Fatal(err)
			}
			_, rest, _ := strings.Cut(string(text), "\nExecStart=")
			program := strings.Fields(rest)[0]
			if _, err := os.Stat(filepath.Join(root, program)); err != nil {
				t.Errorf("%s starts %s, which the package lacks", filepath.Base(unit), program)
			}
		}
	}
}

// Nothing starts by an installation, and only a purge deletes state. try-restart starts nothing that does not run.
func TestScriptsOfPackagesStartNothingAndKeepState(t *testing.T) {
	t.Parallel()
	scripts, err := filepath.Glob("../../deploy/packages/scripts/*")
	if err != nil || len(scripts) != 9 {
		t.Fatalf("%d scripts, %v; want three for each of three packages", len(scripts), err)
	}
	for _, path := range scripts {
		output(t, "sh", "-n", path)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		for _, never := range []string{"systemctl start", "systemctl enable", "systemctl restart", "preset"} {
			if strings.Contains(text, never) {
				t.Errorf("%s: %s", path, never)
			}
		}
		before, _, purges := strings.Cut(text, `= purge ]`)
		// The Temporal server has no state on its host.
		keeps := strings.HasSuffix(path, "-postrm") && !strings.HasSuffix(path, "berth-temporal-postrm")
		if strings.Contains(before, "rm -") || purges != keeps {
			t.Errorf("%s deletes state outside of a purge, or does not delete it in one", path)
		}
	}
}

func TestEqualInputGivesEqualPackages(t *testing.T) {
	t.Parallel()
	dir := standIns(t)
	first, second := pack(t, "1.2.3", dir), pack(t, "1.2.3", dir)
	files, err := os.ReadDir(first)
	if err != nil || len(files) != 8 {
		t.Fatalf("%d packages, %v; want 8", len(files), err)
	}
	for _, f := range files {
		a, errA := os.ReadFile(filepath.Join(first, f.Name()))
		b, errB := os.ReadFile(filepath.Join(second, f.Name()))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs between two runs (%v, %v)", f.Name(), errA, errB)
		}
	}
}

// rpm is part of make package-test; other hosts may lack it.
func TestRPMsCanBeReadAndInstalled(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("rpm"); err != nil {
		t.Logf("the RPMs were not read: %v: scripts/setup.sh release", err)
		return
	}
	out := pack(t, "1.2.3", standIns(t))
	root := t.TempDir()
	for name, file := range map[string]string{
		"berth": "/usr/bin/berth", "berthd": "/usr/lib/sysusers.d/berthd.conf", "berth-agent": "/etc/berth/agent.yaml",
		"berth-temporal": "/etc/berth/temporal.yaml",
	} {
		path := filepath.Join(out, name+"-1.2.3-1.x86_64.rpm")
		output(t, "rpm", "--checksig", "--nosignature", path)
		if list := output(t, "rpm", "-qlp", path); !strings.Contains(list, file+"\n") {
			t.Errorf("%s lacks %s:\n%s", name, file, list)
		}
		// Requirements and scripts belong to the host's system, which the folder is not.
		output(t, "rpm", "--root", root, "--install", "--nodeps", "--noscripts", "--ignoreos", path)
		output(t, "rpm", "--root", root, "--verify", "--nodeps", name)
		output(t, "rpm", "--root", root, "--erase", "--nodeps", "--noscripts", name)
		if _, err := os.Stat(filepath.Join(root, file)); !os.IsNotExist(err) {
			t.Errorf("%s stays after the package was erased: %v", file, err)
		}
	}
}

// A release is made of what is committed, and of the version that the tree states.
func TestAReleaseRefusesAnotherTree(t *testing.T) {
	t.Parallel()
	clone := filepath.Join(t.TempDir(), "berth")
	output(t, "git", "clone", "--quiet", "--shared", "--no-checkout", "../..", clone)
	// The scripts of this checkout, committed or not, as one commit of the clone.
	output(t, "git", "-C", clone, "checkout", "--quiet", "HEAD", "--", ".")
	for _, f := range []string{"scripts/release.sh", "internal/lib/buildinfo/buildinfo.go", "CHANGELOG.md"} {
		output(t, "cp", filepath.Join("../..", f), filepath.Join(clone, f))
	}
	output(t, "git", "-C", clone, "add", "--all")
	output(t, "git", "-C", clone, "-c", "user.name=x", "-c", "user.email=x@example.invalid", "-c",
		"commit.gpgsign=false", "commit", "--quiet",
		"--allow-empty", "--message", "x")
	release := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(filepath.Join(clone, "scripts/release.sh"), args...).CombinedOutput()
		if err == nil {
			t.Fatalf("release.sh %v succeeds:\n%s", args, out)
		}
		return string(out)
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, "write MAJOR.MINOR.PATCH"},
		{[]string{"1.2"}, "write MAJOR.MINOR.PATCH"},
		{[]string{"--arch", "mips", "0.1.0"}, "allowed are amd64, arm64"},
		{[]string{"--programs", "bin", "0.1.0"}, "add --rehearsal"},
		{[]string{"9.9.9"}, "no section ## 9.9.9"},
	} {
		if got := release(c.args...); !strings.Contains(got, c.says) {
			t.Errorf("release.sh %v: %s; want %q", c.args, got, c.says)
		}
	}
	if err := os.WriteFile(filepath.Join(clone, "new.go"), []byte("package berth\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := release("0.1.0"); !strings.Contains(got, "new.go") {
		t.Errorf("a checkout with a new file: %s", got)
	}
}

// Users verify a release with the minisign of their system.
func TestASignatureHoldsForItsFileAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sums, key, public := filepath.Join(dir, "SHA256SUMS"), filepath.Join(dir, "key"), filepath.Join(dir, "key.pub")
	if err := os.WriteFile(sums, []byte("0123  berth.deb\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sign := func(env string) string {
		t.Helper()
		cmd := exec.Command("../../scripts/sign.sh", sums, "berth 1.2.3")
		cmd.Env = append(os.Environ(), "MINISIGN_KEY="+env)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if out := sign(""); !strings.Contains(out, "is not signed") {
		t.Errorf("without a key: %s", out)
	}
	tool := strings.TrimSpace(output(t, "../../scripts/tool.sh", "minisign"))
	output(t, tool, "-G", "-W", "-s", key, "-p", public)
	sign(key)
	verifier := tool
	if path, err := exec.LookPath("minisign"); err == nil {
		verifier = path // of another author: it reads what other systems read
	}
	if out := output(t, verifier, "-V", "-p", public, "-m", sums); !strings.Contains(out, "berth 1.2.3") {
		t.Errorf("the signature does not show the version: %s", out)
	}
	if err := os.WriteFile(sums, []byte("4567  berth.deb\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(verifier, "-V", "-p", public, "-m", sums).CombinedOutput(); err == nil {
		t.Errorf("a changed file is valid: %s", out)
	}
}

// build builds the programs of a version for amd64, as a release does.
func build(t testing.TB, version string) string {
	t.Helper()
	dir := t.TempDir()
	args := append([]string{version, "linux", "amd64", dir}, programs...)
	if out, err := exec.Command("../../scripts/programs.sh", args...).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", version, err, out)
	}
	return dir
}

// BenchmarkPackagesAreInstalledUpgradedAndPurged follows the page with packages, upgrades both hosts while a job
// runs, and removes the packages. make package-test runs it.
func BenchmarkPackagesAreInstalledUpgradedAndPurged(t *testing.B) {
	first, second := pack(t, "0.1.0", build(t, "0.1.0")), pack(t, "0.1.1", build(t, "0.1.1"))
	s := newSite(t, func(s *site, dir string) {
		s.run("cp", "-r", first, filepath.Join(dir, "packages"))
		s.run("cp", "-r", second, filepath.Join(dir, "upgrade"))
	})
	s.follow(blocks(t, packages))
	services := map[string][]string{"control": {"berthd", "berth-temporal"}, "machine": {"berth-agent"}}
	s.hold("0.1.0", services)

	// The job ends when a file appears in its container: it runs for as long as the upgrade takes.
	id := strings.TrimSpace(s.shell("control",
		`berth run --detach --image debian:12 --cpus 1 --memory 256MiB -o name 2>/dev/null -- sh -c 'while [ ! -e /tmp/stop ]; do :; done'`))
	s.await("start of the job", "docker", "exec", s.container("machine"), "sh", "-c", `test -n "$(docker ps --quiet)"`)
	container := s.shell("machine", `docker ps --quiet --no-trunc`)
	s.shell("control", `apt-get install --yes /srv/handover/upgrade/{berthd,berth,berth-temporal}_*_amd64.deb`)
	s.shell("machine", `apt-get install --yes /srv/handover/upgrade/berth-agent_*_amd64.deb`)
	s.hold("0.1.1", services)
	s.shell("control", `curl --fail --silent --show-error --retry 60 --retry-delay 1 --retry-all-errors \
		https://berth.internal:7070/readyz`)
	if now := s.shell("machine", `docker ps --quiet --no-trunc`); now != container {
		t.Errorf("the container of the job was %s before the upgrade and is %s", container, now)
	}
	s.shell("machine", `docker exec "$(docker ps --quiet)" sh -c ': > /tmp/stop'`)
	if out := s.shell("control", "berth wait "+id+" && berth show "+id); !strings.Contains(out, "succeeded") {
		t.Errorf("the job that ran during the upgrade:\n%s", out)
	}
	s.removed()
}

// hold fails unless the services of each host run a version.
func (s *site) hold(version string, services map[string][]string) {
	s.t.Helper()
	for host, list := range services {
		for _, service := range list {
			s.holds(host, version, service)
		}
	}
}

// holds fails unless a service of a host runs a version.
func (s *site) holds(host, version, service string) {
	s.t.Helper()
	s.await(service+" "+version, "docker", "exec", s.container(host), "systemctl", "is-active", "--quiet", service)
	pid := strings.TrimSpace(s.shell(host, "systemctl show --property MainPID --value "+service))
	if out := s.shell(host, "/proc/"+pid+"/exe --version"); !strings.Contains(out, version) {
		s.t.Errorf("%s of %s runs %s; want version %s", service, host, out, version)
	}
}

// removed removes and purges the packages: state stays until the purge, and the operator's files longer.
func (s *site) removed() {
	began := time.Now()
	s.shell("control", "systemctl disable --now berthd-2")                 // the page's own unit, not the package's
	s.shell("control", "apt-get remove --yes berth && ! command -v berth") // nothing of it stays to purge
	for host, c := range map[string]struct{ packages, state, setting, own string }{
		"control": {"berthd berth-temporal", "/var/lib/berth/blobs", "/etc/berth/berthd.env", "/etc/berth/secret-keys"},
		"machine": {"berth-agent", "/var/lib/berth-agent/key.pem", "/etc/berth/agent.env",
			"/usr/local/share/ca-certificates/berth.crt"},
	} {
		s.shell(host, "apt-get remove --yes "+c.packages+" && ! systemctl is-active "+strings.Fields(c.packages)[0])
		s.shell(host, "test -e "+c.state+" && test -e "+c.setting+" && test -e "+c.own)
		s.shell(host, "apt-get purge --yes "+c.packages)
		s.shell(host, "test ! -e "+filepath.Dir(c.state)+" && test ! -e "+c.setting+" && test -e "+c.own)
	}
	s.t.Logf("removed and purged: %s", time.Since(began).Round(time.Second))
}
