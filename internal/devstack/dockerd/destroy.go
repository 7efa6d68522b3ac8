package dockerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// Destroy ends the machine of a folder for good, whichever process started it and however that process
// ended: it kills all processes of the engine and of its containers, removes bridge, rules, mounts and
// cgroups, and deletes images and containers. The engine's log and configuration stay in the folder. A
// folder without a machine is no error. Destroy waits for a process that holds the machine, until ctx ends.
func Destroy(ctx context.Context, dir string) error {
	m, err := newMachine(dir)
	if err != nil {
		return err
	}
	if _, err := os.Stat(m.dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	d := &Daemon{machine: m}
	for {
		if d.lock, err = lockMachine(m); err == nil {
			break
		}
		if !errors.Is(err, errHeld) {
			return fmt.Errorf("destroy dockerd in %s: %w", m.dir, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("destroy dockerd in %s: %w", m.dir, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	err = d.powerOff(ctx)
	if err == nil {
		err = os.RemoveAll(m.data())
	}
	if err = errors.Join(err, d.unlock()); err != nil {
		return fmt.Errorf("destroy dockerd in %s: %w", m.dir, err)
	}
	return nil
}
