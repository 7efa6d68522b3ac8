package connlimit

import (
	"fmt"
	"syscall"
)

// spareFiles is the number of open files of a server without its connections to the API:
// connections to PostgreSQL and Temporal, spooled bodies, the object store's files.
const spareFiles = 512

// fewest is the smallest number of connections that a server starts with.
const fewest = 64

// OpenFiles raises the process's limit of open files to have room for the given number of
// connections in addition to other files. It returns the number of connections with room:
// fewer than wanted if the limit cannot be raised as far. It fails if that number is too
// small for a server.
func OpenFiles(connections int) (int, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	if need := uint64(connections) + spareFiles; limit.Cur < need {
		for _, to := range []syscall.Rlimit{
			{Cur: need, Max: max(need, limit.Max)}, // above the hard limit as root only
			{Cur: limit.Max, Max: limit.Max},
		} {
			if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &to) == nil {
				limit = to
				break
			}
		}
	}
	return within(connections, limit.Cur)
}

// within returns how many of the wanted connections a limit of open files has room
// for.
func within(connections int, files uint64) (int, error) {
	switch {
	case files >= uint64(connections)+spareFiles:
		return connections, nil
	case files >= fewest+spareFiles:
		return int(files - spareFiles), nil
	}
	return 0, fmt.Errorf("open files are limited to %d, which leaves no room for the %d connections of "+
		"--max-connections: allow %d (ulimit -n, LimitNOFILE=), and %d at the least",
		files, connections, connections+spareFiles, fewest+spareFiles)
}
