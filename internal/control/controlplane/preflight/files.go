package preflight

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth/internal/control/controlplane"
)

// files examines the files of the settings that no other check reads: the providers of cloud machines
// and the file of the first admin token. The file of the token need not exist: the first start creates
// it, so its folder must be writable then.
func (r *report) files() {
	if path := r.Config.CloudFile; path != "" {
		if errs := split(controlplane.CheckClouds(path)); len(errs) > 0 {
			for _, err := range errs {
				r.add("files", Fault, "", "%v", err)
			}
		} else {
			r.add("files", OK, "", "cloud: the providers in %s are valid", path)
		}
	}
	path := r.Config.AdminTokenFile
	if path == "" || !filepath.IsAbs(path) { // a relative path is a fault of the settings
		return
	}
	_, err := os.Stat(path)
	switch {
	case err == nil:
		if r.readable("files", "admin-token-file", path) {
			r.add("files", OK, "", "admin-token-file: %s holds the first admin token", path)
		}
	case !errors.Is(err, fs.ErrNotExist):
		r.add("files", Fault, "", "admin-token-file: %v", err)
	default:
		r.writable("files", "admin-token-file", filepath.Dir(path), "the first start writes "+path)
	}
}

// writable adds a finding about a folder in which berthd creates files. It asks the kernel for the
// rights of this process and creates nothing.
func (r *report) writable(check, setting, dir, purpose string) {
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		r.add(check, Fault, "create the folder and give it to the user of berthd", "%s: cannot write in %s: %v",
			setting, dir, err)
		return
	}
	r.add(check, OK, "", "%s: %s", setting, purpose)
}
