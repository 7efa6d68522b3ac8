package main

import (
	"bytes"
	"crypto/tls"
	"path/filepath"
	"strings"
	"testing"
)

func TestCACommandsMakeACertificateThatAServerCanUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := func(args ...string) (string, error) {
		cmd := command(func(string) (string, bool) { return "", false })
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(append(args, "--dir", dir))
		return out.String(), cmd.ExecuteContext(t.Context())
	}
	if _, err := run("ca", "issue", "berthd", "berth.internal"); err == nil || !strings.Contains(err.Error(), "ca.key") {
		t.Errorf("without an authority: %v; want an error that names its key", err)
	}
	for _, args := range [][]string{{"ca", "init"}, {"ca", "issue", "berthd", "berth.internal", "127.0.0.1"}} {
		if out, err := run(args...); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	if _, err := tls.LoadX509KeyPair(filepath.Join(dir, "berthd.crt"), filepath.Join(dir, "berthd.key")); err != nil {
		t.Error(err)
	}
	if _, err := run("ca", "issue", "berthd", "h", "--group", "no-such-group"); err == nil || !strings.Contains(err.Error(), "no-such-group") {
		t.Errorf("an unknown group: %v; want an error that names it", err)
	}
}
