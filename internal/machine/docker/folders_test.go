package docker_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/activities/node"
	"berth/internal/machine/docker"
	"berth/spec"
)

var tenantUser = spec.UserID{UID: 2010000000, GID: 2010000001}

// deepFolder is a folder of the test's image with 40 names in its path.
var deepFolder = strings.Repeat("/d", 40)

// foldersImage returns the name of an image with links and with folders of other modes and groups.
func foldersImage(t *testing.T) string {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	put := func(h tar.Header) {
		t.Helper()
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	dir := func(name string, mode int64, gid int) {
		t.Helper()
		put(tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode, Gid: gid})
	}
	dir("real", 0o2775, 50)
	dir("closed", 0o700, 0)
	dir("open", 0o1777, 0)
	dir("volume", 0o755, 0)
	for i := 2; i <= len(deepFolder); i += 2 {
		dir(deepFolder[1:i], 0o755, 0)
	}
	put(tar.Header{Typeflag: tar.TypeReg, Name: "file", Mode: 0o644})
	for name, to := range map[string]string{"up": "real", "dangling": "/real/none", "round": "round",
		"fixed": "/data/in", "indirect": "fixed", "shared": "/mnt/x"} {
		put(tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777})
	}
	return imageOf(t, &layer, w, func(c *v1.ConfigFile) { c.Config.Volumes = map[string]struct{}{"/volume": {}} })
}

// folder returns the header of a folder in a container, as the engine archives it.
func (m *machine) folder(name, path string) tar.Header {
	m.t.Helper()
	in, err := m.CopyOut(m.t.Context(), name, path)
	if err != nil {
		m.t.Fatal(err)
	}
	defer in.Close()
	h, err := tar.NewReader(in).Next()
	if err != nil {
		m.t.Fatal(err)
	}
	return *h
}

// The user and its group become the owners of one folder, and of no other. Modes and times stay, so that no folder
// opens to another user.
func TestTheFolderOfAPathIsGiven(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	m.SetBounds(time.Hour) // a busy machine answers slowly; the bounds have their own tests
	m.image = foldersImage(t)
	folders := []string{"/", "/real", "/closed", "/open", "/volume", "/d", deepFolder}
	fresh := m.spec()
	if _, err := m.Create(t.Context(), fresh); err != nil {
		t.Fatal(err)
	}
	before := map[string]tar.Header{}
	for _, f := range folders {
		before[f] = m.folder(fresh.Name, f)
	}
	for path, want := range map[string]string{
		"/out": "/", "/file": "/", "/round": "/", "/" + strings.Repeat("x", 300) + "/y": "/",
		"/real": "/real", "/real/x/y": "/real", "/up/x": "/real", "/dangling": "/real", "/dangling/x": "/real",
		"/closed/x": "/closed", "/volume/x": "/volume", deepFolder + "/x": deepFolder,
		"/open/x": "", "/file/x": "", "/shared": "", "/shared/x": "", "/data/x": "", "/mnt/x": "",
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			s := m.spec()
			data, shared := t.TempDir(), t.TempDir()
			s.Mounts = []node.Mount{{Host: data, Target: "/data", ReadOnly: true}, {Host: shared, Target: "/mnt"}}
			if _, err := m.Create(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			for range 2 { // a repetition changes nothing
				if err := m.GiveFolders(t.Context(), s.Name, []string{path}, tenantUser); err != nil {
					t.Fatal(err)
				}
			}
			for _, f := range folders {
				want, got, owner := before[f], m.folder(s.Name, f), f == want
				if owner {
					want.Uid, want.Gid = tenantUser.UID, tenantUser.GID
				}
				if got.Uid != want.Uid || got.Gid != want.Gid || got.Mode != want.Mode ||
					owner && f != "/" && !got.ModTime.Equal(want.ModTime) { // storage drivers change the times of folders above
					t.Errorf("%s is %d:%d %o %s, want %d:%d %o %s", f, got.Uid, got.Gid, got.Mode, got.ModTime, want.Uid,
						want.Gid, want.Mode, want.ModTime)
				}
			}
			for _, host := range []string{data, shared} {
				if info, err := os.Stat(host); err != nil || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Getuid()) {
					t.Errorf("a folder of the machine is %+v, %v", info, err)
				}
			}
		})
	}
}

// An image that leads an output into a read-only mount, or makes the search long, is at fault, and not the engine.
func TestAPathThatCannotBeGivenIsNoFaultOfTheEngine(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	m.SetBounds(time.Hour) // a busy machine answers slowly; the bounds have their own tests
	m.image = foldersImage(t)
	s := m.spec()
	s.Mounts = []node.Mount{{Host: t.TempDir(), Target: "/data", ReadOnly: true}}
	if _, err := m.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	var many []string
	for i := range node.MaxFolderSteps {
		many = append(many, fmt.Sprintf("%s/x%d", deepFolder, i))
	}
	for says, paths := range map[string][]string{
		"of container " + s.Name + " to user " + tenantUser.String() + ": find the folder of /fixed: a link of the image leads to /data/in, in the read-only " +
			"folder /data": {"/real/x", "/fixed"},
		"leads to /data/in/x, in the read-only folder": {"/fixed/x"},
		"leads to /data/in, in the read-only folder":   {"/indirect"},
		"more than 256 folders and links":              many,
	} {
		err := m.GiveFolders(t.Context(), s.Name, paths, tenantUser)
		if !errors.Is(err, node.ErrBadPath) || !strings.Contains(fmt.Sprint(err), says) {
			t.Errorf("%q: %v, want %s", paths, err, says)
		}
	}
	for _, f := range []string{"/", "/real", deepFolder} {
		if h := m.folder(s.Name, f); h.Uid != 0 {
			t.Errorf("%s belongs to %d after a refusal", f, h.Uid)
		}
	}
	if err := m.GiveFolders(t.Context(), s.Name, many[:spec.MaxOutputs], tenantUser); err != nil {
		t.Errorf("the most outputs: %v", err)
	}
}

// A link of the image at the target of a mount leads the mount to another folder, where no owner may change.
func TestAMountBehindALinkIsNotGiven(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	m.image = foldersImage(t)
	for _, c := range []struct {
		claim, path string
		targets     []string
		readOnly    bool
		says        string // of the error, "" for none
	}{
		{"a writable mount", "/real/private/x", []string{"/up"}, false, ""},
		{"a writable mount below a link", "/real/a/private/x", []string{"/up/a", "/up/a/b"}, false, ""},
		{"a read-only mount", "/real/private/x", []string{"/up"}, true,
			"leads to /real/private/x, in the read-only folder /up"},
		{"a path through the link", "/up/private/x", []string{"/real"}, true,
			"leads to /real/private/x, in the read-only folder /real"},
		{"a mount in another one", "/out", []string{"/data", "/fixed"}, false,
			"a link leads the mount /fixed to /data/in, in the mount /data"},
		{"a mount at the place of another one", "/out", []string{"/real", "/up"}, false, "in the mount /real"},
		{"a mount below another one's link", "/out", []string{"/up", "/real/deep/er"}, false,
			"a link leads the mount /real/deep/er to /real/deep/er, in the mount /up"},
		{"a nested mount without a link", "/real/x", []string{"/data", "/data/in"}, true, ""},
	} {
		t.Run(c.claim, func(t *testing.T) {
			t.Parallel()
			s := m.spec()
			var given []string
			for _, target := range c.targets {
				host := t.TempDir()
				for _, sub := range []string{"private", "in", "b", "deep/er"} {
					if err := os.MkdirAll(filepath.Join(host, sub), 0o700); err != nil {
						t.Fatal(err)
					}
					given = append(given, filepath.Join(host, sub))
				}
				given = append(given, host)
				s.Mounts = append(s.Mounts, node.Mount{Host: host, Target: target, ReadOnly: c.readOnly})
			}
			if _, err := m.Create(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			err := m.GiveFolders(t.Context(), s.Name, []string{c.path}, tenantUser)
			if c.says == "" && err != nil || c.says != "" && (!errors.Is(err, node.ErrBadPath) ||
				!strings.Contains(err.Error(), c.says)) {
				t.Errorf("%v, want %q", err, c.says)
			}
			for _, host := range given {
				if info, err := os.Stat(host); err != nil || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Getuid()) {
					t.Errorf("folder %s of the machine is %+v, %v", host, info, err)
				}
			}
		})
	}
}

// A container that has started stays as it is: its program could change the paths meanwhile.
func TestAStartedContainerGivesNoFolder(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	s := m.spec("echo", "hello")
	m.run(s)
	if _, err := m.Wait(t.Context(), s.Name); err != nil {
		t.Fatal(err)
	}
	if err := m.GiveFolders(t.Context(), s.Name, []string{"/out"}, tenantUser); err != nil {
		t.Fatal(err)
	}
	if h := m.folder(s.Name, "/"); h.Uid != 0 {
		t.Errorf("the root belongs to %d", h.Uid)
	}
}

// An image without a place for a mount gives no folder, and is named as the culprit by the start.
func TestAnImageWithoutAPlaceForAMountFailsAtTheStart(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	m.image = foldersImage(t)
	for _, target := range []string{"/round", "/file"} {
		s := m.spec("echo", "hello")
		s.Mounts = []node.Mount{{Host: t.TempDir(), Target: target}}
		if _, err := m.Create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if err := m.GiveFolders(t.Context(), s.Name, []string{"/out"}, tenantUser); err != nil {
			t.Errorf("%s: the gift: %v", target, err)
		}
		if err := m.Start(t.Context(), s.Name); !errors.Is(err, node.ErrBadCommand) {
			t.Errorf("%s: the start: %v", target, err)
		}
	}
}

// archive is an engine with one created container. The functions answer questions about paths and changes; nil: the root is
// a folder and below it every path is one, and changes succeed.
type archive struct {
	root, below, put func(n int32, w http.ResponseWriter, r *http.Request) // n is the number of the request
	gone             bool                                                  // the container, from the first question on
}

// open starts the engine. calls counts the requests about paths.
func (a archive) open(t *testing.T) (engine *docker.Engine, calls *atomic.Int32) {
	t.Helper()
	calls = &atomic.Int32{}
	engine = answering(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		w.Header().Set("Content-Type", "application/json")
		answer := a.below
		switch {
		case !strings.HasSuffix(r.URL.Path, "/archive"):
			if a.gone && calls.Load() > 0 {
				says(http.StatusNotFound, "No such container: c")(0, w, r)
				return
			}
			_, _ = w.Write([]byte(`{"Id":"c1","Name":"/c","State":{"Status":"created"},"Config":{}}`))
			return
		case r.Method == http.MethodPut:
			answer = a.put
		case r.URL.Query().Get("path") == "/":
			answer = a.root
		}
		n := calls.Add(1)
		if answer == nil {
			isFolder(w)
			return
		}
		answer(n, w, r)
	})
	return engine, calls
}

// says returns an answer with an error. As the answer to a HEAD request it has no body.
func says(status int, message string) func(int32, http.ResponseWriter, *http.Request) {
	return func(_ int32, w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]string{"message": message})
	}
}

// isFolder answers that a folder with the mode drwxr-xr-x is at the path.
func isFolder(w http.ResponseWriter) {
	w.Header().Set("X-Docker-Container-Path-Stat", "eyJuYW1lIjoiLyIsIm1vZGUiOjIxNDc0ODQxNDF9")
}

// Only the engine's message distinguishes a path that leads nowhere from an engine that fails.
func TestAnEngineThatFailsIsNoPathThatLeadsNowhere(t *testing.T) {
	t.Parallel()
	for message, nowhere := range map[string]bool{
		"lstat /var/lib/docker/x/merged/out: not a directory":                     true,
		"evalSymlinksInScope: too many links in /var/lib/docker/x/merged/out":     true,
		"lstat /out: file name too long":                                          true,
		"lstat /var/lib/docker/x/merged/out: input/output error":                  false,
		"failed to mount overlay: no such device":                                 false,
		"container c1 is marked for removal and cannot be changed: no more words": false,
	} {
		engine, calls := archive{below: says(http.StatusInternalServerError, message)}.open(t)
		err := engine.GiveFolders(t.Context(), "c", []string{"/out"}, tenantUser)
		if nowhere && err != nil || !nowhere && (err == nil || !strings.Contains(err.Error(), message)) ||
			errors.Is(err, node.ErrBadPath) {
			t.Errorf("%s: %v", message, err)
		}
		if n := calls.Load(); n > 4 {
			t.Errorf("%s: %d requests", message, n)
		}
	}
}

// A search that lasts is the fault of the image only if the engine answers each question promptly.
func TestASlowEngineIsNoLongSearch(t *testing.T) {
	t.Parallel()
	const limit = time.Second
	slow := func(from int32) func(int32, http.ResponseWriter, *http.Request) {
		return func(n int32, w http.ResponseWriter, r *http.Request) {
			if n > from {
				<-r.Context().Done() // the end of the search
				return
			}
			isFolder(w)
		}
	}
	steady := func(_ int32, w http.ResponseWriter, r *http.Request) {
		select { // the time for the mounts of the container
		case <-time.After(limit / 128):
		case <-r.Context().Done():
		}
		isFolder(w)
	}
	for _, c := range []struct {
		claim  string
		answer func(int32, http.ResponseWriter, *http.Request)
		bad    bool
	}{
		{"no answer from the first question on", slow(0), false},
		{"no answer after many", slow(100), false},
		{"prompt answers to many questions", steady, true},
	} {
		t.Run(c.claim, func(t *testing.T) {
			t.Parallel()
			engine, calls := archive{below: c.answer}.open(t)
			engine.SetSearchTime(limit)
			err := engine.GiveFolders(t.Context(), "c", []string{strings.Repeat("/d", 250)}, tenantUser)
			if err == nil || errors.Is(err, node.ErrBadPath) != c.bad {
				t.Errorf("after %d questions: %v", calls.Load(), err)
			}
		})
	}
}

// An engine that does not find the root of a container lacks the container or the source of a mount: no gift is skipped.
func TestAContainerWithoutARootGetsNoGiftSilently(t *testing.T) {
	t.Parallel()
	absent := says(http.StatusNotFound, "Could not find the file / in container c1")
	for claim, c := range map[string]struct {
		stub archive
		want error // nil: a fault of the engine
	}{
		"a mount without a source":     {archive{root: absent}, nil},
		"a container that is gone":     {archive{root: absent, gone: true}, node.ErrNoContainer},
		"gone before the change":       {archive{put: says(http.StatusNotFound, "No such container: c"), gone: true}, node.ErrNoContainer},
		"a change in read-only folder": {archive{put: says(500, "lchown /real: read-only file system")}, node.ErrBadPath},
		"a change that fails":          {archive{put: says(500, "lchown /real: input/output error")}, nil},
	} {
		engine, _ := c.stub.open(t)
		err := engine.GiveFolders(t.Context(), "c", []string{"/out"}, tenantUser)
		for _, kind := range []error{node.ErrNoContainer, node.ErrBadPath} {
			if err == nil || errors.Is(err, kind) != (kind == c.want) {
				t.Errorf("%s: %v, want %v", claim, err, c.want)
			}
		}
	}
}
