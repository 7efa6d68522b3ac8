package postgres

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// superuser owns every database of the cluster.
const superuser = "berth"

// layout names the files below Options.Dir.
type layout struct{ dir string }

// The paths below the cluster's folder.
func (l layout) data() string     { return filepath.Join(l.dir, "data") }
func (l layout) dataNew() string  { return filepath.Join(l.dir, "data.new") }
func (l layout) socket() string   { return filepath.Join(l.dir, "socket") }
func (l layout) password() string { return filepath.Join(l.dir, "password") }
func (l layout) log() string      { return filepath.Join(l.dir, "postgres.log") }
func (l layout) lock() string     { return filepath.Join(l.dir, "lock") }
func (l layout) pidFile() string  { return filepath.Join(l.data(), "postmaster.pid") }

// maxSocketPath is the kernel's limit on a socket's path, less its final NUL.
const maxSocketPath = 107

// socketDir returns the folder of the Unix socket, "" (no socket) if its path would be too
// long. Berth connects by TCP; the socket is for people with psql.
func (l layout) socketDir() string {
	if len(l.socket())+len("/.s.PGSQL.65535") > maxSocketPath {
		return ""
	}
	return l.socket()
}

// lockDir takes the folder for this process until the file is closed. A second
// manager is refused at once, where the server's own check would cost a retry.
func lockDir(l layout) (*os.File, error) {
	f, err := os.OpenFile(l.lock(), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock cluster: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock cluster: another process runs the cluster in %s", l.dir)
		}
		return nil, fmt.Errorf("lock cluster %s: %w", l.lock(), err)
	}
	return f, nil
}

// unlock gives the folder back. A program that is being started at this moment has
// a copy of the file, and with the copy the lock, until the program runs: to close
// the file alone would not give the folder back before that.
func unlock(lock *os.File) {
	_ = syscall.Flock(int(lock.Fd()), syscall.LOCK_UN)
	_ = lock.Close()
}

// dataVersion returns the major version that created the data, "" for a folder without data.
func dataVersion(l layout) (string, error) {
	b, err := os.ReadFile(filepath.Join(l.data(), "PG_VERSION"))
	if err == nil {
		return strings.TrimSpace(string(b)), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read data version: %w", err)
	}
	if _, err := os.Stat(l.data()); err == nil {
		return "", fmt.Errorf("%s exists but holds no PG_VERSION: it is no PostgreSQL data folder; move it away",
			l.data())
	}
	return "", nil
}

// initialise creates the data folder under another name, and renames the folder at the end:
// so "data" is either whole or absent.
func initialise(ctx context.Context, l layout, acct account, bins binaries, volatile bool) error {
	if err := os.RemoveAll(l.dataNew()); err != nil { // half-made by an initdb that was killed; never held data
		return err
	}
	if err := os.Mkdir(l.dataNew(), 0o700); err != nil {
		return err
	}
	if err := acct.own(l.dataNew()); err != nil {
		return err
	}
	if err := writePassword(l, acct); err != nil {
		return err
	}
	login := "scram-sha-256"
	if volatile {
		login = "md5" // a scram login costs both sides 10 ms, and a test makes ten of them
	}
	args := []string{"-D", l.dataNew(), "-U", superuser, "-A", login, "--pwfile", l.password(),
		"-E", "UTF8", "--locale=C.UTF-8", "--data-checksums"}
	if volatile {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, bins.initdb, args...)
	cmd.Env = environment()
	cmd.Dir = l.dir
	cmd.SysProcAttr = acct.sysProcAttr(syscall.SIGKILL)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	p, err := startProcess(cmd)
	if err != nil {
		return err
	}
	<-p.exited
	if p.err != nil {
		return fmt.Errorf("%s: %w: %s", bins.initdb, p.err, strings.TrimSpace(out.String()))
	}
	if err := os.Rename(l.dataNew(), l.data()); err != nil {
		return err
	}
	return syncDir(l.dir)
}

// writePassword creates a random password in a file that only the server's user may read.
func writePassword(l layout, acct account) error {
	var raw [24]byte
	_, _ = rand.Read(raw[:]) // crypto/rand.Read never fails since Go 1.24
	_ = os.Remove(l.password())
	if err := os.WriteFile(l.password(), []byte(hex.EncodeToString(raw[:])+"\n"), 0o600); err != nil {
		return err
	}
	return acct.own(l.password())
}

// readPassword returns the password of an earlier start.
func readPassword(l layout) (string, error) {
	b, err := os.ReadFile(l.password())
	if err != nil {
		return "", fmt.Errorf("read the cluster's password: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// syncDir makes a rename in dir durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// environment returns the whole environment of initdb and the server, without a PGPORT or
// PGDATA of the caller's, which are meant for another cluster.
func environment() []string {
	return []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C.UTF-8", "TZ=UTC"}
}

// clearStalePIDs removes pid files that certainly name no server: their process is a zombie,
// or another program that got the pid after a reboot. In every other case the server's own
// check decides. A server that was killed leaves one in its data, and one next to its socket.
func clearStalePIDs(l layout) error {
	files, err := filepath.Glob(filepath.Join(l.socket(), ".s.PGSQL.*.lock"))
	if err != nil {
		return err
	}
	for _, file := range append(files, l.pidFile()) {
		if err := clearStalePID(file); err != nil {
			return err
		}
	}
	return nil
}

// clearStalePID is clearStalePIDs for one file, which may be absent.
func clearStalePID(file string) error {
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read pid file: %w", err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || !isGone(pid) {
		return nil
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove stale pid file: %w", err)
	}
	return nil
}

// isGone reports whether a pid belongs to a zombie, or to a program other than the server. For a
// pid without a process it returns false: the server's own check knows that case.
func isGone(pid int) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	if stat, err := os.ReadFile(filepath.Join(proc, "stat")); err == nil {
		// "pid (comm) S ..."; comm may hold anything, so look behind its end.
		if i := bytes.LastIndexByte(stat, ')'); i >= 0 && i+2 < len(stat) && stat[i+2] == 'Z' {
			return true
		}
	}
	exe, err := os.Readlink(filepath.Join(proc, "exe"))
	if err != nil {
		return false // gone, or not ours to look at: the server's check knows both
	}
	// Older packages call the server "postmaster"; an upgrade under a running
	// one adds " (deleted)".
	name := strings.TrimSuffix(filepath.Base(exe), " (deleted)")
	return name != "postgres" && name != "postmaster"
}
