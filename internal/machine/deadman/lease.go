package deadman

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Dir is the folder of the fence within an agent's state folder:
//
//	lease.json   written by the agent, read by the deadman
//	pulse.json   written by the deadman, read by the agent
//	lock         held by the one deadman of this folder
//	agent        held by the agent, shared; free: no agent needs an idle deadman
func Dir(state string) string { return filepath.Join(state, "fence") }

// Lease is the agent's order to the deadman: how long the machine may be trusted, and which
// members to end after that.
type Lease struct {
	Boot  string        `json:"boot"`  // the kernel's boot id
	Sent  Instant       `json:"sent"`  // when the last sync that the control plane took was sent
	Fence time.Duration `json:"fence"` // nanoseconds from then to the end
	Seq   int64         `json:"seq"`   // grows with each list of members
	Ranks []Rank        `json:"ranks,omitempty"`
}

// Rank is the entry of one member: a container that must not outlive the lease.
type Rank struct {
	Name      string        `json:"name"`      // the container's, for people
	Container string        `json:"container"` // its id: 64 hexadecimal digits
	Grace     time.Duration `json:"grace"`     // nanoseconds from SIGTERM to SIGKILL
	Gate      string        `json:"gate"`      // a folder that the container mounts
}

// Age is how long ago the lease was confirmed.
func (l Lease) Age(now Instant) time.Duration { return now.Sub(l.Sent) }

// check refuses a lease that no agent of this boot can have written.
func (l Lease) check(boot string, now Instant) error {
	if l.Boot != boot {
		return nil // its content does not matter
	}
	switch {
	case l.Sent > now:
		return fmt.Errorf("sent %s from now", l.Sent.Sub(now))
	case l.Fence <= 0:
		return fmt.Errorf("a fence time of %s", l.Fence)
	}
	for _, r := range l.Ranks {
		if !isContainerID(r.Container) {
			return fmt.Errorf("rank %s: %q is no id of a container", r.Name, r.Container)
		}
	}
	return nil
}

// isContainerID reports whether s has the form of a container engine's id: 64 lower-case
// hexadecimal digits. Shorter names could match the cgroups of other processes.
func isContainerID(s string) bool {
	if len(s) != 64 {
		return false
	}
	for _, c := range s {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// WriteLease replaces the lease file in dir at once.
func WriteLease(dir string, l Lease) error { return replace(filepath.Join(dir, "lease.json"), l) }

// ReadLease returns the lease in dir, or os.ErrNotExist for a folder without a lease.
func ReadLease(dir string) (Lease, error) {
	var l Lease
	return l, readJSON(filepath.Join(dir, "lease.json"), &l)
}

// readJSON decodes a file, and names the file as damaged if its content does not decode.
func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s is damaged: %w", path, err)
	}
	return nil
}

// replace writes a file so that a reader sees the old one or the new one. It
// need not survive a power cut: neither do containers.
func replace(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
