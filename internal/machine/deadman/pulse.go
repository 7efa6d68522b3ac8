package deadman

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// State is the present activity of the deadman; see the package's documentation.
type State string

// The states, in the order of getting worse.
const (
	Idle     State = "idle"
	Watching State = "watching"
	Stopping State = "stopping"
	Killing  State = "killing"
	Gone     State = "gone"
)

// Pulse is the deadman's sign of life.
type Pulse struct {
	PID   int     `json:"pid"`
	Boot  string  `json:"boot"`
	At    Instant `json:"at"`
	State State   `json:"state"`
	Seq   int64   `json:"seq"` // of the lease that it goes by; 0: none
}

// MaxBeat is how old a pulse may be. A process that is frozen, or gets no time
// to run, does not count as one that will kill in time.
const MaxBeat = 5 * time.Second

// Answer returns the pulse of the deadman that watches dir; an error says why
// none can be relied on.
func Answer(dir string) (Pulse, error) {
	var p Pulse
	err := readJSON(filepath.Join(dir, "pulse.json"), &p)
	if errors.Is(err, os.ErrNotExist) {
		return p, fmt.Errorf("no berth-deadman has watched %s yet", dir)
	}
	if err != nil {
		return p, err
	}
	boot, err := BootID()
	if err != nil {
		return p, err
	}
	switch age := Now().Sub(p.At); {
	case p.Boot != boot:
		return p, fmt.Errorf("berth-deadman has not watched %s since the machine started", dir)
	case age > MaxBeat || age < 0:
		return p, fmt.Errorf("berth-deadman (process %d) has not beaten for %s; %s is the limit", p.PID,
			age.Round(time.Second), MaxBeat)
	}
	free, err := lockFree(filepath.Join(dir, "lock"))
	if err != nil {
		return p, err
	}
	if free {
		return p, fmt.Errorf("berth-deadman (process %d) has ended: nobody holds the lock of %s", p.PID, dir)
	}
	return p, nil
}

// Hold marks dir as an agent's, until the file is closed.
func Hold(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the fence's folder: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "agent"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("hold the fence's folder: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("hold the fence's folder: %w", err)
	}
	return f, nil
}

// lockFree reports whether no process holds the lock on a file, which must exist.
func lockFree(path string) (bool, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	defer f.Close() // which gives the lock back
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
