package fetch

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// state holds the properties of a file that distinguish its contents.
type state struct {
	mode         uint32
	size         int64
	dev, ino     uint64
	mtime, ctime time.Time
}

// kind returns the type bits of the mode, one of unix.S_IF*.
func (s state) kind() uint32   { return s.mode & unix.S_IFMT }
func (s state) isFile() bool   { return s.kind() == unix.S_IFREG }
func (s state) isFolder() bool { return s.kind() == unix.S_IFDIR }
func (s state) isLink() bool   { return s.kind() == unix.S_IFLNK }

// what describes an entry other than a file or a folder, for errors.
func (s state) what() string {
	switch s.kind() {
	case unix.S_IFIFO:
		return "a named pipe"
	case unix.S_IFSOCK:
		return "a socket"
	case unix.S_IFCHR, unix.S_IFBLK:
		return "a device"
	default:
		return "of an unknown kind"
	}
}

// version changes whenever the content does, but see settled. Its strongest part is the time of
// the inode's last change, which no program can set back. The number of a device is left out,
// since machines number devices as they like.
func (s state) version() string {
	return fmt.Sprintf("%d %d %d", s.ino, s.mtime.UnixNano(), s.ctime.UnixNano())
}

// File systems take the time of a change from a clock with coarse ticks. Two changes of a file
// within one tick may leave it with the same version.
const (
	tick       = 20 * time.Millisecond // twice the longest of Linux
	coarseTick = time.Second           // where only seconds are kept
)

// settled returns the time after which a change of the file also changes its version:
// the tick of its last change is over.
func (s state) settled() time.Time {
	if s.ctime.Nanosecond() == 0 {
		return s.ctime.Add(coarseTick)
	}
	return s.ctime.Add(tick)
}

// stateOf reads the present state of an open file, and stateAt of a name of one part
// in an open folder; links are not followed. Both ask the server of a network file
// system, since the machine's cache may be a minute old.
func stateOf(f syscall.Conn) (state, error) { return ask(f, "", unix.AT_EMPTY_PATH) }

// stateAt returns the state of an entry of an open folder, and of a link itself.
func stateAt(dir *os.File, name string) (state, error) {
	return ask(dir, name, unix.AT_SYMLINK_NOFOLLOW)
}

// ask calls statx. It asks a network file system for fresh values, not for cached ones, and
// repeats a call that a signal has interrupted.
func ask(f syscall.Conn, name string, how int) (state, error) {
	c, err := f.SyscallConn()
	if err != nil {
		return state{}, err
	}
	var x unix.Statx_t
	called := c.Control(func(fd uintptr) {
		for {
			if err = unix.Statx(int(fd), name, how|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS,
				&x); err != unix.EINTR { //nolint:errorlint // of a system call
				return
			}
		}
	})
	if called != nil {
		return state{}, called
	}
	at := func(t unix.StatxTimestamp) time.Time { return time.Unix(t.Sec, int64(t.Nsec)) }
	return state{
		mode: uint32(x.Mode), size: int64(x.Size), dev: unix.Mkdev(x.Dev_major, x.Dev_minor), ino: x.Ino,
		mtime: at(x.Mtime), ctime: at(x.Ctime),
	}, err
}

// seen converts the result of an earlier call.
func seen(info os.FileInfo) state {
	s := state{size: info.Size(), mtime: info.ModTime()}
	if x, ok := info.Sys().(*syscall.Stat_t); ok {
		s.mode, s.dev, s.ino, s.ctime = x.Mode, uint64(x.Dev), x.Ino, time.Unix(x.Ctim.Unix())
	}
	return s
}
