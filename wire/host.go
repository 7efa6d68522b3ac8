package wire

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"berth"
)

// Names of components in HostFacts. A container runtime other than runc has its own name.
const (
	ComponentEngine     = "engine" // the Docker Engine
	ComponentContainerd = "containerd"
	ComponentRunc       = "runc"
	ComponentToolkit    = "nvidia-container-toolkit"
	ComponentKernel     = "kernel"
)

// HostFacts is the software of a machine that separates containers from the host and from each other, as the container
// engine and the machine report it. The agent only reports; the control plane judges.
type HostFacts struct {
	// Runtime is the default runtime of the engine, such as runc or nvidia.
	Runtime    string          `json:"runtime,omitempty"`
	Components []HostComponent `json:"components,omitempty"`
	// Seccomp is the default profile for system calls: default, builtin, unconfined or a path; empty: none is applied.
	Seccomp string `json:"seccomp,omitempty"`
	// LSM is the kernel's security module that confines containers: apparmor, selinux or both; empty: none.
	LSM      string `json:"lsm,omitempty"`
	UserNS   bool   `json:"userns,omitempty" doc:"users of containers are mapped to others on the host"`
	Rootless bool   `json:"rootless,omitempty"`
	Cgroup   string `json:"cgroup,omitempty" doc:"version of the kernel's control groups: 1 or 2"`
}

// HostComponent is one program with its version. An empty version: the program is in use, and its version could not
// be read.
type HostComponent struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
}

// Version returns the reported version of a component. ok is false if the component was not reported.
func (f HostFacts) Version(name string) (version string, ok bool) {
	at := slices.IndexFunc(f.Components, func(c HostComponent) bool { return c.Name == name })
	if at < 0 {
		return "", false
	}
	return f.Components[at].Version, true
}

// Incomplete reports whether the version of a component could not be read.
func (f HostFacts) Incomplete() bool {
	return slices.ContainsFunc(f.Components, func(c HostComponent) bool { return c.Version == "" })
}

// Settings of the container engine that findings and waivers name like components.
const (
	SettingSeccomp = "seccomp"
	SettingLSM     = "lsm"    // AppArmor or SELinux
	SettingUserNS  = "userns" // users of containers are mapped to others on the host
)

// Reported returns the version of a component, or the value of a setting. ok is false for a name that was not reported.
func (f HostFacts) Reported(name string) (value string, ok bool) {
	switch name {
	case SettingSeccomp:
		return f.Seccomp, true
	case SettingLSM:
		return f.LSM, true
	case SettingUserNS:
		return "", !f.UserNS
	}
	return f.Version(name)
}

// HostReport is the body of an agent's call that reports the facts of its machine. A server of a version without the
// call answers that it does not exist.
type HostReport struct {
	AgentBoot string    `json:"agent_boot"`
	Epoch     int64     `json:"epoch"`
	Facts     HostFacts `json:"facts"`
}

// Limits on a report.
const (
	maxHostComponents = 32
	maxHostText       = 128
)

// Valid returns an error for a report that is longer than any machine's.
func (f HostFacts) Valid() error {
	if len(f.Components) > maxHostComponents {
		return berth.Errorf(berth.CodeInvalid, "host: %d components; allowed are at most %d", len(f.Components),
			maxHostComponents)
	}
	texts := []string{f.Runtime, f.Seccomp, f.LSM, f.Cgroup}
	for _, c := range f.Components {
		if c.Name == "" {
			return berth.Errorf(berth.CodeInvalid, "host: a component has no name")
		}
		texts = append(texts, c.Name, c.Version)
	}
	for _, t := range texts {
		if len(t) > maxHostText || strings.ContainsFunc(t, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return berth.Errorf(berth.CodeInvalid, "host: %.40q is too long or has control characters; allowed are %d "+
				"bytes", t, maxHostText)
		}
	}
	return nil
}

// Conditions of a machine that does not meet the security floors. Machines show the first two as labels, too.
const (
	BelowFloor  = "below_floor" // a component has a known hole
	Unconfined  = "unconfined"  // the engine does not confine containers as demanded
	HostUnknown = "unknown"     // nothing is reported, or it cannot be judged
)

// HostFinding is one reason for which a machine does not meet the security floors.
type HostFinding struct {
	Condition string `json:"condition" doc:"below_floor, unconfined or unknown"`
	Component string `json:"component,omitempty" doc:"component or setting, such as runc or seccomp"`
	Version   string `json:"version,omitempty" doc:"the reported version or setting"`
	Floor     string `json:"floor,omitempty" doc:"the oldest version that meets the floor, for below_floor"`
	// Advisories are the holes that Floor fixes; empty: an operator demands the floor.
	Advisories []string `json:"advisories,omitempty"`
}

// mostAdvisories bounds the advisories that a text names.
const mostAdvisories = 3

// String describes the finding for people.
func (f HostFinding) String() string {
	switch {
	case f.Condition == BelowFloor && len(f.Advisories) == 0:
		return fmt.Sprintf("%s %s is older than %s, which an operator demands", f.Component, f.Version, f.Floor)
	case f.Condition == BelowFloor:
		return fmt.Sprintf("%s %s is older than %s, which fixes %s", f.Component, f.Version, f.Floor,
			listed(f.Advisories, mostAdvisories))
	case f.Condition == Unconfined && f.Version == "":
		return fmt.Sprintf("the container engine confines containers without %s", f.Component)
	case f.Condition == Unconfined:
		return fmt.Sprintf("the container engine has the %s setting %s", f.Component, f.Version)
	case f.Component == "":
		return "the agent has not reported the versions of the container engine"
	case f.Version == "":
		return fmt.Sprintf("the version of %s is not known", f.Component)
	}
	return fmt.Sprintf("%s %s cannot be compared with a floor", f.Component, f.Version)
}

// listed joins at most n texts, and the number of the others.
func listed(list []string, n int) string {
	if more := len(list) - n; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:n], ", "), more)
	}
	return strings.Join(list, ", ")
}

// HostWaiver is an operator's statement, until a date, that a version is secure although it is older than the floor,
// for example since a distribution has backported the fix. It covers the findings at the time of the statement, and
// ends early when the machine reports another version.
type HostWaiver struct {
	Component string    `json:"component"`
	Version   string    `json:"version,omitempty" doc:"version or setting that was reported when the waiver was set"`
	Until     time.Time `json:"until"`
	Reason    string    `json:"reason"`
	Actor     string    `json:"actor" doc:"such as operator:NAME"`
	At        time.Time `json:"at"`
	// Findings are covered by the waiver. Holes that are found later, and later floors, are not.
	Findings []HostFinding `json:"findings,omitempty" doc:"findings that the waiver covers; later ones are not covered"`
}

// MachineSecurity is the part of a machine's document about the security floors.
type MachineSecurity struct {
	// Conditions are below_floor, unconfined and unknown, as far as they hold. None: the machine meets the floors, and
	// takes jobs of untrusted tenants.
	Conditions []string      `json:"conditions,omitempty" doc:"below_floor, unconfined, unknown; none: floors are met"`
	Findings   []HostFinding `json:"findings,omitempty"`
	Reasons    []string      `json:"reasons,omitempty" doc:"the findings as text"`
	Waivers    []HostWaiver  `json:"waivers,omitempty" doc:"waivers in force"`
	Facts      *HostFacts    `json:"facts,omitempty" doc:"last report of the agent"`
	ReportedAt *time.Time    `json:"reported_at,omitempty"`
}
