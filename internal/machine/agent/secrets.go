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

	"berth"
	"berth/activities/node"
)

// vaultDir is where secrets lie as files while their containers live: a folder
// in memory, one below it for each rank.
//
//	<tmpfs>/berth-agent-<hash of the state folder>/<container>/<name>
//
// Nothing of it ever reaches a disk of the machine. A container sees its own
// folder alone, at /run/secrets, and cannot write there. The folder of all is
// there while one of them is.
type vaultDir struct {
	dir   string
	fault error // why there is none
	mu    *sync.Mutex
}

// inMemory are the folders that Linux machines keep in memory.
var inMemory = []string{"/run", "/dev/shm"}

// openVaultDir looks for a place. A machine without one still does all work that
// needs no files of secrets.
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

// ownFolder makes a folder, or finds it as this user's alone: in a place where
// all may write, somebody may have been there first.
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

// put writes a rank's secrets and returns their folder. Whatever user the
// container runs as reads them; on the host nobody gets past the folder above.
func (v vaultDir) put(name string, secrets []berth.SecretValue) (string, error) {
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

// withheld is the end of a rank whose secrets the server could not give.
func (r *member) withheld() *berth.Exit {
	w := r.claim.Withheld
	if w == nil {
		return nil
	}
	cause := berth.CauseSecretUnavailable
	if w.Missing {
		cause = berth.CauseSecretMissing
	}
	x := notStarted(cause, w.Message)
	return &x
}

// addSecrets gives the container what its job names, as the job asks for it.
func (r *member) addSecrets(spec *node.ContainerSpec) error {
	as := r.claim.Spec.SecretsAs
	if len(r.claim.Secrets) == 0 {
		return nil
	}
	if as != berth.SecretsFile {
		for _, s := range r.claim.Secrets {
			spec.Env[s.Name] = string(s.Value)
		}
	}
	if as != berth.SecretsEnv {
		dir, err := r.sup.vault.put(r.name(), r.claim.Secrets)
		if err != nil {
			return err
		}
		spec.Mounts = append(spec.Mounts, node.Mount{Host: dir, Target: berth.SecretsPath, ReadOnly: true})
	}
	return nil
}

// forgetSecrets removes the files of a container that has ended.
func (r *member) forgetSecrets() {
	r.claim.Secrets, r.claim.InputLogins, r.claim.ImageLogin = nil, nil, nil
	if err := r.sup.vault.remove(r.name()); err != nil {
		r.log.Error("cannot remove secret files, will retry", "err", err)
	}
}

// login is what the image is pulled with; nil: as anybody.
func (r *member) login() *node.RegistryAuth {
	l := r.claim.ImageLogin
	if l == nil {
		return nil
	}
	return &node.RegistryAuth{Username: string(l.Username), Password: string(l.Password)}
}
