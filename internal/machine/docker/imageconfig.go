package docker

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"

	"berth/activities/node"
)

// imageConfig holds the settings of an image that apply to a container unless the job replaces them, and that can keep
// the container from starting.
type imageConfig struct {
	user    string
	volumes map[string]struct{}
}

// configOf returns the configuration of an image.
func configOf(i image.InspectResponse) imageConfig {
	if i.Config == nil {
		return imageConfig{}
	}
	return imageConfig{user: i.Config.User, volumes: i.Config.Volumes}
}

// root reports whether the image's own user is root.
func (c imageConfig) root() bool {
	user, _, _ := strings.Cut(c.user, ":")
	return user == "" || user == "0" || user == "root"
}

// withoutCopies returns mounts in place of the image's volumes, into which the engine would copy the image's files. The
// container does not start, so the files are read as the image has them. For a relative volume the engine copies them
// all the same: it compares the text of the paths, and a mount must have an absolute one.
func (c imageConfig) withoutCopies() []mount.Mount {
	targets := map[string]bool{}
	for v := range c.volumes {
		targets[path.Clean(v)] = path.IsAbs(v)
	}
	delete(targets, "/") // the engine allows no mount there
	var list []mount.Mount
	for at, absolute := range targets {
		if absolute {
			list = append(list, mount.Mount{Type: mount.TypeTmpfs, Target: at})
		}
	}
	return list
}

// greatestUser is the greatest number of a user or a group without a name: the engine's own bound.
const greatestUser = 1<<31 - 1

// checkImage returns ErrBadImage for a configuration with which no engine starts a container, as far as the job does
// not replace it. It refuses nothing that might start: for other settings, such as a working folder in /proc, the
// engine's answer decides.
func checkImage(s node.ContainerSpec, c imageConfig, known node.Accounts) error {
	if s.User == "" {
		user, group, _ := strings.Cut(c.user, ":")
		group, _, _ = strings.Cut(group, ":") // the engine ignores further fields
		const neither = "USER %q of the image: %s %q is neither a name in its %s nor a number from 0 to %d: %w"
		if !names(known.Passwd, user) {
			return fmt.Errorf(neither, c.user, "user", user, "/etc/passwd", greatestUser, node.ErrBadImage)
		}
		if !names(known.Group, group) {
			return fmt.Errorf(neither, c.user, "group", group, "/etc/group", greatestUser, node.ErrBadImage)
		}
	}
	for v := range c.volumes {
		at := path.Join("/", v) // the engine accepts a relative volume, and runc takes it from the root
		if slices.ContainsFunc(s.Mounts, func(m node.Mount) bool { return path.Clean(m.Target) == at }) {
			continue
		}
		if at == "/" || inside(at, "/proc") {
			return fmt.Errorf("VOLUME %q of the image: %s cannot be a volume, allowed are folders other than / that "+
				"are not in /proc: %w", v, at, node.ErrBadImage)
		}
	}
	return nil
}

// names reports whether the engine may find a user or a group in the lines of /etc/passwd or /etc/group. It may if
// the lines are not known. The engine takes each number in its range, and others only if a line has them.
func names(lines []byte, who string) bool {
	number, err := strconv.Atoi(who)
	if who == "" || len(lines) == 0 || err == nil && number >= 0 && number <= greatestUser {
		return true
	}
	for line := range bytes.Lines(lines) {
		fields := strings.Split(strings.TrimSpace(string(line)), ":")
		if fields[0] == who || len(fields) > 2 && fields[2] == who {
			return true
		}
	}
	return false
}
