package docker_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"berth/activities/node"
	"berth/internal/machine/docker"
	"berth/spec"
)

// accountsOf are the accounts of the test's images: one user beyond the engine's range, as old images have it.
var accountsOf = map[string]string{
	"etc/passwd": "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000::/:/bin/sh\nnfsnobody:x:4294967294:1000::/:/bin/sh\n",
	"etc/group":  "root:x:0:\napp:x:1000:\n",
}

// imageWith returns the name of an image with files, with links and with another configuration.
func imageWith(t *testing.T, files, links map[string]string, edit func(*v1.Config)) string {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for name, content := range files {
		h := tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range links {
		h := tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	return imageOf(t, &layer, w, func(c *v1.ConfigFile) { edit(&c.Config) })
}

// start creates and starts a container, and returns the first error.
func (m *machine) start(s node.ContainerSpec) error {
	if _, err := m.Create(m.t.Context(), s); err != nil {
		return err
	}
	return m.Start(m.t.Context(), s.Name)
}

// Every engine refuses such an image, so it is the image's fault, before a container exists where the configuration
// alone shows it.
func TestAnImageThatNoEngineCanStartIsAtFault(t *testing.T) {
	t.Parallel()
	user := func(name string) func(*v1.Config) { return func(c *v1.Config) { c.User = name } }
	folder := func(path string) func(*v1.Config) { return func(c *v1.Config) { c.WorkingDir = path } }
	volume := func(path string) func(*v1.Config) {
		return func(c *v1.Config) { c.Volumes = map[string]struct{}{path: {}} }
	}
	for claim, c := range map[string]struct {
		edit  func(*v1.Config)
		bare  bool   // an image without accounts: only the start finds out
		early bool   // no container is created
		says  string // "": the image starts
	}{
		"a name that it lacks":           {edit: user("ghost"), early: true, says: `USER "ghost"`},
		"a number beyond 32 bits":        {edit: user("4294967296"), early: true, says: "from 0 to 2147483647"},
		"a number that is negative":      {edit: user("-1"), early: true, says: `USER "-1"`},
		"a number without end":           {edit: user(strings.Repeat("9", 30)), early: true, says: `USER "999`},
		"a name after a space":           {edit: user(" root"), early: true, says: `user " root"`},
		"a group that it lacks":          {edit: user("app:ghosts"), early: true, says: `group "ghosts"`},
		"a group beyond 32 bits":         {edit: user("0:4294967296"), early: true, says: `group "4294967296"`},
		"a number, and no accounts":      {edit: user("4294967296"), bare: true, says: "must be in range"},
		"a name, and no accounts":        {edit: user("ghost"), bare: true, says: "unable to find user ghost"},
		"a name that it has":             {edit: user("app:app")},
		"the number of a name":           {edit: user("4294967294")},
		"a number without a name":        {edit: user("12345:2147483647")},
		"no user, and a group":           {edit: user(":1000")},
		"more fields than two":           {edit: user("1:2:3")},
		"a working folder in /proc":      {edit: folder("/proc/x"), says: "mkdir /proc/x"},
		"a working folder in /sys":       {edit: folder("/sys/x"), says: "mkdir /sys/x"},
		"a working folder in /dev/pts":   {edit: folder("/dev/pts/x"), says: "mkdir /dev/pts/x"},
		"a working folder of the kernel": {edit: folder("/proc/sys")},
		"a working folder in memory":     {edit: folder("/dev/shm/x")},
		"a volume at /proc":              {edit: volume("/proc"), early: true, says: `VOLUME "/proc"`},
		"a volume in /proc":              {edit: volume("/proc/./x"), early: true, says: `VOLUME "/proc/./x"`},
		"a volume at the root":           {edit: volume("/."), early: true, says: `VOLUME "/."`},
		"a relative volume at the root":  {edit: volume("."), early: true, says: `VOLUME "."`},
		"a relative volume in /proc":     {edit: volume("proc/x"), early: true, says: `VOLUME "proc/x"`},
		"a relative volume":              {edit: volume("data")},
		"a volume in /sys":               {edit: volume("/sys/x"), says: "/sys/x"},
		"a volume at /dev":               {edit: volume("/dev"), says: "/dev/null"},
		"a volume at /dev/null":          {edit: volume("/dev/null"), says: "/dev/null"},
		"a volume over a file":           {edit: volume("/testprog"), says: "over existing file"},
		"a volume in memory":             {edit: volume("/dev/shm")},
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			files := accountsOf
			if c.bare {
				files = nil
			}
			m := newMachine(t, "", docker.Options{})
			m.image = imageWith(t, files, nil, c.edit)
			s := m.spec("echo", "hello")
			err := m.start(s)
			if c.says == "" && err != nil || c.says != "" && (!errors.Is(err, node.ErrBadImage) ||
				errors.Is(err, node.ErrBadCommand) || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%v, want %q", err, c.says)
			}
			if _, err := m.Inspect(t.Context(), s.Name); c.early && !errors.Is(err, node.ErrNoContainer) {
				t.Errorf("a container was created: %v", err)
			}
		})
	}
}

// The engine itself reads the accounts of an image at the start. Those that it cannot read are the image's fault.
func TestAnImageWhoseAccountsNoEngineReadsIsAtFault(t *testing.T) {
	t.Parallel()
	long := "long:x:5:5:" + strings.Repeat("a", 70_000) + ":/:/bin/sh\n"
	for claim, c := range map[string]struct {
		passwd, group string // paths of files
		long          string // a further line of passwd
		says          string
	}{
		"a folder of groups":   {passwd: "etc/passwd", group: "etc/group/x", says: "unable to find groups for spec app"},
		"a folder of users":    {passwd: "etc/passwd/x", group: "etc/group", says: "unable to find user app"},
		"a line beyond 64 KiB": {passwd: "etc/passwd", group: "etc/group", long: long, says: "token too long"},
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			files := map[string]string{c.passwd: c.long + accountsOf["etc/passwd"], c.group: accountsOf["etc/group"]}
			m := newMachine(t, "", docker.Options{})
			m.image = imageWith(t, files, nil, func(c *v1.Config) { c.User = "app" })
			if err := m.start(m.spec("echo", "hello")); !errors.Is(err, node.ErrBadImage) ||
				!strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}

// What the job itself sets replaces the image's own, which then does not matter.
func TestTheJobsSettingsReplaceABadImages(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	m.image = imageWith(t, accountsOf, nil, func(c *v1.Config) {
		c.User, c.WorkingDir, c.Volumes = "ghost", "/proc/x", map[string]struct{}{"/data": {}}
	})
	s := m.spec("echo", "hello")
	s.User, s.WorkingDir = tenantUser.String(), "/"
	s.Mounts = []node.Mount{{Host: t.TempDir(), Target: "/data"}}
	if err := m.start(s); err != nil {
		t.Error(err)
	}
}

// A link of the image at the target of a mount leads the mount into a file system of the kernel.
func TestAnImageThatLeadsAMountIntoTheKernelIsAtFault(t *testing.T) {
	t.Parallel()
	for to, says := range map[string]string{
		"/proc": "/proc", "/proc/x": "/proc", "/proc/self": "/proc", "/sys/x": "/sys/x", "/dev/null": "/dev/null", "/": "/workspace",
		"/dev/shm/x": "", "/other": "",
	} {
		t.Run(to, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, "", docker.Options{})
			m.image = imageWith(t, nil, map[string]string{"workspace": to}, func(*v1.Config) {})
			s := m.spec("echo", "hello")
			s.Mounts = []node.Mount{{Host: t.TempDir(), Target: "/workspace"}}
			err := m.start(s)
			if says == "" && err != nil || says != "" && (!errors.Is(err, node.ErrBadImage) ||
				!strings.Contains(err.Error(), says)) {
				t.Errorf("%v, want %q", err, says)
			}
		})
	}
}

// The search for folders finds such a link before the start, and names the mount.
func TestTheSearchForFoldersFindsAMountInProc(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	m.image = imageWith(t, nil, map[string]string{"workspace": "/proc/x"}, func(*v1.Config) {})
	s := m.spec("echo", "hello")
	s.Mounts = []node.Mount{{Host: t.TempDir(), Target: "/workspace"}}
	if _, err := m.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	err := m.GiveFolders(t.Context(), s.Name, []string{"/out"}, spec.UserID{UID: 2010000000, GID: 2010000000})
	if !errors.Is(err, node.ErrBadImage) || !strings.Contains(err.Error(), "the mount /workspace to /proc/x") {
		t.Errorf("the gift: %v", err)
	}
}
