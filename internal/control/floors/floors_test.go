package floors_test

import (
	"slices"
	"strings"
	"testing"

	"berth/internal/control/floors"
	"berth/wire"
)

// facts returns a machine that meets the floors, with the given versions, NAME=VERSION.
func facts(versions ...string) wire.HostFacts {
	f := wire.HostFacts{Runtime: "runc", Seccomp: "builtin", LSM: "apparmor", Components: []wire.HostComponent{
		{Name: "engine", Version: "28.5.2"}, {Name: "containerd", Version: "v2.2.5"}, {Name: "runc", Version: "1.3.6"},
		{Name: "kernel", Version: "6.1.0-18-amd64"},
	}}
	for _, v := range versions {
		name, version, _ := strings.Cut(v, "=")
		f.Components = slices.DeleteFunc(f.Components, func(c wire.HostComponent) bool { return c.Name == name })
		if version != "absent" {
			f.Components = append(f.Components, wire.HostComponent{Name: name, Version: version})
		}
	}
	return f
}

// texts renders the verdict of the floors.
func texts(t *testing.T, f wire.HostFacts, own ...string) []string {
	t.Helper()
	x, err := floors.Parse(own)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, finding := range x.Judge(f) {
		list = append(list, finding.Condition+": "+finding.String())
	}
	return list
}

func TestVersionsAreComparedWithTheTable(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ version, want string }{
		{"runc=1.3.6", ""},
		{"runc=1.3.6-0ubuntu1~22.04.1", ""},
		{"runc=1.4.3", ""},
		{"runc=1.3.5", "below_floor: runc 1.3.5 is older than 1.3.6, which fixes CVE-2026-41579"},
		{"runc=1.4.0-rc.1", "below_floor: runc 1.4.0-rc.1 is older than 1.4.3, which fixes CVE-2025-31133, " +
			"CVE-2025-52565, CVE-2025-52881 and 1 more"},
		{"runc=1.4.0-rc.3", "below_floor: runc 1.4.0-rc.3 is older than 1.4.3, which fixes CVE-2026-41579"},
		{"runc=1.5.0-alpha.1", "below_floor: runc 1.5.0-alpha.1 is older than 1.5.0-rc.3, which fixes CVE-2026-41579"},
		{"runc=1.3.6-dev", "below_floor: runc 1.3.6-dev is older than 1.3.6, which fixes CVE-2026-41579"},
		{"runc=1.3.6+dev", ""},
		{"engine=22.06.0-beta.0", "below_floor: engine 22.06.0-beta.0 is older than 23.0.15, which fixes CVE-2024-41110"},
		{"engine=25.0.0-beta.1", "below_floor: engine 25.0.0-beta.1 is older than 25.0.6, which fixes CVE-2024-41110"},
		{"engine=27.0.0-rc.1", "below_floor: engine 27.0.0-rc.1 is older than 27.1.1, which fixes CVE-2024-41110"},
		{"runc=1.5.0~rc2", "below_floor: runc 1.5.0~rc2 is older than 1.5.0-rc.3, which fixes CVE-2026-41579"},
		{"runc=1.1.5+ds1-1+deb12u1", "below_floor: runc 1.1.5+ds1-1+deb12u1 is older than 1.3.6, which fixes " +
			"CVE-2024-21626, CVE-2024-45310, CVE-2025-31133 and 3 more"},
		{"engine=20.10.24+dfsg1", "below_floor: engine 20.10.24+dfsg1 is older than 20.10.28, which fixes CVE-2024-41110"},
		{"engine=19.03.15", "below_floor: engine 19.03.15 is older than 20.10.28, which fixes CVE-2024-41110, CVE-2021-41091"},
		{"engine=24.0.10", ""},
		{"engine=26.1.4-1.el9", "below_floor: engine 26.1.4-1.el9 is older than 26.1.5, which fixes CVE-2024-41110"},
		{"containerd=1.6.20~ds1", "below_floor: containerd 1.6.20~ds1 is older than 1.7.33, which fixes CVE-2024-40635, " +
			"CVE-2024-25621"},
		{"containerd=1.7.29-1", "below_floor: containerd 1.7.29-1 is older than 1.7.33, which fixes CVE-2026-46680, CVE-2026-47262"},
		{"containerd=2.1.0-beta.0", "below_floor: containerd 2.1.0-beta.0 is older than 2.2.5, which fixes CVE-2024-25621, " +
			"CVE-2026-46680, CVE-2026-47262"},
		{"containerd=1.7.33", ""},
		{"containerd=2.1.9", "below_floor: containerd 2.1.9 is older than 2.2.5, which fixes CVE-2026-46680"},
		{"nvidia-container-toolkit=1.17.8", ""},
		{"nvidia-container-toolkit=1.17.7", "below_floor: nvidia-container-toolkit 1.17.7 is older than 1.17.8, which fixes " +
			"CVE-2025-23266, CVE-2025-23267"},
		{"nvidia-container-toolkit=", "unknown: the version of nvidia-container-toolkit is not known"},
		{"runc=absent", "unknown: the version of runc is not known"},
		{"engine=unknown-version", "unknown: engine unknown-version cannot be compared with a floor"},
	} {
		if got := strings.Join(texts(t, facts(x.version)), "; "); got != x.want {
			t.Errorf("%s: got %q, want %q", x.version, got, x.want)
		}
	}
}

func TestAnEmptyReportMeetsNoFloor(t *testing.T) {
	t.Parallel()
	got := floors.Floors{}.Judge(wire.HostFacts{})
	if len(got) != 4 || got[0].Condition != wire.Unconfined || got[3].Condition != wire.HostUnknown {
		t.Errorf("%+v", got)
	}
}

func TestRuntimesWithoutAFloorAreUnknown(t *testing.T) {
	t.Parallel()
	f := facts("runc=absent", "crun=1.14")
	f.Runtime = "crun"
	if got := texts(t, f); !slices.Equal(got, []string{"unknown: crun 1.14 cannot be compared with a floor"}) {
		t.Errorf("without a floor: %q", got)
	}
	if got := texts(t, f, "crun=1.14"); len(got) != 0 {
		t.Errorf("with a floor of the operator: %q", got)
	}
	f = facts()
	f.Runtime = "nvidia"
	if got := texts(t, f); !slices.Equal(got, []string{"unknown: the version of nvidia-container-toolkit is not known"}) {
		t.Errorf("the runtime nvidia without its toolkit: %q", got)
	}
}

func TestSettingsOfTheEngine(t *testing.T) {
	t.Parallel()
	f := facts()
	f.Seccomp, f.LSM = "unconfined", ""
	if got := texts(t, f); !slices.Equal(got, []string{"unconfined: the container engine has the seccomp setting unconfined"}) {
		t.Errorf("without demands: %q", got)
	}
	want := []string{"unconfined: the container engine confines containers without lsm",
		"unconfined: the container engine has the seccomp setting unconfined",
		"unconfined: the container engine confines containers without userns"}
	if got := texts(t, f, "userns", "lsm", "lsm"); !slices.Equal(got, want) {
		t.Errorf("with demands: %q", got)
	}
	f.Rootless, f.LSM, f.Seccomp = true, "selinux", "default"
	if got := texts(t, f, "userns", "lsm"); len(got) != 0 {
		t.Errorf("a rootless engine: %q", got)
	}
}

func TestFloorsOfTheOperatorReplaceTheTable(t *testing.T) {
	t.Parallel()
	if got := texts(t, facts("runc=1.1.5"), "runc=1.1.5"); len(got) != 0 {
		t.Errorf("a lower floor: %q", got)
	}
	want := []string{"below_floor: kernel 5.10.0-28 is older than 6.1, which an operator demands"}
	if got := texts(t, facts("kernel=5.10.0-28"), "kernel=6.1"); !slices.Equal(got, want) {
		t.Errorf("a floor of the kernel: %q", got)
	}
	if got := texts(t, facts("containerd=absent", "runc=1.0.0"), "containerd=none", "runc=none"); len(got) != 0 {
		t.Errorf("lifted floors: %q", got)
	}
	var prints []string
	for _, own := range [][]string{nil, {"runc=1.3.6"}, {"lsm"}} {
		f, err := floors.Parse(own)
		if err != nil || slices.Contains(prints, f.Fingerprint()) {
			t.Errorf("floors %q: fingerprint %s, %v", own, f.Fingerprint(), err)
		}
		prints = append(prints, f.Fingerprint())
	}
	for _, wrong := range []string{"runc", "runc=", "=1", "runc=new", "apparmor"} {
		if _, err := floors.Parse([]string{wrong}); err == nil || !strings.Contains(err.Error(), "allowed are") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	if _, err := floors.Parse([]string{"runc=1", "runc=2"}); err == nil {
		t.Error("two floors of one component are accepted")
	}
}
