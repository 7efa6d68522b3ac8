package main

import (
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"berth/internal/lib/framed"
	"berth/internal/lib/treetar"
	"berth/spec"
	"berth/wire"
)

// openFiles is a server with one running job whose /workspace is a folder of this test.
func openFiles(t *testing.T) (x *sessionServer, workspace string) {
	t.Helper()
	workspace = t.TempDir()
	root, err := os.OpenRoot(workspace)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	x = openSessions(t, func(_ *websocket.Conn, c *framed.Conn) {
		req := <-x.asked
		at := path.Join(".", strings.TrimPrefix(req.Path, "/workspace"))
		if req.Copy == spec.CopyIn {
			_, _, err := treetar.Unpack(c.Reader(framed.Stdin), root, path.Join(at, req.Name), nil)
			if err == nil {
				_, err = io.Copy(io.Discard, c.Reader(framed.Stdin))
			}
			if err != nil {
				_ = c.SendStatus(wire.SessionStatus{Cause: wire.CauseRefused, Message: err.Error()})
				return
			}
		} else if err := treetar.Pack(c.Writer(framed.Stdout), root, at, path.Base(req.Path), nil); err != nil {
			_ = c.SendStatus(wire.SessionStatus{Cause: wire.CauseRefused, Message: err.Error()})
			return
		}
		end(c, 0)
	})
	return x, workspace
}

func TestCpCopiesBothWays(t *testing.T) {
	t.Parallel()
	x, workspace := openFiles(t)
	here := t.TempDir()
	if err := os.WriteFile(filepath.Join(here, "fix.py"), []byte(strings.Repeat("x", 3<<20)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, errs, code := endsWith(t, x.berth(t, "cp", filepath.Join(here, "fix.py"), "digits:/workspace")); code != 0 {
		t.Fatalf("copy in: exit %d, %s", code, errs)
	}
	if info, err := os.Stat(filepath.Join(workspace, "fix.py")); err != nil || info.Size() != 3<<20 {
		t.Errorf("copied in: %v, %v", info, err)
	}
	if _, errs, code := endsWith(t, x.berth(t, "cp", "digits:/workspace/fix.py", filepath.Join(here, "back.py"))); code != 0 {
		t.Fatalf("copy out: exit %d, %s", code, errs)
	}
	if info, err := os.Stat(filepath.Join(here, "back.py")); err != nil || info.Size() != 3<<20 {
		t.Errorf("copied out: %v, %v", info, err)
	}
	if _, errs, code := endsWith(t, x.berth(t, "cp", "digits:/workspace/none", here)); code != int(exitConflict) || errs == "" {
		t.Errorf("a missing file: exit %d, %s", code, errs)
	}
	for _, args := range [][]string{{"a", "b"}, {"digits:/a", "digits:/b"}, {"digits:a", here}, {"digits:/", here}} {
		if _, errs, code := endsWith(t, x.berth(t, append([]string{"cp"}, args...)...)); code != int(exitWrong) {
			t.Errorf("%q: exit %d, %s", args, code, errs)
		}
	}
}

// A copy that was cut must not look complete.
func TestCpThatIsCutFails(t *testing.T) {
	t.Parallel()
	x := openSessions(t, func(ws *websocket.Conn, c *framed.Conn) {
		_, _ = c.Writer(framed.Stdout).Write(make([]byte, 512))
		_ = ws.CloseNow()
	})
	if _, errs, code := endsWith(t, x.berth(t, "cp", "digits:/workspace/a", t.TempDir())); code != int(exitUnreachable) {
		t.Errorf("exit %d, %s", code, errs)
	}
}
