package agent_test

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth"
	"berth/api/client"
	"berth/internal/lib/treetar"
	"berth/spec"
)

// tree packs a folder with one file.
func tree(t *testing.T, name, file, text string) io.Reader {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name, file), []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var packed bytes.Buffer
	if err := treetar.Pack(&packed, root, name, name, nil); err != nil {
		t.Fatal(err)
	}
	return &packed
}

func copies(t *testing.T, c *client.Client, id berth.JobID, req spec.NewSession, in io.Reader) (string, error) {
	t.Helper()
	req.Kind = spec.SessionFiles
	var out bytes.Buffer
	_, err := c.Sessions().Run(t.Context(), id, req, client.Streams{Stdin: in, Stdout: &out, Stderr: io.Discard})
	return out.String(), err
}

func TestFilesAreCopiedBothWays(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	c := s.user()
	id := s.submit(checkpointed(2), "sleep", "1h")
	m.place(id)
	m.until("job runs", func() bool { return s.job(id).Status == berth.Running })
	dir := filepath.Join(m.cfg.StateDir, "ranks", berth.ContainerName(id, 0, 1))
	long := strings.Repeat("0123456789", 300_000) // more than a window
	if _, err := copies(t, c, id, spec.NewSession{Copy: spec.CopyIn, Path: "/workspace", Name: "src"}, tree(t, "src", "a.txt", long)); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "workspace/src/a.txt")); err != nil || string(got) != long {
		t.Errorf("%d bytes arrived, %v", len(got), err)
	}
	if _, err := copies(t, c, id, spec.NewSession{Copy: spec.CopyIn, Path: "/checkpoint/renamed", Name: "src"}, tree(t, "src", "b.txt", "b")); err != nil {
		t.Fatal(err)
	}
	out, err := copies(t, c, id, spec.NewSession{Copy: spec.CopyOut, Path: "/checkpoint/renamed"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(strings.NewReader(out))
	var names []string
	for {
		h, err := r.Next()
		if err != nil {
			break
		}
		names = append(names, h.Name)
	}
	if got := strings.Join(names, " "); got != "renamed/ renamed/b.txt" {
		t.Errorf("copied out %q", got)
	}
	for name, req := range map[string]spec.NewSession{
		"nothing there": {Copy: spec.CopyOut, Path: "/workspace/none"},
		"no folder":     {Copy: spec.CopyIn, Path: "/workspace/none/deep", Name: "src"},
		"above":         {Copy: spec.CopyOut, Path: "/workspace/../etc/passwd"},
	} {
		out, err := copies(t, c, id, req, tree(t, "src", "c.txt", "c"))
		if err == nil && out != "" {
			t.Errorf("%s: %q, %v", name, out, err)
		}
	}
	// A link of the job that leads out of its folder leads nowhere.
	if err := os.Symlink("/etc", filepath.Join(dir, "workspace/out")); err != nil {
		t.Fatal(err)
	}
	if out, err := copies(t, c, id, spec.NewSession{Copy: spec.CopyOut, Path: "/workspace/out/hostname"}, nil); err == nil {
		t.Errorf("read %q behind a link", out)
	}
}
