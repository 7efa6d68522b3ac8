package agentbin_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/control/cloud/agentbin"
)

// folder writes files below a folder of the test.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func hashOf(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

func TestProgramsAreFoundByPlatformAndHash(t *testing.T) {
	t.Parallel()
	dir := folder(t, map[string]string{
		"linux-amd64/berth-agent": "new", "linux-amd64/berth-agent-1.4": "old", "linux-amd64/copy": "new",
		"linux-arm64/berth-agent": "arm",
	})
	b, err := agentbin.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	if got := b.Current(); len(got) != 2 || got["linux-amd64"] != hashOf("new") || got["linux-arm64"] != hashOf("arm") {
		t.Errorf("programs of new launches: %v", got)
	}
	// A replaced file is served as it was.
	if err := os.WriteFile(filepath.Join(dir, "next"), []byte("newer"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "linux-amd64/berth-agent")); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"new", "old", "new"} {
		r, size, ok := b.Find("linux-amd64", hashOf(text))
		if !ok {
			t.Fatalf("%s is not found", text)
		}
		if got, err := io.ReadAll(r); err != nil || string(got) != text || size != int64(len(text)) {
			t.Errorf("%s is served as %q of %d bytes, %v", text, got, size, err)
		}
	}
	for _, q := range [][2]string{{"linux-arm64", hashOf("new")}, {"linux-amd64", hashOf("newer")}, {"linux-amd64", "../berth-agent"}, {"", ""}} {
		if _, _, ok := b.Find(q[0], q[1]); ok {
			t.Errorf("%q is found", q)
		}
	}
	var none *agentbin.Binaries
	if _, _, ok := none.Find("linux-amd64", hashOf("new")); ok || len(none.Current()) > 0 || none.Close() != nil {
		t.Error("no folder has programs")
	}
}

func TestFaultsOfAFolderAreNamed(t *testing.T) {
	t.Parallel()
	for want, files := range map[string]map[string]string{
		"is empty: it has no folder as linux-amd64": {},
		"darwin-arm64: no platform":                 {"darwin-arm64/berth-agent": "x", "linux-amd64/berth-agent": "x"},
		"linux-amd64 has no file berth-agent":       {"linux-amd64/agent": "x"},
		"allowed is a regular file of 1 byte to":    {"linux-amd64/berth-agent": ""},
	} {
		if _, err := agentbin.Open(folder(t, files)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %q", err, want)
		}
	}
	if _, err := agentbin.Open(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a missing folder is no error")
	}
}
