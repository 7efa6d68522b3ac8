package docker

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/docker/docker/api/types/container"

	"berth/activities/node"
	"berth/internal/machine/diskuse"
)

// LayerUse walks the folder of the writable layer, if the engine or the kernel names one that this
// process can read. Otherwise the engine measures the bytes, and inodes are unknown.
func (e *execs) LayerUse(ctx context.Context, name string, enough int64) (bytes, inodes int64, err error) {
	answer, err := e.engine.api.ContainerInspect(ctx, name)
	switch {
	case err == nil && answer.Name != "/"+name: // the engine resolves prefixes of ids, too
		return 0, 0, fmt.Errorf("container %s: %w", name, node.ErrNoContainer)
	case err != nil && absent(name, err) != nil:
		return 0, 0, absent(name, err)
	case err != nil:
		return 0, 0, fmt.Errorf("measure container %s: %w", name, err)
	}
	if dir := upperDir(answer); dir != "" {
		use, err := diskuse.Tree(ctx, dir, enough)
		if err != nil {
			err = fmt.Errorf("measure container %s: %w", name, err)
		}
		return use.Bytes, use.Inodes, err
	}
	sized, _, err := e.engine.api.ContainerInspectWithRaw(ctx, answer.ID, true)
	switch {
	case err != nil:
		return 0, -1, fmt.Errorf("measure container %s: %w", name, err)
	case sized.SizeRw == nil || *sized.SizeRw < 0:
		return 0, -1, fmt.Errorf("measure container %s: the engine cannot measure its writable layer", name)
	}
	return *sized.SizeRw, -1, nil
}

// upperDir returns the folder of a container's writable layer, "" if it is unknown or cannot be
// read. Engines with graph drivers name the folder. With the image store of containerd only the
// kernel knows it, while the container runs.
func upperDir(c container.InspectResponse) string {
	dir := ""
	if g := c.GraphDriver.Data; g != nil {
		dir = g["UpperDir"]
	}
	if dir == "" && c.State != nil && c.State.Pid > 0 {
		dir = mountedUpperDir(fmt.Sprintf("/proc/%d/mountinfo", c.State.Pid))
	}
	f, err := os.Open(dir)
	if err != nil {
		return ""
	}
	_ = f.Close()
	return dir
}

// mountedUpperDir reads the writable layer of the root mount from a file in the format of
// /proc/PID/mountinfo. "" if the root is no overlay, or its layer has a relative path.
func mountedUpperDir(file string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// 36 35 0:98 / / rw,relatime - overlay overlay rw,lowerdir=...,upperdir=...,workdir=...
		mount, kind, ok := strings.Cut(lines.Text(), " - ")
		at, options := strings.Fields(mount), strings.Fields(kind)
		if !ok || len(at) < 5 || at[4] != "/" || len(options) < 3 || options[0] != "overlay" {
			continue
		}
		for option := range strings.SplitSeq(options[2], ",") {
			if dir, found := strings.CutPrefix(option, "upperdir="); found && filepath.IsAbs(dir) {
				return dir
			}
		}
	}
	return ""
}
