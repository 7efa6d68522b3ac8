package dbtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// dirPrefix is followed by the owner's process id and a random part.
const dirPrefix = "berth-dbtest-"

// makeDir creates the cluster's folder and starts a reaper process that removes the
// folder. A test binary has no hook after its last test, and a killed one runs nothing,
// so a small shell waits at the end of a pipe. The pipe closes when this process ends,
// and the shell removes the folder once the server has shut down.
func makeDir() (string, error) {
	dir, err := os.MkdirTemp(parent(), dirPrefix+strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return "", err
	}
	// The server's user must be able to enter the folder; the files have stricter modes.
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	const script = `read -r _
n=0
while [ -e "$1/data/postmaster.pid" ] && [ $n -lt 1200 ]; do sleep 0.1; n=$((n+1)); done
rm -rf -- "$1"`
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	reaper := exec.Command("/bin/sh", "-c", script, "sh", dir)
	reaper.Stdin = r
	reaper.Dir = "/"
	reaper.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C on the tests must not reach it
	err = reaper.Start()
	_ = r.Close()
	if err != nil {
		return "", fmt.Errorf("start the reaper of %s: %w", dir, err)
	}
	// The write end stays open, and out of children (close-on-exec), for as long
	// as the process lives: keep it from the garbage collector's finalizer.
	shared.pipe = w
	return dir, nil
}

// memory is the file system in memory that parent prefers.
const (
	memory    = "/dev/shm"
	isMemory  = 0x01021994 // TMPFS_MAGIC of statfs(2)
	memoryMin = 2 << 30    // bytes free; a package needs less than half of it
)

// parent returns the folder for clusters: in memory if memoryMin bytes are free and TMPDIR
// is not set. A database is five hundred files, and creating so many files on a disk takes
// longer than most tests.
func parent() string {
	var fs syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(memory, &fs) != nil || fs.Type != isMemory ||
		int64(fs.Bavail)*fs.Bsize < memoryMin {
		return os.TempDir()
	}
	return memory
}

// sweep removes the folders of test processes that ended together with their reapers, as
// in a crash of the machine. Folders with an unreadable owner or a live server stay.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(parent(), dirPrefix+"*")) // the pattern is well-formed
	for _, dir := range dirs {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), dirPrefix), "-")
		owner, err := strconv.Atoi(pid)
		if err != nil || alive(owner) || serverAlive(dir) {
			continue
		}
		_ = os.RemoveAll(dir)
	}
}

// alive reports whether a process with this id exists, of any user.
func alive(pid int) bool {
	return syscall.Kill(pid, 0) != syscall.ESRCH
}

// serverAlive reports whether the folder's server runs, and true if that is unknown.
func serverAlive(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil {
		return !os.IsNotExist(err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(line)
	return err != nil || alive(pid)
}
