package diskuse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// Use is the disk space of files.
type Use struct {
	Bytes  int64 // allocated
	Inodes int64 // -1 in an answer of a runtime: unknown
}

// Plus returns the sum of both.
func (u Use) Plus(o Use) Use {
	return Use{Bytes: u.Bytes + o.Bytes, Inodes: u.Inodes + o.Inodes}
}

// maxDepth bounds the levels of folders that Tree enters: each level holds a file descriptor. The
// path of a file that deep can hardly be named in one system call.
const maxDepth = 512

// ErrTooDeep reports folders that are nested too deep to be measured.
var ErrTooDeep = fmt.Errorf("folders are nested more than %d levels deep", maxDepth)

// names is the number of names that Tree reads from a folder at a time.
const names = 512

// blockSize is the unit of a file's allocated blocks in stat(2), on every file system.
const blockSize = 512

// Tree returns the use of a folder with all that is below it on the same file system. A file with
// several links counts once if all its links are in the folder. Tree stops early once the use is
// greater than enough bytes; 0: never. After an error, also that of ctx, the result is a lower
// bound. A missing folder uses nothing.
func Tree(ctx context.Context, dir string, enough int64) (Use, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return Use{}, nil
	}
	if err != nil {
		return Use{}, fmt.Errorf("measure folder %s: %w", dir, err)
	}
	t := tree{ctx: ctx, enough: enough}
	var self unix.Stat_t
	if err := unix.Fstat(fd, &self); err != nil {
		_ = unix.Close(fd)
		return Use{}, fmt.Errorf("measure folder %s: %w", dir, err)
	}
	t.device = uint64(self.Dev) //nolint:unconvert // its type differs between architectures
	t.add(&self)
	t.walk(os.NewFile(uintptr(fd), dir), 1)
	use := Use{Bytes: int64(math.Round(t.bytes)), Inodes: int64(math.Round(t.inodes))} // of sums of shares
	if t.err != nil {
		return use, fmt.Errorf("measure folder %s: %w", dir, t.err)
	}
	return use, nil
}

// tree is one measurement. Each link of a file adds its share of the file, so that no table of
// the files with several links is needed.
type tree struct {
	ctx    context.Context
	enough int64
	device uint64

	bytes, inodes float64
	err           error // the first one
}

// add counts a link of a file.
func (t *tree) add(s *unix.Stat_t) {
	links := 1.0
	if s.Mode&unix.S_IFMT != unix.S_IFDIR && s.Nlink > 1 {
		links = float64(s.Nlink)
	}
	t.bytes += float64(s.Blocks*blockSize) / links
	t.inodes += 1 / links
}

// over reports whether the measurement has ended early.
func (t *tree) over() bool {
	if err := t.ctx.Err(); err != nil {
		t.fail(err)
		return true
	}
	return t.enough > 0 && t.bytes > float64(t.enough)
}

// fail notes an error. A file that has disappeared meanwhile is none.
func (t *tree) fail(err error) {
	if t.err == nil && err != nil && !errors.Is(err, unix.ENOENT) {
		t.err = err
	}
}

// walk counts the content of a folder, and closes the folder.
func (t *tree) walk(folder *os.File, depth int) {
	defer folder.Close()
	for !t.over() {
		list, err := folder.Readdirnames(names)
		for _, name := range list {
			t.entry(int(folder.Fd()), name, depth)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				t.fail(err)
			}
			return
		}
	}
}

// entry counts one name of a folder, and the content if it is a folder itself.
func (t *tree) entry(folder int, name string, depth int) {
	var s unix.Stat_t
	if err := unix.Fstatat(folder, name, &s, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		t.fail(err)
		return
	}
	if uint64(s.Dev) != t.device { //nolint:unconvert // as above
		return
	}
	t.add(&s)
	if s.Mode&unix.S_IFMT != unix.S_IFDIR || t.over() {
		return
	}
	if depth == maxDepth {
		t.fail(ErrTooDeep)
		return
	}
	fd, err := unix.Openat(folder, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP): // replaced meanwhile
	case err != nil:
		t.fail(err)
	default:
		t.walk(os.NewFile(uintptr(fd), name), depth+1)
	}
}
