package cloudinit_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/cloudinit"
	"berth/wire"
)

// program is the file that machines of the tests download.
const program = "#!/bin/sh\nexit 0\n"

func machine() cloudinit.Machine {
	return cloudinit.Machine{
		Name: "burst-17", Pool: "burst", Region: "eu-test-1",
		Bootstrap: cloud.Bootstrap{
			URL: "https://berth.example:7070", JoinToken: "berth_0123_SECRET",
			CA: "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
		},
		Agent: cloudinit.Agent{
			URL: "https://berth.example:7070/agents/amd64?v=1&x=$(id)", SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(program))),
			Env: map[string]string{"BERTH_LABELS": `tier=burst,note="$HOME"`},
		},
	}
}

// parsed is the user data as cloud-init reads it.
type parsed struct {
	CACerts struct {
		Trusted []string `yaml:"trusted"`
	} `yaml:"ca_certs"`
	Files []struct {
		Path        string `yaml:"path"`
		Owner       string `yaml:"owner"`
		Permissions string `yaml:"permissions"`
		Content     string `yaml:"content"`
	} `yaml:"write_files"`
	Run [][]string `yaml:"runcmd"`
}

// render renders and parses the user data, and writes its files below a folder.
func render(t *testing.T, m cloudinit.Machine) (d parsed, root string) {
	t.Helper()
	text, err := cloudinit.Render(m)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(text, []byte("#cloud-config\n")) {
		t.Fatalf("the user data begins with %.30q", text)
	}
	if err := yaml.UnmarshalWithOptions(text, &d, yaml.Strict()); err != nil {
		t.Fatalf("no YAML: %v", err)
	}
	root = t.TempDir()
	for _, f := range d.Files {
		path := filepath.Join(root, f.Path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(f.Content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return d, root
}

func TestUserDataIsOneDocumentForOneMachine(t *testing.T) {
	t.Parallel()
	first, err := cloudinit.Render(machine())
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // maps have no order
		if again, _ := cloudinit.Render(machine()); !bytes.Equal(first, again) {
			t.Fatal("the same machine has other user data: clouds refuse the repeated request")
		}
	}
	d, _ := render(t, machine())
	if len(d.CACerts.Trusted) != 1 || d.CACerts.Trusted[0] != machine().Bootstrap.CA {
		t.Errorf("trusted authorities: %q", d.CACerts.Trusted)
	}
	for _, f := range d.Files {
		if strings.Contains(f.Content, "SECRET") && (f.Permissions != "0600" || f.Owner != "root:root") {
			t.Errorf("%s has the join token, and mode %s of %s", f.Path, f.Permissions, f.Owner)
		}
	}
	without := machine()
	without.Bootstrap.CA = ""
	if text, err := cloudinit.Render(without); err != nil || bytes.Contains(text, []byte("ca_certs")) {
		t.Errorf("without an authority: %v\n%s", err, text)
	}
}

// The shell and systemd read the same settings, with no text expanded.
func TestSettingsAreReadAsTheyAre(t *testing.T) {
	t.Parallel()
	_, root := render(t, machine())
	out, err := exec.Command("/bin/sh", "-c", `for f in agent join install; do . "$0/etc/berth/$f.env"; done
		printf '%s\n' "$BERTH_SERVER" "$BERTH_MACHINE" "$BERTH_POOL" "$BERTH_REGION" "$BERTH_SITE" "$BERTH_LABELS" "$BERTH_JOIN_TOKEN" "$AGENT_URL" "$BERTH_SHUTDOWN_AFTER"`,
		root).CombinedOutput()
	want := "https://berth.example:7070\nburst-17\nburst\neu-test-1\ncloud\ntier=burst,note=\"$HOME\"\nberth_0123_SECRET\n" +
		"https://berth.example:7070/agents/amd64?v=1&x=$(id)\n15m0s\n"
	if err != nil || string(out) != want {
		t.Errorf("the settings are\n%s\nwant\n%s%v", out, want, err)
	}
}

// The agent reads an identity only if its launch demands one, and only the launch decides.
func TestTheDemandOfAnIdentityReachesTheAgent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		demand *cloud.Identity
		want   string
	}{
		{nil, "/\n"}, {&cloud.Identity{Source: wire.IdentityEC2}, "ec2/\n"},
		{&cloud.Identity{Source: wire.IdentityGCE, Audience: "berth/0a1b"}, "gce/berth/0a1b\n"},
	} {
		m := machine()
		m.Bootstrap.Identity = c.demand
		_, root := render(t, m)
		out, err := exec.Command("/bin/sh", "-c", `. "$0/etc/berth/agent.env"; echo "$BERTH_IDENTITY/$BERTH_IDENTITY_AUDIENCE"`,
			root).CombinedOutput()
		if err != nil || string(out) != c.want {
			t.Errorf("%+v: %q, want %q, %v", c.demand, out, c.want, err)
		}
	}
	m := machine()
	m.Agent.Env = map[string]string{"BERTH_IDENTITY": "off"}
	if _, err := cloudinit.Render(m); err == nil || !strings.Contains(err.Error(), "agent.env.BERTH_IDENTITY: Berth sets this variable itself") {
		t.Errorf("settings of the pool: %v", err)
	}
}

// The agent's unit of cloud machines is the unit of all machines.
func TestUnitIsThatOfAllMachines(t *testing.T) {
	t.Parallel()
	_, root := render(t, machine())
	whole, err := os.ReadFile("../../../../deploy/systemd/berth-agent.service")
	if err != nil {
		t.Fatal(err)
	}
	want := regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(string(whole), "")
	got, err := os.ReadFile(filepath.Join(root, "etc/systemd/system/berth-agent.service"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("the unit differs from deploy/systemd/berth-agent.service without comments: copy it again\n%s", got)
	}
}

func TestMachineThatHasNotJoinedShutsDown(t *testing.T) {
	t.Parallel()
	m := machine()
	m.JoinWithin = 10 * time.Minute
	_, root := render(t, m)
	for path, wants := range map[string][]string{
		"berth-join-limit.timer":   {"OnBootSec=600s"},
		"berth-join-limit.service": {"ConditionPathExists=!/var/lib/berth-agent/credential.json\n", "poweroff"},
	} {
		text, err := os.ReadFile(filepath.Join(root, "etc/systemd/system", path))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s lacks %q:\n%s", path, want, text)
			}
		}
	}
}

// install runs the script of a machine with stand-ins for systemctl, uname and curl, and returns its log.
func install(t *testing.T, m cloudinit.Machine, download string) (log, installed string, err error) {
	t.Helper()
	return installAfter(t, 0, m, download)
}

// installAfter is install with a number of downloads that fail first. The stand-in for sleep does not wait.
func installAfter(t *testing.T, failures int, m cloudinit.Machine, download string) (
	log, installed string, err error) {
	t.Helper()
	d, root := render(t, m)
	if len(d.Run) != 1 || len(d.Run[0]) != 1 {
		t.Fatalf("runcmd is %q", d.Run)
	}
	text, err := os.ReadFile(filepath.Join(root, d.Run[0][0]))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, "usr/local/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "download"), []byte(download), 0o600); err != nil {
		t.Fatal(err)
	}
	// Functions take the place of the programs, so that no file is run that was just written.
	stub := fmt.Sprintf("failures=%d", failures) + `
		sleep() { :; }
		uname() { echo x86_64; }
		systemctl() { echo "systemctl $*" >>"` + root + `/log"; }
		curl() { while [ $# -gt 1 ]; do [ "$1" = --output ] && to=$2; shift; done; echo "curl $1" >>"` + root + `/log"
			[ "$failures" -eq 0 ] || { failures=$((failures - 1)); return 22; }
			cp "` + root + `/download" "$to"; }
	`
	changed := strings.NewReplacer("/etc/berth/", root+"/etc/berth/", "/usr/local/bin/", root+"/usr/local/bin/").Replace(string(text))
	out, err := exec.Command("/bin/sh", "-c", stub+changed).CombinedOutput()
	log, installed = read(filepath.Join(root, "log")), read(filepath.Join(root, "usr/local/bin/berth-agent"))
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return log, installed, err
}

func read(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}

func TestInstallationStartsTheLimitFirst(t *testing.T) {
	t.Parallel()
	log, installed, err := install(t, machine(), program)
	want := "systemctl daemon-reload\nsystemctl start berth-join-limit.timer\n" +
		"curl https://berth.example:7070/agents/amd64?v=1&x=$(id)\nsystemctl enable --now berth-agent.service\n"
	if err != nil || log != want || installed != program {
		t.Errorf("error %v, log\n%s\nwant\n%s\ninstalled %q", err, log, want, installed)
	}
}

// The machines behind one address download in turns, which takes longer than the retries of curl.
func TestMachineRepeatsARefusedDownload(t *testing.T) {
	t.Parallel()
	log, installed, err := installAfter(t, 100, machine(), program)
	if err != nil || installed != program || strings.Count(log, "curl ") != 101 {
		t.Errorf("error %v, %d downloads, installed %q", err, strings.Count(log, "curl "), installed)
	}
}

// served returns a machine that downloads its agent from berthd.
func served(agents map[string]string) cloudinit.Machine {
	m := machine()
	m.Agent.URL, m.Agent.SHA256, m.Bootstrap.Agents = "", "", agents
	return m
}

func TestAgentOfTheClusterIsInstalledByItsHash(t *testing.T) {
	t.Parallel()
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(program)))
	m := served(map[string]string{"linux-amd64": sum, "linux-arm64": strings.Repeat("a", 64)})
	log, installed, err := install(t, m, program)
	want := "curl https://berth.example:7070" + cloud.AgentPath("linux-amd64", sum) + "\n"
	if err != nil || !strings.Contains(log, want) || installed != program {
		t.Errorf("error %v, log\n%s\nlacks\n%s\ninstalled %q", err, log, want, installed)
	}
	if log, installed, err := install(t, m, program+"# changed\n"); err == nil || installed != "" || strings.Contains(log, "enable") {
		t.Errorf("another program is installed: %v, %s", err, log)
	}
	log, installed, err = install(t, served(map[string]string{"linux-arm64": sum}), program)
	if err == nil || installed != "" || strings.Contains(log, "curl") || !strings.Contains(err.Error(), "no agent for linux-amd64") {
		t.Errorf("a machine without an agent for its platform: %v, %s", err, log)
	}
}

func TestLaunchWithoutAnAgentIsRefused(t *testing.T) {
	t.Parallel()
	for want, edit := range map[string]func(*cloudinit.Machine){
		"start berthd with --agent-binaries":     func(m *cloudinit.Machine) { m.Bootstrap.Agents = nil },
		"bootstrap.agents.linux-arm64 \"x'\"":    func(m *cloudinit.Machine) { m.Bootstrap.Agents["linux-arm64"] = "x'" },
		"bootstrap.url \"http://berth.example\"": func(m *cloudinit.Machine) { m.Bootstrap.URL = "http://berth.example" },
		"agent.sha256 \"\"":                      func(m *cloudinit.Machine) { m.Agent.URL = "https://berth.example/agent" },
	} {
		m := served(map[string]string{"linux-amd64": strings.Repeat("a", 64)})
		edit(&m)
		if _, err := cloudinit.Render(m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %q", err, want)
		}
	}
}

func TestProgramWithAnotherHashIsNotStarted(t *testing.T) {
	t.Parallel()
	log, installed, err := install(t, machine(), program+"# changed\n")
	if err == nil || installed != "" || strings.Contains(log, "enable") || !strings.Contains(log, "berth-join-limit.timer") {
		t.Errorf("error %v, log\n%s\ninstalled %q", err, log, installed)
	}
}

func TestBadDataIsRefusedWithEveryFault(t *testing.T) {
	t.Parallel()
	_, err := cloudinit.Render(cloudinit.Machine{
		Name: "a\nb", Region: "r'", Bootstrap: cloud.Bootstrap{URL: "https://x", JoinToken: "to'ken-SECRET"}, JoinWithin: time.Second,
		Agent: cloudinit.Agent{URL: "http://x", SHA256: "ABC", Env: map[string]string{
			"BERTH_SERVER": "x", "PATH": "x", "BERTH_LABELS": "a=b\nc",
		}},
	})
	for _, want := range []string{
		"machine: it is empty or", "pool: it is empty or", "bootstrap.join_token: it is empty or", `region "r'"`,
		"join within 1s: allowed are 1m to 1h", `agent.url "http://x": it must be an https URL`, `agent.sha256 "ABC"`,
		"agent.env.BERTH_SERVER: Berth sets", "agent.env.PATH: only variables", "agent.env.BERTH_LABELS: allowed",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %q", err, want)
		}
	}
	if err != nil && strings.Contains(err.Error(), "SECRET") {
		t.Errorf("the error shows the join token: %v", err)
	}
}
