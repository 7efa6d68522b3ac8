package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/spec"
)

// vaultDir holds secrets as files while their containers live: a folder in memory, with one
// subfolder for each member.
//
//	<tmpfs>/berth-agent-<hash of the state folder>/<container>/<name>
//
// Secrets never reach a disk of the machine. A container sees only its own folder, at
// /run/secrets, and cannot write to it. The outer folder is removed with its last subfolder.
type vaultDir struct {
	dir   string
	fault error // the reason for an empty dir
	mu    *sync.Mutex
}

// inMemory are the folders that Linux machines keep in memory.
var inMemory = []string{"/run", "/dev/shm"}

// openVaultDir looks for a place. A machine without one still runs all jobs that need no
// files of secrets.
func openVaultDir(state string, places []string) vaultDir {
	sum := sha256.Sum256([]byte(state))
	v := vaultDir{fault: errors.New("no folder in memory was found"), mu: &sync.Mutex{}}
	for _, place := range places {
		var fs unix.Statfs_t
		if err := unix.Statfs(place, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.RAMFS_MAGIC {
			continue
		}
		dir := filepath.Join(place, "berth-agent-"+hex.EncodeToString(sum[:8]))
		if v.fault = ownFolder(dir); v.fault == nil {
			v.dir = dir
			_ = os.Remove(dir) // unless an earlier process has left something there
			return v
		}
	}
	return v
}

// ownFolder creates a folder, or accepts an existing one that belongs to this user alone: in a
// folder writable for all, another user may have created the folder first.
func ownFolder(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if err == nil || !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || info.Mode().Perm() != 0o700 || !ok || int(owner.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is not this agent's own: remove it", dir)
	}
	return nil
}

// put writes a member's secrets and returns their folder. Any user of the container can
// read them. Other users of the host cannot pass the folder above.
func (v vaultDir) put(name string, secrets []spec.SecretValue) (string, error) {
	if v.dir == "" {
		return "", fmt.Errorf("this machine cannot keep secrets in memory: %w", v.fault)
	}
	if err := v.remove(name); err != nil {
		return "", err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if err := ownFolder(v.dir); err != nil {
		return "", err
	}
	dir := filepath.Join(v.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	for _, s := range secrets {
		at := filepath.Join(dir, s.Name)
		if err := os.WriteFile(at, []byte(s.Value), 0o400); err != nil {
			return "", err
		}
		if err := os.Chmod(at, 0o444); err != nil {
			return "", err
		}
	}
	return dir, os.Chmod(dir, 0o755)
}

// remove removes a container's secrets. It succeeds where none exist.
func (v vaultDir) remove(name string) error {
	if v.dir == "" {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	err := os.RemoveAll(filepath.Join(v.dir, name))
	_ = os.Remove(v.dir) // if that was the last
	return err
}
