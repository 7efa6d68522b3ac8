package rig

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"github.com/docker/docker/client"
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
		if err := errors.Join(removeStacks(dir), os.RemoveAll(dir), lock.Close()); err != nil {
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

// removeStacks removes all that the stacks of a killed run left on the host's own engine. Machines with engines in
// memory have joined, too, so a host without an engine is no error.
func removeStacks(workshop string) error {
	stacks, err := filepath.Glob(filepath.Join(workshop, "s-*"))
	for _, s := range stacks {
		if left := removeLeft(context.Background(), s); left != nil && !client.IsErrConnectionFailed(left) {
			err = errors.Join(err, left)
		}
	}
	return err
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
