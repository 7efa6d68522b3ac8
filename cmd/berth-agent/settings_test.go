package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"berth/internal/lib/flags"
)

func TestAServerElsewhereNeedsTLS(t *testing.T) {
	t.Parallel()
	for server, says := range map[string]string{
		"http://127.0.0.1:7070": "", "http://localhost:7070": "", "http://[::1]:7070": "", "https://berth.example.com": "",
		"http://berth.example.com": "plain HTTP", "http://10.0.0.5:7070": "plain HTTP", "http://localhost.example.com": "plain HTTP",
		"berth.example.com:7070": "write https://", "10.0.0.5:7070": "write https://", "": "write https://", "ftp://x": "write https://",
	} {
		s := settings{server: server}
		err := s.checkServer()
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", server, err)
		}
	}
	s := settings{server: "http://10.0.0.5:7070", plaintext: true}
	if err := s.checkServer(); err != nil {
		t.Errorf("allowed: %v", err)
	}
}

// The settings that the package installs are valid, and so are its examples.
func TestTheInstalledSettingsAreValid(t *testing.T) {
	t.Parallel()
	const path = "../../deploy/packages/etc/agent.yaml"
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	examples := filepath.Join(t.TempDir(), "agent.yaml")
	uncommented := strings.NewReplacer("#server:", "server:", "#join-token:", "join-token:",
		"#metrics-listen:", "metrics-listen:").Replace(string(b))
	if err := os.WriteFile(examples, []byte(uncommented), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{path, examples} {
		var s settings
		f := pflag.NewFlagSet("berth-agent", pflag.ContinueOnError)
		s.flags(f)
		if err := f.Parse([]string{"--settings-file", file}); err != nil {
			t.Fatal(err)
		}
		if err := flags.Load(f, f, func(string) (string, bool) { return "", false }); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if err := s.parse(); err != nil || s.deadman != deadmanService {
			t.Errorf("%s: deadman %s, %v", file, s.deadman, err)
		}
		if file == examples && (s.server != "https://berth.internal:7070" || s.joinToken == "" || s.metrics == "") {
			t.Errorf("the examples set server %s and join token %q", s.server, s.joinToken)
		}
	}
}

func TestLimitsOfInputsAreRead(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"": "",
		"--input-size=2TiB --input-files=1300000": "",
		"--input-size=0":         "at least 1MiB",
		"--input-size=many":      "input-size",
		"--input-files=0":        "allowed are 1 to 10000000",
		"--input-files=10000001": "allowed are 1 to 10000000",
	} {
		var s settings
		f := pflag.NewFlagSet("berth-agent", pflag.ContinueOnError)
		s.flags(f)
		if err := f.Parse(append(strings.Fields(args), "--server=https://berth.internal")); err != nil {
			t.Fatal(err)
		}
		err := s.parse()
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", args, err, says)
		}
		if args == "" && (s.inputMiB != 128<<10 || s.inputFiles != 200_000) {
			t.Errorf("the defaults are %d MiB and %d files", s.inputMiB, s.inputFiles)
		}
		if says == "" && args != "" && s.inputMiB != 2<<20 {
			t.Errorf("%q: %d MiB", args, s.inputMiB)
		}
	}
}
