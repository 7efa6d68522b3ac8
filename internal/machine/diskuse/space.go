package diskuse

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Space is the size of a file system and the part that unprivileged writers may still use.
type Space struct {
	Device      uint64 // identifies the file system
	Total, Free int64  // bytes
	// Inodes and FreeInodes are 0 on a file system that creates inodes as needed.
	Inodes, FreeInodes int64
}

// SpaceOf returns the space of the file system that holds a folder.
func SpaceOf(dir string) (Space, error) {
	var fs unix.Statfs_t
	var self unix.Stat_t
	err := unix.Statfs(dir, &fs)
	if err == nil {
		err = unix.Stat(dir, &self)
	}
	if err != nil {
		return Space{}, fmt.Errorf("measure file system of %s: %w", dir, err)
	}
	size := int64(fs.Bsize)
	all, free := inodes(fs.Files, fs.Ffree)
	return Space{
		Device: uint64(self.Dev), //nolint:unconvert // its type differs between architectures
		Total:  int64(fs.Blocks) * size, Free: int64(fs.Bavail) * size,
		Inodes: all, FreeInodes: free,
	}, nil
}

// inodes returns the numbers of a Space for the numbers of statfs(2). A file system without a fixed
// number of inodes reports none at all, or the inodes in use and an endless number of free ones.
func inodes(files, free uint64) (all, left int64) {
	if free > files {
		return 0, 0
	}
	return int64(files), int64(free)
}

// FreeShare returns the free share of the bytes or of the inodes, the smaller one: 0 to 1.
func (s Space) FreeShare() float64 {
	free := 1.0
	if s.Total > 0 {
		free = float64(s.Free) / float64(s.Total)
	}
	if s.Inodes > 0 {
		free = min(free, float64(s.FreeInodes)/float64(s.Inodes))
	}
	return min(1, max(0, free))
}

// Share returns percent hundredths of the file system, in bytes and in inodes.
func (s Space) Share(percent int) Use {
	return Use{Bytes: s.Total / 100 * int64(percent), Inodes: s.Inodes / 100 * int64(percent)}
}

// Missing returns how much less than a reserve is left: 0 and 0 if the reserve is untouched.
func (s Space) Missing(reserve Use) Use {
	return Use{Bytes: max(0, reserve.Bytes-s.Free), Inodes: max(0, reserve.Inodes-s.FreeInodes)}
}
