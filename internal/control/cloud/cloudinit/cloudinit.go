// Package cloudinit renders the user data with which a new machine of a cloud installs the agent and
// joins the cluster.
//
// The document is JSON, which is also valid YAML, so no value can change the structure of the
// document. It depends only on the Machine, since clouds refuse a repeated request with other user data.
//
// The one rule to know: user data is a secret until the join token has been used. Only root of the machine
// may read it, and the metadata service must be out of reach of containers.
package cloudinit

import (
	_ "embed" // the files below
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/internal/control/cloud"
)

// Agent is the program that the machine downloads. Without URL and SHA256 it is the one that berthd serves, with
// the hashes of Bootstrap.Agents.
type Agent struct {
	URL    string `json:"url,omitempty"`    // https
	SHA256 string `json:"sha256,omitempty"` // hex
	// Env are settings of the agent, for example BERTH_LABELS. Its server, its name and its join token
	// are set by Berth.
	Env map[string]string `json:"env,omitempty"`
}

// Machine is the content of the user data.
type Machine struct {
	Name      berth.MachineID
	Pool      string
	Region    string
	Bootstrap cloud.Bootstrap
	Agent     Agent
	// Notices is the source of the cloud's notices, as berth-agent --notices takes it. "": none.
	Notices string
	// JoinWithin is the time from the start of the machine in which it must join; after it, the machine
	// shuts itself down. 0 is DefaultJoinWithin. A machine that has joined shuts itself down after the same time
	// with neither a lease nor containers.
	JoinWithin time.Duration
}

// DefaultJoinWithin is the time in which a machine must join.
const DefaultJoinWithin = 15 * time.Minute

// agentUnit is deploy/systemd/berth-agent.service without its comments.
//
//go:embed berth-agent.service
var agentUnit string

//go:embed install.sh
var installScript string

// document is the part of a cloud-config that Berth uses.
type document struct {
	CACerts *caCerts   `json:"ca_certs,omitempty"`
	Files   []file     `json:"write_files"`
	Run     [][]string `json:"runcmd"`
}

type caCerts struct {
	Trusted []string `json:"trusted"`
}

type file struct {
	Path        string `json:"path"`
	Owner       string `json:"owner"`
	Permissions string `json:"permissions"`
	Content     string `json:"content"`
}

// Render returns the user data, or every fault of the machine's data.
func Render(m Machine) ([]byte, error) {
	if m.JoinWithin == 0 {
		m.JoinWithin = DefaultJoinWithin
	}
	if err := m.validate(); err != nil {
		return nil, err
	}
	const units = "/etc/systemd/system/"
	d := document{
		Files: []file{
			secret("/etc/berth/agent.env", m.settings()),
			secret("/etc/berth/join.env", environment(map[string]string{"BERTH_JOIN_TOKEN": m.Bootstrap.JoinToken})),
			secret("/etc/berth/install.env", environment(m.download())),
			public(units+"berth-agent.service", agentUnit),
			public(units+"berth-agent.service.d/join.conf", "[Service]\nEnvironmentFile=-/etc/berth/join.env\n"),
			public(units+"berth-join-limit.timer", fmt.Sprintf("[Unit]\nDescription=Time limit for the join of a "+
				"Berth machine\n\n[Timer]\nOnBootSec=%ds\nAccuracySec=1s\n", int(m.JoinWithin.Seconds()))),
			public(units+"berth-join-limit.service", "[Unit]\nDescription=Shutdown of a machine that has not joined "+
				"its Berth cluster\nConditionPathExists=!/var/lib/berth-agent/credential.json\n\n"+
				"[Service]\nType=oneshot\nExecStart=systemctl --no-block poweroff\n"),
			{Path: "/usr/local/sbin/berth-install", Owner: root, Permissions: "0700", Content: installScript},
		},
		Run: [][]string{{"/usr/local/sbin/berth-install"}},
	}
	if m.Bootstrap.CA != "" {
		d.CACerts = &caCerts{Trusted: []string{m.Bootstrap.CA}}
	}
	text, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		return nil, fmt.Errorf("encode the user data: %w", err)
	}
	return slices.Concat([]byte("#cloud-config\n"), text, []byte("\n")), nil
}

// download returns the variables of the installation: the URL and the hash of the pool, or the place below which
// berthd serves agents and their hashes.
func (m Machine) download() map[string]string {
	if m.Agent.URL != "" {
		return map[string]string{"AGENT_URL": m.Agent.URL, "AGENT_SHA256": m.Agent.SHA256}
	}
	base := strings.TrimSuffix(cloud.AgentPath("", ""), "//") // the script appends platform and hash
	return map[string]string{
		"AGENT_URL": "", "AGENT_BASE": strings.TrimSuffix(m.Bootstrap.URL, "/") + base,
		"AGENT_SHA256_AMD64": m.Bootstrap.Agents["linux-amd64"],
		"AGENT_SHA256_ARM64": m.Bootstrap.Agents["linux-arm64"],
	}
}

// root owns all files.
const root = "root:root"

func secret(path, content string) file { return file{path, root, "0600", content} }

func public(path, content string) file { return file{path, root, "0644", content} }

// settings returns the variables of the agent. The machine runs no fencing watchdog, so it gets
// no at_most_one work.
func (m Machine) settings() string {
	vars := maps.Clone(m.Agent.Env)
	if vars == nil {
		vars = map[string]string{}
	}
	maps.Copy(vars, map[string]string{
		"BERTH_SERVER": m.Bootstrap.URL, "BERTH_MACHINE": string(m.Name), "BERTH_POOL": m.Pool,
		"BERTH_REGION": m.Region, "BERTH_SITE": "cloud", "BERTH_DEADMAN": "off",
		"BERTH_SHUTDOWN_AFTER": m.JoinWithin.String(),
	})
	if m.Notices != "" {
		vars["BERTH_NOTICES"] = m.Notices
	}
	if id := m.Bootstrap.Identity; id != nil {
		vars["BERTH_IDENTITY"] = string(id.Source)
		if id.Audience != "" {
			vars["BERTH_IDENTITY_AUDIENCE"] = id.Audience
		}
	}
	return environment(vars)
}

// environment returns variables as a file that systemd and the shell read alike. The values have
// been validated: inside of single quotes both take each of their characters as it is.
func environment(vars map[string]string) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		fmt.Fprintf(&text, "%s='%s'\n", name, vars[name])
	}
	return text.String()
}

var (
	hash     = regexp.MustCompile(`^[0-9a-f]{64}$`)
	variable = regexp.MustCompile(`^BERTH_[A-Z_]+$`)
	// plain are the characters of a value: printable ASCII without the quote and the backslash.
	plain = regexp.MustCompile(`^[ -&(-\[\]-~]*$`)
)

// ours are the variables that Berth sets.
var ours = []string{
	"BERTH_SERVER", "BERTH_JOIN_TOKEN", "BERTH_MACHINE", "BERTH_POOL", "BERTH_REGION", "BERTH_SITE", "BERTH_DEADMAN",
	"BERTH_NOTICES", "BERTH_SHUTDOWN_AFTER", "BERTH_IDENTITY", "BERTH_IDENTITY_AUDIENCE",
}

// validate reports every fault.
func (m Machine) validate() error {
	faults := []error{m.Agent.Validate()}
	for name, value := range map[string]string{
		"machine": string(m.Name), "pool": m.Pool,
		"bootstrap.url": m.Bootstrap.URL, "bootstrap.join_token": m.Bootstrap.JoinToken,
	} {
		if value == "" || !plain.MatchString(value) {
			// Without the value: one of them is a secret.
			faults = append(faults, fmt.Errorf(
				"%s: it is empty or has characters other than printable ASCII without ' and \\", name))
		}
	}
	if !plain.MatchString(m.Region) {
		faults = append(faults, fmt.Errorf("region %q: allowed is printable ASCII without ' and \\", m.Region))
	}
	if !plain.MatchString(m.Notices) {
		faults = append(faults, fmt.Errorf("notices %q: allowed is printable ASCII without ' and \\", m.Notices))
	}
	if id := m.Bootstrap.Identity; id != nil && (!plain.MatchString(string(id.Source)) ||
		!plain.MatchString(id.Audience)) {
		faults = append(faults, fmt.Errorf("bootstrap.identity %q, %q: allowed is printable ASCII without ' and \\",
			id.Source, id.Audience))
	}
	if m.Agent.URL == "" {
		faults = append(faults, servedAgents(m.Bootstrap))
	}
	if m.JoinWithin < time.Minute || m.JoinWithin > time.Hour {
		faults = append(faults, fmt.Errorf("join within %s: allowed are 1m to 1h", m.JoinWithin))
	}
	return errors.Join(faults...)
}

// servedAgents returns an error if the machine cannot download an agent from berthd.
func servedAgents(b cloud.Bootstrap) error {
	if len(b.Agents) == 0 {
		return errors.New("agent.url: is missing, and the launch has no hash of an agent of berthd: set agent.url " +
			"and agent.sha256, or start berthd with --agent-binaries and launch again")
	}
	var faults []error
	if u, err := url.Parse(b.URL); err != nil || u.Scheme != "https" || u.Host == "" {
		faults = append(faults, fmt.Errorf("bootstrap.url %q: it must be an https URL, from which the machine "+
			"downloads the agent", b.URL))
	}
	for _, platform := range slices.Sorted(maps.Keys(b.Agents)) {
		if sum := b.Agents[platform]; !hash.MatchString(sum) {
			faults = append(faults, fmt.Errorf("bootstrap.agents.%s %q: it must be 64 hex digits in lower case",
				platform, sum))
		}
	}
	return errors.Join(faults...)
}

// Validate reports every fault of the agent's settings.
func (a Agent) Validate() error {
	var faults []error
	if a.URL == "" && a.SHA256 == "" {
		return a.validateEnv()
	}
	if u, err := url.Parse(a.URL); err != nil || u.Scheme != "https" || u.Host == "" || !plain.MatchString(a.URL) {
		faults = append(faults, fmt.Errorf("agent.url %q: it must be an https URL", a.URL))
	}
	if !hash.MatchString(a.SHA256) {
		faults = append(faults, fmt.Errorf("agent.sha256 %q: it must be 64 hex digits in lower case", a.SHA256))
	}
	return errors.Join(append(faults, a.validateEnv())...)
}

// validateEnv reports every fault of the variables.
func (a Agent) validateEnv() error {
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(a.Env)) {
		switch {
		case slices.Contains(ours, name):
			faults = append(faults, fmt.Errorf("agent.env.%s: Berth sets this variable itself", name))
		case !variable.MatchString(name):
			faults = append(faults, fmt.Errorf(
				"agent.env.%s: only variables of berth-agent are allowed, such as BERTH_LABELS", name))
		case !plain.MatchString(a.Env[name]):
			faults = append(faults, fmt.Errorf("agent.env.%s: allowed is printable ASCII without ' and \\", name))
		}
	}
	return errors.Join(faults...)
}
