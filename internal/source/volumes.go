package source

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth"
)

// Volumes says where the folders that jobs may read lie on this machine. What is
// not in it cannot be read, whatever a server says.
type Volumes map[berth.Volume]string

// private are folders of which no job may read anything, beside the agent's own.
var private = []string{"/boot", "/dev", "/etc", "/proc", "/root/.ssh", "/run", "/sys", "/var/run", "/var/lib/containerd", "/var/lib/docker"}

// ParseVolumes reads what an operator allows: /NAME, which lies there on this
// machine too, or /NAME=/FOLDER; several in one text are parted by semicolons.
func ParseVolumes(list []string) (Volumes, error) {
	all := Volumes{}
	var faults []error
	for text := range strings.SplitSeq(strings.Join(list, ";"), ";") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		name, dir, mapped := strings.Cut(text, "=")
		if !mapped {
			dir = name
		}
		v, err := berth.ParseVolume(name)
		switch {
		case err != nil:
			faults = append(faults, fmt.Errorf("%w; write /NAME or /NAME=/FOLDER", err))
		case all[v] != "":
			faults = append(faults, fmt.Errorf("%s is there twice", v))
		default:
			all[v] = dir
		}
	}
	return all, errors.Join(faults...)
}

// Labels are those by which a machine tells which volumes it has.
func (v Volumes) Labels() map[string]string {
	labels := map[string]string{}
	for name := range v {
		labels[name.Label()] = berth.HasVolume
	}
	return labels
}

// Check returns every fault of the folders: each must be one, and neither hold
// nor lie in a folder of the system or in one of own, which are the agent's.
//
// What a dead file server leaves unanswered for a while is no fault: other work
// can do without that folder, and who reads it is told.
func (v Volumes) Check(own ...string) error {
	names := slices.Sorted(maps.Keys(v))
	judged := make([]chan error, len(names))
	for i, name := range names {
		judged[i] = make(chan error, 1)
		go func() {
			_, err := resolve(v[name], own)
			judged[i] <- err
		}()
	}
	patience := time.After(checkPatience)
	var faults []error
	for i, name := range names {
		select {
		case err := <-judged[i]:
			if err != nil {
				faults = append(faults, fmt.Errorf("%s: %w", name, err))
			}
		case <-patience:
			return errors.Join(faults...)
		}
	}
	return errors.Join(faults...)
}

// checkPatience is how long all folders have to answer when a program starts.
const checkPatience = 10 * time.Second

// resolve follows the links of a folder and judges where it lies. It is asked
// again for each use: the links may lead elsewhere by then.
func resolve(dir string, own []string) (string, error) {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		return "", fmt.Errorf("%.200q is not a clean absolute path", dir)
	}
	// Judged as it is written, too: then nothing below such a folder is looked at.
	if err := judge(dir, own); err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	if err := judge(real, own); err != nil {
		return "", err
	}
	if info, err := os.Stat(real); err != nil {
		return "", err
	} else if !info.IsDir() {
		return "", fmt.Errorf("%s is no folder", real)
	}
	return real, nil
}

func judge(dir string, own []string) error {
	for _, p := range slices.Concat(private, own) {
		at := []string{p}
		if real, err := filepath.EvalSymlinks(p); err == nil {
			at = append(at, real)
		}
		for _, p := range at {
			if dir == "/" || p == dir || strings.HasPrefix(p, dir+"/") || strings.HasPrefix(dir, p+"/") {
				return fmt.Errorf("%s holds, or lies in, %s: jobs read no folder of the system or of the agent", dir, p)
			}
		}
	}
	return nil
}
