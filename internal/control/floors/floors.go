package floors

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	"berth/wire"
)

// none is the floor of a component without a floor.
const none = "none"

// Floors are the demands on machines that take jobs of untrusted tenants. The zero value demands the versions of the
// table of known holes, and seccomp.
type Floors struct {
	own     map[string]string // by component: the oldest version, or none, in place of the table
	confine []string          // wire.SettingLSM, wire.SettingUserNS, sorted
}

// Parse reads the floors of an operator: COMPONENT=VERSION replaces the table for one component, COMPONENT=none lifts
// its floor, and lsm and userns demand that setting of the engine.
func Parse(list []string) (Floors, error) {
	f := Floors{own: map[string]string{}}
	for _, text := range list {
		name, version, given := strings.Cut(strings.TrimSpace(text), "=")
		switch {
		case !given && (name == wire.SettingLSM || name == wire.SettingUserNS):
			f.confine = append(f.confine, name)
			continue
		case !given || name == "" || version == "":
			return Floors{}, fmt.Errorf("%.80q: allowed are COMPONENT=VERSION, COMPONENT=none, %s, %s",
				text, wire.SettingLSM, wire.SettingUserNS)
		}
		if version != none {
			if _, err := parse(version); err != nil {
				return Floors{}, fmt.Errorf("floor of %s: %w, or %s", name, err, none)
			}
		}
		if _, twice := f.own[name]; twice {
			return Floors{}, fmt.Errorf("the floor of %s is given twice: allowed is one", name)
		}
		f.own[name] = version
	}
	slices.Sort(f.confine)
	f.confine = slices.Compact(f.confine)
	return f, nil
}

// Fingerprint identifies the demands: verdicts of other demands are renewed.
func (f Floors) Fingerprint() string {
	h := sha256.New()
	for _, x := range holes {
		fmt.Fprintln(h, x.component, x.advisory, x.branches)
	}
	for _, name := range slices.Sorted(maps.Keys(f.own)) {
		fmt.Fprintln(h, name, f.own[name])
	}
	fmt.Fprintln(h, f.confine)
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Judge returns the reasons for which a machine with these facts does not meet the floors, ordered by condition and
// component. None: it meets them.
func (f Floors) Judge(facts wire.HostFacts) []wire.HostFinding {
	var list []wire.HostFinding
	for _, name := range required(facts) {
		if _, ok := facts.Version(name); !ok && f.own[name] != none {
			list = append(list, wire.HostFinding{Condition: wire.HostUnknown, Component: name})
		}
	}
	for _, c := range facts.Components {
		if found, ok := f.judge(c, facts.Runtime); ok {
			list = append(list, found)
		}
	}
	list = append(list, f.confinement(facts)...)
	slices.SortStableFunc(list, func(a, b wire.HostFinding) int {
		if a.Condition != b.Condition {
			return strings.Compare(a.Condition, b.Condition)
		}
		return strings.Compare(a.Component, b.Component)
	})
	return list
}

// required lists the components without which a report cannot be judged. The runtime nvidia is a shell around runc.
func required(facts wire.HostFacts) []string {
	list := []string{wire.ComponentEngine, wire.ComponentContainerd}
	switch facts.Runtime {
	case wire.ComponentRunc, "":
		return append(list, wire.ComponentRunc)
	case "nvidia":
		return append(list, wire.ComponentRunc, wire.ComponentToolkit)
	}
	return append(list, facts.Runtime)
}

// judge compares one component with its floor.
func (f Floors) judge(c wire.HostComponent, runtime string) (found wire.HostFinding, ok bool) {
	own := f.own[c.Name]
	known := slices.ContainsFunc(holes, func(h hole) bool { return h.component == c.Name })
	if own == none || own == "" && !known && c.Name != runtime {
		return found, false // such as the kernel
	}
	found = wire.HostFinding{Condition: wire.HostUnknown, Component: c.Name, Version: c.Version}
	v, err := parse(c.Version)
	if err != nil || own == "" && !known {
		return found, true
	}
	found.Condition = wire.BelowFloor
	if own != "" {
		least, err := parse(own)
		found.Floor = own
		return found, err != nil || v.LessThan(least)
	}
	var floor *semver.Version
	found.Advisories, floor = holesOf(c.Name, v)
	for next := floor; next != nil; _, next = holesOf(c.Name, next) {
		found.Floor = next.String() // may have holes of its own
	}
	return found, floor != nil
}

// holesOf returns the advisories about a version of a component, and the newest of the versions that fix them; nil:
// there are none.
func holesOf(component string, v *semver.Version) (advisories []string, floor *semver.Version) {
	for _, h := range holes {
		at := slices.IndexFunc(h.branches, func(b branch) bool { return h.component == component && b.within(v) })
		if at < 0 {
			continue
		}
		advisories = append(advisories, h.advisory)
		if fixed := semver.MustParse(h.branches[at].fixed); floor == nil || fixed.GreaterThan(floor) {
			floor = fixed
		}
	}
	return advisories, floor
}

// confinement compares the settings of the engine with the demands.
func (f Floors) confinement(facts wire.HostFacts) (list []wire.HostFinding) {
	add := func(component, version string) {
		list = append(list, wire.HostFinding{Condition: wire.Unconfined, Component: component, Version: version})
	}
	if facts.Seccomp == "" || facts.Seccomp == "unconfined" {
		add(wire.SettingSeccomp, facts.Seccomp)
	}
	if facts.LSM == "" && slices.Contains(f.confine, wire.SettingLSM) {
		add(wire.SettingLSM, "")
	}
	if !facts.UserNS && !facts.Rootless && slices.Contains(f.confine, wire.SettingUserNS) {
		add(wire.SettingUserNS, "")
	}
	return list
}
