package rig

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// workshops is the folder for the files of stacks. PostgreSQL's own user must
// be able to reach them, so a test's private folder does not do.
const workshops = "/var/tmp"

// Workshop is a folder for one test run. Its lock shows later runs whether its
// owner still lives.
type Workshop struct {
	Dir  string
	lock *os.File
}

// OpenWorkshop creates a workshop and removes the folders of killed runs.
func OpenWorkshop() (*Workshop, error) {
	found, err := filepath.Glob(filepath.Join(workshops, "berth-rig-*"))
	if err != nil {
		return nil, err
	}
	for _, dir := range found {
		lock, err := lockFolder(dir)
		if err != nil {
			continue // its owner lives
		}
		if err := errors.Join(os.RemoveAll(dir), lock.Close()); err != nil {
			return nil, err
		}
	}
	dir, err := os.MkdirTemp(workshops, "berth-rig-")
	if err != nil {
		return nil, err
	}
	w := &Workshop{Dir: dir}
	if w.lock, err = lockFolder(dir); err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// Close removes the workshop.
func (w *Workshop) Close() error {
	err := os.RemoveAll(w.Dir)
	if w.lock != nil {
		err = errors.Join(err, w.lock.Close())
	}
	return err
}

// lockFolder locks a workshop, and fails while the owner lives.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
