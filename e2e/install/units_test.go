package install_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// exposures are the services with the highest exposure that systemd-analyze may compute for each,
// from 0 to 10. The agent runs as root and gives the reason for each protection that it lacks.
var exposures = map[string]float64{"berthd": 2.0, "berth-check": 2.0, "berth-deadman": 4.0, "berth-agent": 8.2, "berth-temporal": 2.0}

// protections are the settings that each unit has, or names in a comment that gives the reason
// against it.
var protections = []string{
	"CapabilityBoundingSet", "LockPersonality", "MemoryDenyWriteExecute", "NoNewPrivileges", "PrivateDevices", "PrivateTmp",
	"ProtectClock", "ProtectControlGroups", "ProtectHome", "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables",
	"ProtectSystem", "RestrictAddressFamilies", "RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID",
	"SystemCallArchitectures", "SystemCallFilter", "UMask", "User",
}

// set matches the settings of a unit, and reason the names in its comments.
var (
	set    = regexp.MustCompile(`(?m)^([A-Z][A-Za-z]+)=`)
	reason = regexp.MustCompile(`\b([A-Z][A-Za-z]+)=`)
)

func TestUnitsHaveEachProtectionOrAReason(t *testing.T) {
	t.Parallel()
	for service := range exposures {
		text, err := os.ReadFile(filepath.Join(units, service+".service"))
		if err != nil {
			t.Fatal(err)
		}
		named := map[string]bool{}
		for _, m := range set.FindAllStringSubmatch(string(text), -1) {
			named[m[1]] = true
		}
		for line := range strings.Lines(string(text)) {
			if comment, ok := strings.CutPrefix(line, "#"); ok {
				for _, m := range reason.FindAllStringSubmatch(comment, -1) {
					named[m[1]] = true
				}
			}
		}
		if named["DynamicUser"] {
			named["User"] = true
		}
		for _, p := range protections {
			if !named[p] {
				t.Errorf("%s.service neither sets %s nor gives a reason against it", service, p)
			}
		}
	}
}

// The reader of an unfinished line is a process of the agent's unit that the kernel kills first when memory is short.
// By systemd's default the unit would stop with it.
func TestKilledReaderLeavesTheAgentRunning(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(units, "berth-agent.service"))
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^OOMPolicy=continue$`).Match(text) {
		t.Error("berth-agent.service does not set OOMPolicy=continue")
	}
}

// A host without systemd-analyze checks the settings alone.
func TestUnitsStayBelowTheirExposure(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Logf("the exposure is unknown: %v", err)
		return
	}
	level := regexp.MustCompile(`exposure level for \S+: ([0-9.]+)`)
	for service, most := range exposures {
		out, err := exec.Command(analyze, "security", "--offline=true", filepath.Join(units, service+".service")).CombinedOutput()
		m := level.FindSubmatch(out)
		if err != nil || m == nil {
			t.Errorf("systemd-analyze of %s: %v\n%s", service, err, out)
			continue
		}
		if got, err := strconv.ParseFloat(string(m[1]), 64); err != nil || got > most {
			t.Errorf("%s.service has the exposure %s, above %.1f; systemd-analyze security names the settings", service, m[1], most)
		}
	}
}
