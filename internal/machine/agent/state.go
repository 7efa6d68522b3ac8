package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"berth"
)

// state is the agent's folder. One process has it at a time:
//
//	lock              held as long as the process lives
//	credential.json   the machine's name and token, mode 0600
//	ranks/            one folder for each member's container
//	cache/            code and inputs of jobs, by content; see cache
//	watermark.json    the highest sign of the database's age; see watermark
//	images.json       the images that containers here have used; see images
//	fence/            of the deadman; see deadman.Dir
type state struct {
	dir  string
	lock *os.File
}

// credential is the machine's identity. The server issues it once, when the machine joins.
type credential struct {
	Machine berth.MachineID `json:"machine"`
	Token   string          `json:"token"`
	Cluster string          `json:"cluster"`
}

// openState creates the folder if necessary and locks it: two agents with one identity would end
// each other's sessions. The lock lives until close, or until the process ends.
func openState(dir string) (*state, error) {
	// Other users of the host must not look inside: members' folders are open to any
	// user that their containers run as.
	if err := os.MkdirAll(filepath.Join(dir, "ranks"), 0o700); err != nil {
		return nil, fmt.Errorf("make state folder: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("close state folder to others: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock state folder: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("state folder %s is in use by another agent: %w", dir, err)
	}
	return &state{dir, lock}, nil
}

// Close gives the folder back. It is unlocked first: a program that is being
// started at this moment has a copy of the descriptor, and so the lock, until it
// is executed.
func (s *state) Close() error {
	err := syscall.Flock(int(s.lock.Fd()), syscall.LOCK_UN)
	return errors.Join(err, s.lock.Close())
}

// credentialPath is the file that makes the folder this machine's.
func (s *state) credentialPath() string { return filepath.Join(s.dir, "credential.json") }

// credential returns the stored credential; nil: the machine has not joined.
func (s *state) credential() (*credential, error) {
	b, err := os.ReadFile(s.credentialPath())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read credential: %w", err)
	}
	var c credential
	if err := json.Unmarshal(b, &c); err != nil || c.Token == "" {
		return nil, fmt.Errorf("credential.json in %s is damaged (%v): remove it and join again", s.dir, err)
	}
	return &c, nil
}

// storeCredential replaces the stored credential.
func (s *state) storeCredential(c credential) error {
	if err := writeJSON(s.credentialPath(), c); err != nil {
		return fmt.Errorf("store credential: %w", err)
	}
	return nil
}

// writeJSON replaces a file at once, readable by its owner alone.
func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return writeFile(path, b)
}

// writeFile replaces a file as a whole.
func writeFile(path string, b []byte) error {
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
