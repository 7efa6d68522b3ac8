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
	return Space{
		Device: uint64(self.Dev), //nolint:unconvert // its type differs between architectures
		Total:  int64(fs.Blocks) * size, Free: int64(fs.Bavail) * size,
		Inodes: int64(fs.Files), FreeInodes: int64(fs.Ffree),
	}, nil
}

// Share returns percent hundredths of the file system, in bytes and in inodes.
func (s Space) Share(percent int) Use {
	return Use{Bytes: s.Total / 100 * int64(percent), Inodes: s.Inodes / 100 * int64(percent)}
}

// Missing returns how much less than a reserve is left: 0 and 0 if the reserve is untouched.
func (s Space) Missing(reserve Use) Use {
	return Use{Bytes: max(0, reserve.Bytes-s.Free), Inodes: max(0, reserve.Inodes-s.FreeInodes)}
}
