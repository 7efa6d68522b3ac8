package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth/spec"
)

// Volumes maps the folders that jobs may read to their paths on this machine. Other
// folders cannot be read, even if a server orders it.
type Volumes map[spec.Volume]string

// private are folders that no job may read, in addition to the agent's own.
var private = []string{"/boot", "/dev", "/etc", "/proc", "/root/.ssh", "/run", "/sys", "/var/run",
	"/var/lib/containerd", "/var/lib/containers", "/var/lib/docker", "/var/lib/kubelet"}

// ParseVolumes reads the folders that an operator allows: /NAME, with the same path
// on this machine, or /NAME=/FOLDER. Semicolons separate several folders in one text.
func ParseVolumes(list []string) (Volumes, error) {
	all := Volumes{}
	err := spec.ParseVolumeOptions(list, "/FOLDER", func(v spec.Volume, dir string, mapped bool) error {
		if all[v] = dir; !mapped {
			all[v] = v.String()
		}
		return nil
	})
	return all, err
}

// Check returns every fault of the folders: each must be a folder, and neither contain nor lie in
// a folder of the system or in one of own, the agent's folders. A folder that cannot be checked
// now, as after the loss of a mount, is away and may come back.
//
// A folder on a dead file server counts as neither: other work does not need the folder, and jobs
// that read it get an error.
func (v Volumes) Check(own ...string) (away, faulty error) {
	names := slices.Sorted(maps.Keys(v))
	judged := make([]chan error, len(names))
	for i, name := range names {
		judged[i] = make(chan error, 1)
		go func() {
			_, _, err := resolve(v[name], own)
			judged[i] <- err
		}()
	}
	patience := time.After(checkPatience)
	for i, name := range names {
		select {
		case err := <-judged[i]:
			if err == nil {
				continue
			}
			err = fmt.Errorf("%s: %w", name, err)
			if _, ok := errors.AsType[syscall.Errno](err); ok {
				away = errors.Join(away, err)
			} else {
				faulty = errors.Join(faulty, err)
			}
		case <-patience:
			return away, faulty
		}
	}
	return away, faulty
}

// checkPatience is how long all folders have to answer when a program starts.
const checkPatience = 10 * time.Second

// Labels returns the labels of the machine's volumes. Volumes that cannot be opened
// now are left out and listed in away with the reasons. Volumes that do not answer in
// time are included, since jobs that read such a volume get an error. more are further
// private folders, which are not read from now on; an empty name is ignored.
func (s *Sources) Labels(ctx context.Context, more ...string) (labels map[string]string, away map[spec.Volume]error) {
	labels, away = map[string]string{}, map[spec.Volume]error{}
	ctx, cancel := context.WithTimeout(ctx, labelPatience)
	defer cancel()
	own := slices.Concat(s.own, slices.DeleteFunc(slices.Clone(more), func(dir string) bool { return dir == "" }))
	var mu sync.Mutex
	var all sync.WaitGroup
	for name, v := range s.volumes {
		v.keepOut(own)
		all.Go(func() {
			_, err := call(ctx, v, func(func()) (struct{}, error) {
				root, err := v.reach()
				if err != nil {
					return struct{}{}, err
				}
				return struct{}{}, root.Close()
			}, nil)
			mu.Lock()
			defer mu.Unlock()
			if err != nil && ctx.Err() == nil {
				away[name] = err
				return
			}
			labels[name.Label()] = spec.HasVolume
		})
	}
	all.Wait()
	return labels, away
}

// labelPatience is the time in which all folders must answer before a registration. The
// registration waits no longer.
const labelPatience = 2 * time.Second

// site is where a volume lies.
type site struct {
	dir string // as the operator wrote it

	mu  sync.Mutex
	own []string // folders of the agent's, in which it must not lie
	was string   // where its links led to the first time; "": not known yet
}

// keepOut sets the agent's own folders, in which the volume must not lie.
func (s *site) keepOut(own []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = own
}

// reach opens the folder. For each use it follows the links and checks their target,
// so that a changed link on the path leads to no other folder.
func (s *site) reach() (*os.Root, error) {
	s.mu.Lock()
	own := s.own
	s.mu.Unlock()
	dir, judged, err := resolve(s.dir, own)
	if err != nil {
		return nil, err
	}
	if err := s.stays(dir); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	opened, err := root.Stat(".")
	if err == nil && !os.SameFile(judged, opened) {
		err = errElsewhere
	}
	if err != nil {
		_ = root.Close()
		return nil, err
	}
	return root, nil
}

var errElsewhere = errors.New("its links lead elsewhere than when the agent started")

// stays fails unless the folder lies at the same place as the first time.
func (s *site) stays(dir string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.was = cmp.Or(s.was, dir)
	if dir != s.was {
		return errElsewhere
	}
	return nil
}

// resolve follows the links of a folder and judges the place of its target.
func resolve(dir string, own []string) (target string, judged os.FileInfo, err error) {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		return "", nil, fmt.Errorf("%.200q is not a clean absolute path", dir)
	}
	// Judged as it is written, too: then nothing below such a folder is looked at.
	if err := judge(dir, own); err != nil {
		return "", nil, err
	}
	if target, err = filepath.EvalSymlinks(dir); err != nil {
		return "", nil, err
	}
	if err := judge(target, own); err != nil {
		return "", nil, err
	}
	if judged, err = os.Stat(target); err != nil {
		return "", nil, err
	}
	if !judged.IsDir() {
		return "", nil, fmt.Errorf("%s is no folder", target)
	}
	// An automounted folder is not mounted by a stat of its name.
	if judged, err = os.Stat(target + "/."); err != nil {
		return "", nil, err
	}
	return target, judged, nil
}

// judge fails if dir contains, or lies in, a folder of the system or of the agent, as written or
// after its links. The path alone decides: dir need not exist.
func judge(dir string, own []string) error {
	for _, p := range slices.Concat(private, own) {
		at := []string{p}
		if target, err := filepath.EvalSymlinks(p); err == nil {
			at = append(at, target)
		}
		for _, p := range at {
			if dir == "/" || p == dir || strings.HasPrefix(p, dir+"/") || strings.HasPrefix(dir, p+"/") {
				return fmt.Errorf("%s holds, or lies in, %s: jobs read no folder of the system or of the agent", dir, p)
			}
		}
	}
	return nil
}
