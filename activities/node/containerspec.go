package node

import (
	"path/filepath"

	"berth"
	"berth/spec"
)

// Validate returns an error for a container that the security rules forbid or that no
// engine can create; every Runtime's Create calls Validate first. A missing limit is
// refused, since an engine would read it as "unlimited".
func (s *ContainerSpec) Validate() error {
	switch {
	// The name is the fence against a second container; see Runtime.
	case s.Name == "":
		return berth.Errorf(berth.CodeInvalid, "container without a name")
	case s.Image == "":
		return berth.Errorf(berth.CodeInvalid, "container %s has no image", s.Name)
	case s.CPUMilli <= 0:
		return berth.Errorf(berth.CodeInvalid,
			"container %s has no CPU limit: cpu_milli is %d, allowed are 1 and more", s.Name, s.CPUMilli)
	case s.MemoryMiB <= 0:
		return berth.Errorf(berth.CodeInvalid,
			"container %s has no memory limit: memory_mib is %d, allowed are 1 and more", s.Name, s.MemoryMiB)
	case s.ReadOnlyRoot != (s.TmpMiB > 0):
		return berth.Errorf(berth.CodeInvalid, "container %s has a /tmp of %d MiB and read-only root %v: a read-only "+
			"root needs a /tmp of at least 1 MiB, and only a read-only root has one", s.Name, s.TmpMiB, s.ReadOnlyRoot)
	case s.User != "" && !isUser(s.User):
		return berth.Errorf(berth.CodeInvalid, "container %s has the user %q: allowed are UID:GID, and none for the "+
			"user of the image", s.Name, s.User)
	case s.ShmMiB < 0 || s.PidsLimit < 0:
		return berth.Errorf(berth.CodeInvalid, "container %s has a negative limit: shm_mib %d, pids_limit %d", s.Name,
			s.ShmMiB, s.PidsLimit)
	}
	for _, m := range s.Mounts {
		if !filepath.IsAbs(m.Host) || !filepath.IsAbs(m.Target) {
			return berth.Errorf(berth.CodeInvalid, "container %s mounts %q at %q: both must be absolute", s.Name,
				m.Host, m.Target)
		}
	}
	return nil
}

// isUser reports whether a text is UID:GID. A name, or a number without a group, would be looked up in the image.
func isUser(text string) bool {
	u, ok := spec.ParseUserID(text)
	return ok && u.String() == text
}
