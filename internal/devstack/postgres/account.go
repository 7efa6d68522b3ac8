package postgres

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the user the server runs as.
type account struct {
	name     string
	uid, gid uint32
	drop     bool // we are root and become this user; the server refuses root
}

// accountFor returns the user for a cluster with a new or an existing data folder: the
// current user, or for root the folder's owner, else postgres, else the unprivileged user
// of every system.
func accountFor(dataDir string) (account, error) {
	if uid := os.Geteuid(); uid != 0 {
		return account{name: "the current user", uid: uint32(uid), gid: uint32(os.Getegid())}, nil
	}
	if info, err := os.Stat(dataDir); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
			return account{name: nameOf(st.Uid), uid: st.Uid, gid: st.Gid, drop: true}, nil
		}
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return account{}, fmt.Errorf("user %s: uid %q: %w", name, u.Uid, err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return account{}, fmt.Errorf("user %s: gid %q: %w", name, u.Gid, err)
		}
		return account{name: name, uid: uint32(uid), gid: uint32(gid), drop: true}, nil
	}
	return account{}, fmt.Errorf("PostgreSQL refuses to run as root, and there is neither a user postgres nor " +
		"nobody to run it as")
}

// nameOf returns the name of a user, or the number of an unnamed one.
func nameOf(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return "uid " + id
}

// ensureDir creates dir and its missing parents, and checks that the account may enter all
// of the folders.
func (a account) ensureDir(dir string) error {
	if err := mkdirOpen(dir); err != nil {
		return err
	}
	if !a.drop {
		return nil
	}
	for d := dir; ; d = filepath.Dir(d) {
		if err := a.checkEnter(d); err != nil {
			return err
		}
		if d == "/" {
			return nil
		}
	}
}

// mkdirOpen is MkdirAll, except that new folders are open to all users regardless of the umask:
// the server's user has to pass through the folders.
func mkdirOpen(dir string) error {
	err := os.Mkdir(dir, 0o755)
	switch {
	case err == nil:
		return os.Chmod(dir, 0o755)
	case errors.Is(err, os.ErrExist):
		return nil
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	if err := mkdirOpen(filepath.Dir(dir)); err != nil {
		return err
	}
	return mkdirOpen(dir)
}

// checkEnter returns an error if the account may not enter the folder. The error names the
// folder.
func (a account) checkEnter(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	need := os.FileMode(0o001)
	switch {
	case st.Uid == a.uid:
		need = 0o100
	case st.Gid == a.gid:
		need = 0o010
	}
	if info.Mode().Perm()&need == 0 {
		return fmt.Errorf("user %s, which the server runs as, may not enter %s (mode %04o): choose a folder below "+
			"another path, such as /var/lib/berth",
			a.name, dir, info.Mode().Perm())
	}
	return nil
}

// own gives path to the account.
func (a account) own(path string) error {
	if !a.drop {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// sysProcAttr puts a child into its own process group, so that Ctrl-C reaches this process first,
// which stops the child in order. The child receives death if the thread that started it dies.
func (a account) sysProcAttr(death syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: death}
	if a.drop {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attr
}
