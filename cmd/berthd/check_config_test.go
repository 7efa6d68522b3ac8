package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"berth/internal/control/controlplane"
	"berth/internal/control/controlplane/preflight"
)

// newFlags returns the flags of berthd, not parsed.
func newFlags() (*settings, *pflag.FlagSet) {
	s := &settings{Config: controlplane.Default()}
	f := pflag.NewFlagSet("berthd", pflag.ContinueOnError)
	s.flags(f)
	return s, f
}

// settingsFile writes a file of settings and returns its path.
func settingsFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "berthd.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// runCommand runs berthd with an environment and returns what it prints.
func runCommand(t *testing.T, env map[string]string, args ...string) (string, error) {
	t.Helper()
	cmd := command(func(k string) (string, bool) { v, ok := env[k]; return v, ok })
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&bytes.Buffer{})
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// One run reports the faults of the file, the environment and the command line, and the faults of what they name.
func TestCheckConfigReportsAllFaultsOfAllSources(t *testing.T) {
	t.Parallel()
	const file = "database-url: postgres://berth@127.0.0.1:1/berth\nblob-ulr: file:///x\nlost-share: 7\n"
	env := map[string]string{"BERTH_RETENTION": "soon", "BERTH_TEMPORAL_ADDRESS": "127.0.0.1:1"}
	out, err := runCommand(t, env, "check-config", "--settings-file", settingsFile(t, file), "--listen", "0.0.0.0:7070",
		"-o", "json")
	if err == nil || !strings.HasSuffix(err.Error(), "faults") {
		t.Errorf("the command returns %v; want an error, for exit status 1", err)
	}
	var findings []preflight.Finding
	if err := json.Unmarshal([]byte(out), &findings); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []struct{ check, text string }{
		{"settings", "BERTH_RETENTION"}, {"settings", `berthd.yaml:2: "blob-ulr"`}, {"settings", "no blob store"},
		{"settings", "lost-share 7"}, {"settings", "it has no TLS"}, {"database", "127.0.0.1"},
		{"temporal", "127.0.0.1:1"},
	} {
		found := false
		for _, f := range findings {
			found = found || f.Check == want.check && f.State == preflight.Fault && strings.Contains(f.Detail, want.text)
		}
		if !found {
			t.Errorf("no fault of %s contains %q: %s", want.check, want.text, out)
		}
	}
}

func TestSettingsOfTheFileReachTheCommands(t *testing.T) {
	t.Parallel()
	_, err := runCommand(t, nil, "check-config", "--settings-file", "", "-o", "xml")
	if err == nil || !strings.Contains(err.Error(), "text, json") {
		t.Errorf("another format: %v", err)
	}
	path := settingsFile(t, "database-url: postgres://berth@127.0.0.1:1/other\nrate: 5\n")
	_, err = runCommand(t, nil, "token", "reset", "--settings-file", path)
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1/other") {
		t.Errorf("the reset of the token used another database than the file names: %v", err)
	}
}

// The settings that the package installs are valid, and so are its examples: the file is read with each comment
// that begins a setting taken away.
func TestTheInstalledSettingsAreValid(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../deploy/packages/etc/berthd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var examples strings.Builder
	seen := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		text, ok := strings.CutPrefix(line, "#")
		key, _, _ := strings.Cut(text, ":")
		if ok && !strings.HasPrefix(text, " ") && strings.TrimSpace(text) != "" && !seen[key] {
			seen[key] = true
			examples.WriteString(text)
		}
	}
	if len(seen) < 8 {
		t.Fatalf("found %d examples; want at least 8", len(seen))
	}
	for name, text := range map[string]string{"installed": string(b), "examples": examples.String()} {
		s, f := newFlags()
		if err := f.Parse([]string{"--settings-file", settingsFile(t, text)}); err != nil {
			t.Fatal(err)
		}
		if err := load(f, func(string) (string, bool) { return "", false }); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if name == "examples" {
			if err := s.parse(); err != nil {
				t.Error(err)
			}
			if err := s.Validate(); err != nil {
				t.Error(err)
			}
		}
	}
}
