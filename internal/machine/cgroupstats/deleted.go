package cgroupstats

import (
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxOpenFiles bounds the open files that Deleted looks at.
const maxOpenFiles = 1 << 18

// Deleted returns the allocated bytes and the number of the files that processes of the container
// hold open and that have no name any more. Such a file uses disk space and is in no folder.
// Deleted counts files of the container's root and of the given devices alone: a file in memory
// has no name either. The host shows open files to root only; for others the result is 0.
func (g Gauge) Deleted(devices ...uint64) (bytes, files int64) {
	type file struct{ device, inode uint64 }
	seen := map[file]bool{}
	looks := 0
	for _, pid := range g.pids() {
		dir := filepath.Join(g.proc, strconv.Itoa(pid))
		wanted := map[uint64]bool{}
		for _, d := range devices {
			wanted[d] = true
		}
		var s unix.Stat_t
		if unix.Stat(filepath.Join(dir, "root"), &s) == nil {
			wanted[uint64(s.Dev)] = true //nolint:unconvert // its type differs between architectures
		}
		open, err := os.Open(filepath.Join(dir, "fd"))
		if err != nil {
			continue // the process has ended
		}
		for looks < maxOpenFiles {
			names, err := open.Readdirnames(512)
			for _, name := range names {
				looks++
				err := unix.Fstatat(int(open.Fd()), name, &s, 0)
				if err != nil || s.Nlink != 0 || s.Mode&unix.S_IFMT != unix.S_IFREG {
					continue
				}
				f := file{uint64(s.Dev), s.Ino} //nolint:unconvert // as above
				if wanted[f.device] && !seen[f] {
					seen[f] = true
					bytes, files = bytes+s.Blocks*512, files+1
				}
			}
			if err != nil {
				break
			}
		}
		_ = open.Close()
	}
	return bytes, files
}
