package fetch_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/internal/lib/archive"
	"berth/internal/machine/fetch"
	"berth/spec"
)

// folder is a volume on this machine, /datasets, and sources that allow little.
type folder struct {
	t   *testing.T
	dir string
	s   *fetch.Sources
}

func newFolder(t *testing.T) *folder {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "nfs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := fetch.Open(fetch.Options{
		Limits: archive.Limits{Bytes: 1 << 20, Files: 10}, Volumes: fetch.Volumes{"datasets": dir}, Own: []string{"/no/such/folder"},
	})
	t.Cleanup(s.Close)
	return &folder{t, dir, s}
}

// must fails the test on an error of its setup.
func (f *folder) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *folder) at(name string) string { return filepath.Join(f.dir, filepath.FromSlash(name)) }

func (f *folder) put(name, content string) {
	f.t.Helper()
	f.must(os.MkdirAll(filepath.Dir(f.at(name)), 0o755))
	f.must(os.WriteFile(f.at(name), []byte(content), 0o644))
}

func (f *folder) link(target, name string) {
	f.t.Helper()
	f.must(os.MkdirAll(filepath.Dir(f.at(name)), 0o755))
	f.must(os.Symlink(target, f.at(name)))
}

func file(path string) spec.Input { return spec.Input{From: "file:///datasets/" + path, To: "/data"} }

func (f *folder) read(path string) (map[string]string, error) {
	f.t.Helper()
	_, files, err := findAndRead(f.t, f.s, file(path), "", 1)
	return files, err
}

// ticks waits until a change has another time than the changes before: the clock of
// the file system advances in ticks, and only readers of a file wait for its tick.
func (f *folder) ticks() {
	f.t.Helper()
	var first, now syscall.Stat_t
	probe := filepath.Join(filepath.Dir(f.dir), "probe") // the same file system
	for now.Ctim == first.Ctim {
		f.must(os.WriteFile(probe, []byte("x"), 0o644))
		f.must(syscall.Stat(probe, &now))
		if first.Ino == 0 {
			first = now
		}
		runtime.Gosched()
	}
}

func (f *folder) find(path string) *fetch.Found {
	f.t.Helper()
	found, err := f.s.Find(f.t.Context(), file(path), "")
	f.must(err)
	return found
}

func (f *folder) refuses(path, says string) {
	f.t.Helper()
	_, err := f.read(path)
	refused(f.t, path, err, says)
	if err != nil && strings.Contains(err.Error(), f.dir) {
		f.t.Errorf("%s: it is told where the folder lies: %v", path, err)
	}
}

// local fails unless an error is this machine's, and says this but not where the
// folder lies.
func local(t *testing.T, what string, err error, says, dir string) {
	t.Helper()
	if _, ok := errors.AsType[fetch.Local](err); !ok || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), dir) {
		t.Errorf("%s: %v; want an error of the machine with %q", what, err, says)
	}
}

func TestAFolderOfTheMachineIsRead(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	for name, content := range map[string]string{"set/a.txt": "a", "set/deep/er/b ü?#.txt": "b", "set/empty": "", "settle": "no"} {
		f.put(name, content)
	}
	f.must(os.Mkdir(f.at("set/none"), 0o755))
	want := map[string]string{"a.txt": "a", "deep/": "", "deep/er/": "", "deep/er/b ü?#.txt": "b", "empty": "", "none/": ""}
	files, err := f.read("set/")
	if diff := cmp.Diff(want, files); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if files, err := f.read("set/a.txt"); err != nil || files[fetch.FileName] != "a" || len(files) != 1 {
		t.Errorf("one file is %q, %v", files, err)
	}
	if files, err := f.read(""); err != nil || files["settle"] != "no" {
		t.Errorf("all of it is %q, %v", files, err)
	}
	found := f.find("set/")
	if again := f.find("set/"); again.Address != found.Address || again.Kind != found.Kind || again.Once {
		t.Errorf("found again it is %+v, and was %+v", again, found)
	}
	f.ticks()
	f.put("set/a.txt", "A")
	if again := f.find("set/"); again.Address == found.Address {
		t.Error("it has another content, and the same address")
	}
}

// A tool may set a file's times as it likes.
func TestAChangeIsSeenWhateverTheFilesTimes(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.put("a", "old")
	then := time.Now().Add(-time.Hour)
	f.must(os.Chtimes(f.at("a"), then, then))
	was := f.find("a")
	f.put("b", "new")
	f.must(os.Chtimes(f.at("b"), then, then))
	f.must(os.Rename(f.at("b"), f.at("a")))
	if now := f.find("a"); now.Address == was.Address {
		t.Error("another file of the same size and time has the same address")
	}
}

func TestLinksThatStayInTheFolderAreFollowed(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.put("blobs/1", "one")
	f.put("v2/sub/two", "two")
	f.link("../blobs/1", "snap/model")
	f.link("../v2/sub", "snap/sub")
	f.link("v2", "latest")
	files, err := f.read("snap/")
	if diff := cmp.Diff(map[string]string{"model": "one", "sub/": "", "sub/two": "two"}, files); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if files, err := f.read("latest/sub/two"); err != nil || files[fetch.FileName] != "two" {
		t.Errorf("through a link it is %q, %v", files, err)
	}
	if files, err := f.read("latest/"); err != nil || files["sub/two"] != "two" {
		t.Errorf("a link is %q, %v", files, err)
	}
}

func TestNothingLeadsOutOfTheFolder(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	outside := filepath.Join(filepath.Dir(f.dir), "outside")
	f.must(os.Mkdir(outside, 0o755))
	f.must(os.WriteFile(filepath.Join(outside, "secret"), []byte("canary"), 0o644))
	for name, target := range map[string]string{
		"file/x":     "../../outside/secret",
		"absolute/x": filepath.Join(outside, "secret"),
		"folder/x":   "../../outside",
		"passwd/x":   "/etc/passwd",
	} {
		f.link(target, name)
		f.refuses(filepath.Dir(name)+"/", "leads out of the folder /datasets by a link")
	}
	// Neither of two links leads out by its words.
	f.link("..", "chained/up")
	f.link("up/../../outside", "chained/x")
	f.refuses("chained/", "leads out of the folder /datasets by a link")
	f.link("../../outside", "way")
	f.refuses("way/secret", "leads out of the folder /datasets by a link")
	_, err := f.s.Find(t.Context(), file("way/secret"), "")
	if err == nil || strings.Contains(err.Error(), "write a /") {
		t.Errorf("it is told to write a / where that is of no use: %v", err)
	}
	f.refuses("way/", "leads out of the folder /datasets by a link")
	// One leads to the folder's own, by its absolute path on this machine.
	f.put("a", "a")
	f.link(f.at("a"), "own/x")
	f.refuses("own/", "leads out of the folder /datasets by a link")
}

// watches returns a function that reports whether any process has opened a file since.
func (f *folder) watches(name string) (opened func() bool) {
	f.t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	f.must(err)
	f.t.Cleanup(func() { _ = unix.Close(fd) })
	_, err = unix.InotifyAddWatch(fd, f.at(name), unix.IN_OPEN)
	f.must(err)
	return func() bool {
		n, err := unix.Read(fd, make([]byte, 4096))
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			f.t.Error(err)
		}
		return n > 0
	}
}

func TestWhatIsNoFileIsRefusedAndNeverOpened(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	for _, at := range []string{"pipe", "socket", "device", "linked"} {
		f.must(os.Mkdir(f.at(at), 0o755))
	}
	f.must(syscall.Mkfifo(f.at("pipe/x"), 0o644))
	opened := f.watches("pipe/x")
	f.refuses("pipe/", "file:///datasets/pipe/x is a named pipe: only files and folders are read")
	f.refuses("pipe/x", "is a named pipe")
	f.refuses("pipe/x/", "is a named pipe")
	f.link("../pipe/x", "linked/x")
	f.refuses("linked/", "is a named pipe")
	f.refuses("linked/x/", "is a named pipe")
	f.refuses("pipe/x/y", "a file lies where its path has a folder")
	if opened() {
		t.Error("the pipe was opened")
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: f.at("socket/x"), Net: "unix"})
	f.must(err)
	defer l.Close()
	f.refuses("socket/", "is a socket")
	f.refuses("socket/x", "is a socket")
	if err := syscall.Mknod(f.at("device/x"), syscall.S_IFCHR|0o666, 1<<8|5); err == nil { // as /dev/zero; not everybody may
		f.refuses("device/", "is a device")
		f.refuses("device/x", "is a device")
	}
}

func TestLimitsOfFolders(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.put("big/a", strings.Repeat("x", 1<<20+1))
	for _, name := range []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"} {
		f.put("many/"+name, "x")
	}
	f.put("one", "1")
	f.put("deep/"+strings.Repeat("x/", 5)+"y", "y")
	f.link(".", "circle/x")
	f.link("../../circle2", "circle2/x/y")
	f.link("x", "around/x")
	f.link("nowhere", "dangling/x")
	f.put("own/.berth/x", "x")
	f.put("odd/"+strings.Repeat("x", 255), "x")
	f.must(os.Mkdir(f.at("empty"), 0o755))
	for path, says := range map[string]string{
		"big/":      "has at least 1 objects of 1.0 MiB; the limits of this machine are 10 objects and 1.0 MiB",
		"big/a":     "the limits of this machine are 10 objects and 1.0 MiB",
		"many/":     "has at least 11 objects",
		"none":      "file:///datasets/none: no such file or folder; end the address with / to fetch all objects below a prefix",
		"none/":     "file:///datasets/none: no such file or folder",
		"one/":      "file:///datasets/one is a file: remove the / at the end",
		"one/x":     "a file lies where its path has a folder",
		"many":      "file:///datasets/many is not an object; end the address with / to fetch all objects below a prefix",
		"empty/":    "file:///datasets/empty/: no objects found",
		"circle/":   "the links of its folders lead in a circle",
		"circle2/":  "the links of its folders lead in a circle",
		"around/":   "file:///datasets/around/x: its links lead in a circle",
		"dangling/": "file:///datasets/dangling/x: no such file or folder",
		"own/":      ".berth is Berth's own folder",
	} {
		f.refuses(path, says)
	}
	if files, err := f.read("odd/"); err != nil || len(files) != 1 {
		t.Errorf("a long name: %d files, %v", len(files), err)
	}
}

// As root the agent may read everything.
func TestWhatTheAgentMayNotReadIsRefused(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.put("shut/a", "a")
	f.put("closed/in/a", "a")
	f.must(os.Chmod(f.at("shut/a"), 0))
	f.must(os.Chmod(f.at("closed/in"), 0))
	t.Cleanup(func() { _ = os.Chmod(f.at("closed/in"), 0o755) })
	for _, path := range []string{"shut/a", "shut/", "closed/", "closed/in/a"} {
		files, err := f.read(path)
		if os.Geteuid() == 0 {
			if err != nil || len(files) == 0 {
				t.Errorf("%s is %q, %v", path, files, err)
			}
			continue
		}
		refused(t, path, err, "the machine's agent may not read it")
	}
}

func TestWhatChangesWhileItIsReadIsNoInput(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	for what, change := range map[string]func(name string) error{
		"rewritten": func(name string) error { return os.WriteFile(name, []byte("other"), 0o644) },
		"replaced": func(name string) error {
			if err := os.WriteFile(name+".new", []byte("other"), 0o644); err != nil {
				return err
			}
			return os.Rename(name+".new", name)
		},
		"cut":    func(name string) error { return os.Truncate(name, 1) },
		"longer": func(name string) error { return os.Truncate(name, 100) },
		"gone":   os.Remove,
		"a folder": func(name string) error {
			return errors.Join(os.Remove(name), os.Mkdir(name, 0o755))
		},
		"a pipe": func(name string) error { return errors.Join(os.Remove(name), syscall.Mkfifo(name, 0o644)) },
		"a link out": func(name string) error {
			return errors.Join(os.Remove(name), os.Symlink("/etc/hostname", name))
		},
		"its folder is": func(name string) error {
			return errors.Join(os.RemoveAll(filepath.Dir(name)), os.Symlink("/etc", filepath.Dir(name)))
		},
	} {
		dir := "changes-" + strings.ReplaceAll(what, " ", "-")
		f.put(dir+"/passwd", "first")
		found := f.find(dir + "/")
		f.ticks()
		f.must(change(f.at(dir + "/passwd")))
		files, err := read(t, found, 3)
		if _, changed := errors.AsType[fetch.Changed](err); !changed {
			t.Errorf("%s: it is %q, %v", what, files, err)
		}
	}
}

func TestOnlyFoldersThatTheMachineSharesAreRead(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	_, err := f.s.Find(t.Context(), spec.Input{From: "file:///models/a", To: "/data"}, "")
	local(t, "another folder", err, "this machine does not share the folder /models", f.dir)
	for _, from := range []string{"file:///datasets/../nfs/a", "file://host/datasets/a", "file:///etc/passwd", "file:///datasets/%2e%2e/a"} {
		_, err := f.s.Find(t.Context(), spec.Input{From: from, To: "/data"}, "")
		refused(t, from, err, from)
	}
	// A file server that is away is the machine's matter, and another one may do.
	for _, path := range []string{"", "a", "a/"} {
		_, err := f.read(path)
		local(t, "an empty folder", err, "the folder /datasets is empty on this machine, as if it were not mounted", f.dir)
	}
	f.must(os.Remove(f.dir))
	_, err = f.read("a")
	local(t, "no folder", err, "this machine cannot open the folder /datasets: no such file or directory", f.dir)
	f.must(os.Symlink("/etc", f.dir))
	_, err = f.read("passwd")
	local(t, "a link to the system", err, "this machine cannot open the folder /datasets: it is not what an operator may share", f.dir)
}

func TestOperatorsSayWhereFoldersLie(t *testing.T) {
	t.Parallel()
	got, err := fetch.ParseVolumes([]string{"/datasets=/mnt/nfs/data sets", " /models ; /films=/srv/a=b;", ""})
	if diff := cmp.Diff(fetch.Volumes{"datasets": "/mnt/nfs/data sets", "models": "/models", "films": "/srv/a=b"}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for text, says := range map[string]string{
		"datasets":              `"datasets" is not a valid name of a folder`,
		"/a/b":                  "write /NAME or /NAME=/FOLDER",
		"/etc":                  "/etc is a system folder",
		"/a;/a=/b":              "/a is listed twice",
		"/var=/mnt;x=/y":        `"x" is not a valid name of a folder`,
		"/datasets,/models=/mn": "is not a valid name of a folder",
	} {
		if v, err := fetch.ParseVolumes([]string{text}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, %v", text, v, err)
		}
	}
}

func TestFoldersOfTheSystemAreNotShared(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	own := filepath.Join(dir, "agent")
	for _, made := range []string{own + "/cache", dir + "/data", dir + "/agent2"} {
		if err := os.MkdirAll(made, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("/etc", dir+"/etc"), os.Symlink(own, dir+"/link"), os.WriteFile(dir+"/file", nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	for at, says := range map[string]string{
		dir + "/data": "", dir + "/agent2": "",
		"/": "holds, or lies in", "/etc": "holds, or lies in", "/etc/ssl": "holds, or lies in", "/proc/self": "holds, or lies in",
		"/dev": "holds, or lies in", "/sys/fs": "holds, or lies in", "/run/x": "holds, or lies in", "/var": "holds, or lies in",
		"/var/lib/docker/volumes": "holds, or lies in", "/var/run": "holds, or lies in",
		"/var/lib/containers/storage": "holds, or lies in", "/var/lib/kubelet/pods": "holds, or lies in",
		own: "holds, or lies in", own + "/cache": "holds, or lies in", dir: "holds, or lies in",
		dir + "/etc": "holds, or lies in", dir + "/link": "holds, or lies in",
		dir + "/file": "is no folder", dir + "/none": "no such file or directory",
		"data": "is not a clean absolute path", dir + "/data/": "is not a clean absolute path", dir + "/data/../data": "is not a clean absolute path", "": "is not a clean absolute path",
	} {
		away, err := fetch.Volumes{"x": at}.Check(own)
		if says == "no such file or directory" {
			away, err = err, away
		}
		if away != nil {
			t.Errorf("%q: %v", at, away)
		}
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "/x: ")) {
			t.Errorf("%q: %v, want %q", at, err, says)
		}
	}
}

// A user who may change a link on the path to the folder could otherwise make the
// agent read files that only the agent may read.
func TestWhereAFolderLiesStays(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.put("a", "shared")
	aside, link := f.dir+"-other", f.dir+"-link"
	f.must(os.Mkdir(aside, 0o755))
	f.must(os.WriteFile(filepath.Join(aside, "a"), []byte("canary"), 0o644))
	f.must(os.Symlink(f.dir, link))
	linked := &folder{t, f.dir, fetch.Open(fetch.Options{Limits: archive.Limits{Bytes: 1 << 20, Files: 10}, Volumes: fetch.Volumes{"datasets": link}})}
	t.Cleanup(linked.s.Close)
	turn := func(to string) {
		f.must(os.Remove(link))
		f.must(os.Symlink(to, link))
	}
	for range 2 {
		if files, err := linked.read("a"); err != nil || files[fetch.FileName] != "shared" {
			t.Errorf("it is %q, %v", files, err)
		}
		found := linked.find("a")
		turn(aside)
		const says = "this machine cannot open the folder /datasets: its links lead elsewhere than when the agent started"
		_, err := linked.read("a")
		local(t, "found elsewhere", err, says, f.dir)
		_, err = read(t, found, 1)
		local(t, "read elsewhere", err, says, f.dir)
		if labels, away := linked.s.Labels(t.Context()); len(labels) != 0 || away["datasets"] == nil {
			t.Errorf("labels %v, away %v", labels, away)
		}
		turn(f.dir)
	}
}

func TestLabelsOfWhatCanBeOpened(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := map[spec.Volume]string{"here": filepath.Join(dir, "here"), "engine": filepath.Join(dir, "engine/images"), "gone": filepath.Join(dir, "gone")}
	for _, name := range []spec.Volume{"here", "engine"} {
		if err := os.MkdirAll(at[name], 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := fetch.Open(fetch.Options{Volumes: at, Own: []string{"/no/such/folder"}})
	t.Cleanup(s.Close)
	wants := func(what string, labels map[string]string, away map[spec.Volume]error, has []string, lacks map[spec.Volume]string) {
		t.Helper()
		want := map[string]string{}
		for _, h := range has {
			want["berth.volume."+h] = "yes"
		}
		if diff := cmp.Diff(want, labels); diff != "" || len(away) != len(lacks) {
			t.Errorf("%s: away %v (-want +got):\n%s", what, away, diff)
		}
		for name, says := range lacks {
			if err := away[name]; err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %s: %v, want %q", what, name, err, says)
			}
		}
	}
	labels, away := s.Labels(t.Context(), "")
	wants("at first", labels, away, []string{"here", "engine"}, map[spec.Volume]string{"gone": "no such file or directory"})
	if err := os.Mkdir(at["gone"], 0o755); err != nil {
		t.Fatal(err)
	}
	labels, away = s.Labels(t.Context(), filepath.Join(dir, "engine"))
	wants("when it is back and the engine is known", labels, away, []string{"here", "gone"}, map[spec.Volume]string{"engine": "holds, or lies in"})
	_, err := s.Find(t.Context(), spec.Input{From: "file:///engine/a", To: "/data"}, "")
	local(t, "a folder of the engine's", err, "it is not what an operator may share", dir)
}
