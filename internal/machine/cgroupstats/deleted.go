package cgroupstats

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxOpenFiles bounds the open files that Deleted looks at.
const maxOpenFiles = 1 << 18

// Deleted returns the allocated bytes and the number of the files that processes of the container
// hold open for writing and that have lost their names. Such a file uses disk space and is in no
// folder. Files that a process only reads are not counted: they may belong to other jobs, in a volume.
// Deleted counts files of the container's root and of the given devices alone: a file in memory
// has no name either. The host shows open files to root only; for others the result is 0, as it is
// on a kernel that refuses statx(2). After the end of ctx the result is a lower bound.
func (g Gauge) Deleted(ctx context.Context, devices ...uint64) (bytes, files int64) {
	d := deleted{ctx: ctx, seen: map[openFile]bool{}}
	for _, pid := range g.pids() {
		if d.over() {
			break
		}
		dir := filepath.Join(g.proc, strconv.Itoa(pid))
		wanted := map[uint64]bool{}
		for _, device := range devices {
			wanted[device] = true
		}
		if s, ok := cachedStat(unix.AT_FDCWD, filepath.Join(dir, "root")); ok {
			wanted[unix.Mkdev(s.Dev_major, s.Dev_minor)] = true
		}
		d.process(dir, wanted)
	}
	return d.bytes, d.files
}

// openFile identifies a file.
type openFile struct{ device, inode uint64 }

// deleted is one run of Gauge.Deleted.
type deleted struct {
	ctx          context.Context
	seen         map[openFile]bool // the counted files
	looks        int
	bytes, files int64
}

// over reports whether no further file is to be looked at.
func (d *deleted) over() bool { return d.looks >= maxOpenFiles || d.ctx.Err() != nil }

// process counts the files of one process, whose folder in /proc is dir, on the wanted devices.
func (d *deleted) process(dir string, wanted map[uint64]bool) {
	open, err := os.Open(filepath.Join(dir, "fd"))
	if err != nil {
		return // the process has ended
	}
	defer open.Close()
	for {
		names, err := open.Readdirnames(512)
		for _, name := range names {
			if d.over() {
				return
			}
			d.looks++
			s, ok := cachedStat(int(open.Fd()), name)
			if !ok || s.Nlink != 0 || s.Mode&unix.S_IFMT != unix.S_IFREG {
				continue
			}
			f := openFile{unix.Mkdev(s.Dev_major, s.Dev_minor), s.Ino}
			if wanted[f.device] && !d.seen[f] && writable(filepath.Join(dir, "fdinfo", name)) {
				d.seen[f] = true
				d.bytes, d.files = d.bytes+int64(s.Blocks)*512, d.files+1
			}
		}
		if err != nil {
			return
		}
	}
}

// cachedStat returns what the kernel knows of a file, whose name is relative to an open folder. It
// does not ask the server of a network or FUSE file system, which may never answer. false if the
// file has gone, or the kernel gives no answer.
func cachedStat(folder int, name string) (s unix.Statx_t, ok bool) {
	const need = unix.STATX_TYPE | unix.STATX_NLINK | unix.STATX_INO | unix.STATX_BLOCKS
	err := unix.Statx(folder, name, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, need, &s)
	return s, err == nil && s.Mask&need == need
}

// writable reports whether a file is open for writing, by its entry in /proc/PID/fdinfo.
func writable(info string) bool {
	b, err := os.ReadFile(info)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if octal, found := strings.CutPrefix(line, "flags:"); found {
			flags, err := strconv.ParseUint(strings.TrimSpace(octal), 8, 64)
			return err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY
		}
	}
	return false
}
