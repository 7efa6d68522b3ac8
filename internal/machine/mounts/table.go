package mounts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// flags are the properties of each mount. Programs in it may be run, as environments of Python often
// lie in shared folders; they gain no rights by their mode, and there are no devices. None of the flags
// limits connections to a unix socket, writes to a named pipe or locks of files.
const flags = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV

// patience bounds the wait for one removal. Unmounting the last mount of a file system may wait for
// its server.
const patience = 10 * time.Second

// probe is the name of the mount by which Check tests the abilities of this process.
const probe = ".probe"

// Table holds the mounts below one folder. Its methods may be called concurrently; no two tables may
// have the same folder.
type Table struct {
	dir string

	mu      sync.Mutex          // held while the tmpfs or a name in it changes
	leaving map[string]*removal // under way, by name
}

// New returns the table of a folder, with the mounts that an earlier process has left there. Nothing
// is mounted, and the folder need not exist.
func New(dir string) *Table { return &Table{dir: dir, leaving: map[string]*removal{}} }

// Check mounts a folder for a moment. It returns an error if this process may not mount, or if the
// kernel is older than Linux 5.12.
func (t *Table) Check() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.open(); err != nil {
		return err
	}
	defer t.close()
	own, err := os.Open(t.dir)
	if err != nil {
		return err
	}
	defer own.Close()
	at := t.Path(probe, 0)
	if err := os.MkdirAll(at, 0o700); err != nil {
		return err
	}
	err = attach(own, at)
	return errors.Join(err, unmount(at), os.Remove(at), os.Remove(filepath.Dir(at)))
}

// Path returns the path of a mount for the container engine.
func (t *Table) Path(name string, i int) string { return filepath.Join(t.dir, name, strconv.Itoa(i)) }

// Add mounts an open folder at Path(name, i), which must not exist, without the mounts below the
// folder. The caller may close the folder afterwards. Add asks no file server.
func (t *Table) Add(name string, i int, folder *os.File) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.open(); err != nil {
		return err
	}
	at := t.Path(name, i)
	if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(at, 0o700); err != nil {
		return err
	}
	return attach(folder, at)
}

// attach mounts an open folder at a path. The flags are set before the mount has a place, so no
// process ever sees it writable.
func attach(folder *os.File, at string) error {
	tree, err := unix.OpenTree(int(folder.Fd()), "",
		unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("clone the mount of a folder: %w", err)
	}
	defer unix.Close(tree)
	// Private, since a clone of a shared mount stays in its group: a file system that is mounted below
	// the shared folder later would appear here too, and would be unmounted there with this mount.
	attr := unix.MountAttr{Attr_set: flags, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("make a mount read-only: %w", err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach a mount: %w", err)
	}
	return nil
}

// Names lists the names that have mounts, or had some when a process died.
func (t *Table) Names() ([]string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ok, err := t.mounted(); err != nil || !ok {
		return nil, err
	}
	return list(t.dir)
}

// list returns the names in a folder of the tmpfs. It asks for none of them: one may be the mount of
// a dead file server.
func list(dir string) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// Remove unmounts all folders of a name. Containers that have mounted the folders keep their own
// mounts. If a dead file server holds the removal up, Remove returns an error after a while, the
// removal goes on, and a later call waits for its end.
func (t *Table) Remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience,
		fmt.Errorf("unmount the folders of %s: no answer within %s", name, patience))
	defer cancel()
	t.mu.Lock()
	r := t.leaving[name]
	if r == nil {
		r = &removal{done: make(chan struct{})}
		t.leaving[name] = r
		go t.remove(name, r)
	}
	t.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// removal is one removal of a name. err is set before done is closed.
type removal struct {
	done chan struct{}
	err  error
}

// remove unmounts the folders of a name without the lock, as that may take for ever, and then removes
// the name. Only rmdir is used: it fails on a folder with content, such as one that is still mounted.
func (t *Table) remove(name string, r *removal) {
	defer close(r.done)
	dir := filepath.Join(t.dir, name)
	folders, err := list(dir)
	if errors.Is(err, fs.ErrNotExist) {
		folders, err = nil, nil
	}
	for _, f := range folders {
		err = errors.Join(err, unmount(filepath.Join(dir, f)))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range folders {
		err = errors.Join(err, rmdir(filepath.Join(dir, f)))
	}
	r.err = errors.Join(err, rmdir(dir))
	delete(t.leaving, name)
	t.close()
}

// unmount detaches all mounts at a path; none is no error. Detaching does not wait for processes that
// use the mount.
func unmount(at string) error {
	for {
		switch err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); {
		case err == nil, errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT): // no mount, no name
			return nil
		default:
			return &fs.PathError{Op: "unmount", Path: at, Err: err}
		}
	}
}

// rmdir removes an empty folder; an absent one is no error.
func rmdir(dir string) error {
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// open mounts the tmpfs unless it is there. t.mu is held.
func (t *Table) open() error {
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return err
	}
	if ok, err := t.mounted(); err != nil || ok {
		return err
	}
	if err := unix.Mount("berth", t.dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
		"mode=0700,size=1m"); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	return nil
}

// close unmounts the tmpfs if it is empty. t.mu is held. A failure leaves an empty tmpfs, which the
// next mount uses.
func (t *Table) close() {
	if ok, err := t.mounted(); err != nil || !ok {
		return
	}
	if names, err := list(t.dir); err == nil && len(names) == 0 {
		_ = unix.Unmount(t.dir, unix.UMOUNT_NOFOLLOW)
	}
}

// mounted reports whether the tmpfs is there: the folder is on another device than its parent.
func (t *Table) mounted() (bool, error) {
	var dir, parent unix.Stat_t
	if err := unix.Lstat(t.dir, &dir); errors.Is(err, unix.ENOENT) {
		return false, nil
	} else if err != nil {
		return false, &fs.PathError{Op: "lstat", Path: t.dir, Err: err}
	}
	if err := unix.Lstat(filepath.Dir(t.dir), &parent); err != nil {
		return false, &fs.PathError{Op: "lstat", Path: filepath.Dir(t.dir), Err: err}
	}
	return dir.Dev != parent.Dev, nil
}
