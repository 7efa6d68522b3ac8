package spec

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// The values of Job.User besides numbers.
const (
	UserTenant = "tenant" // the first number of the tenant's range
	UserImage  = "image"  // the user that the image names; root if it names none
)

// MaxUserID is the greatest number of a user or a group. Some programs read greater numbers as
// negative ones.
const MaxUserID = 1<<31 - 2

// DefaultTmpSize is the size of /tmp under a read-only root without tmp_size.
const DefaultTmpSize MiB = 64

// UserID is the user and the group of a container's processes, as the kernel numbers them.
type UserID struct{ UID, GID int }

// String returns UID:GID.
func (u UserID) String() string { return fmt.Sprintf("%d:%d", u.UID, u.GID) }

// ParseUserID reads UID or UID:GID. Without a GID, the group has the number of the user. ok is
// false for anything else, such as a name or a number above MaxUserID.
func ParseUserID(text string) (u UserID, ok bool) {
	uid, gid, grouped := strings.Cut(text, ":")
	if !grouped {
		gid = uid
	}
	if u.UID, ok = userNumber(uid); ok {
		u.GID, ok = userNumber(gid)
	}
	return u, ok
}

// userNumber reads a decimal number in its one spelling.
func userNumber(text string) (int, bool) {
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 0 && n <= MaxUserID && strconv.Itoa(n) == text
}

// UserRange is a range of numbers of users and groups. The zero value is empty.
type UserRange struct {
	First int `json:"first"`
	Last  int `json:"last"`
}

// IsZero reports whether the range is empty.
func (r UserRange) IsZero() bool { return r == UserRange{} }

// User returns the user of containers without a choice of their own: the first number of the range.
func (r UserRange) User() UserID { return UserID{r.First, r.First} }

// Holds reports whether user and group lie in the range.
func (r UserRange) Holds(u UserID) bool {
	in := func(n int) bool { return n >= r.First && n <= r.Last }
	return !r.IsZero() && in(u.UID) && in(u.GID)
}

// String returns FIRST-LAST.
func (r UserRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// UserPool is the source of the ranges of tenants: a range, and the size of the range of each tenant.
type UserPool struct {
	UserRange
	PerTenant int
}

// String returns FIRST-LAST/SIZE.
func (p UserPool) String() string { return fmt.Sprintf("%s/%d", p.UserRange, p.PerTenant) }

// ParseUserPool reads FIRST-LAST/SIZE, such as 2000000000-2099999999/1000.
func ParseUserPool(text string) (UserPool, error) {
	numbers, size, sized := strings.Cut(text, "/")
	first, last, ranged := strings.Cut(numbers, "-")
	var p UserPool
	var ok [3]bool
	p.First, ok[0] = userNumber(first)
	p.Last, ok[1] = userNumber(last)
	p.PerTenant, ok[2] = userNumber(size)
	if !sized || !ranged || ok != [3]bool{true, true, true} {
		return UserPool{}, fmt.Errorf("%.100q is not FIRST-LAST/SIZE, such as 2000000000-2099999999/1000", text)
	}
	if p.First < 1000 || p.Last >= MaxUserID || p.PerTenant < 1 || p.PerTenant > p.Last-p.First+1 {
		return UserPool{}, fmt.Errorf("%s: allowed are numbers from 1000 to %d, and a size of at least 1 that the "+
			"range has room for", text, MaxUserID-1)
	}
	return p, nil
}

// validateUser checks the user of the container and its file systems.
func validateUser(v *validation, s Job) {
	if s.User != "" && s.User != UserTenant && s.User != UserImage {
		_, ok := ParseUserID(s.User)
		v.require(ok, "user", fmt.Sprintf("%.100q is not a user of a container", s.User),
			fmt.Sprintf("tenant, image, or UID or UID:GID with numbers up to %d", MaxUserID))
	}
	v.require(s.TmpSize == 0 || s.ReadOnlyRoot, "tmp_size", "has no effect without read_only_root",
		"set read_only_root: true, or leave it out")
	v.require(s.TmpSize >= 0 && s.TmpSize <= *s.Resources.Memory, "tmp_size",
		fmt.Sprintf("%s is more than resources.memory, which /tmp counts against", s.TmpSize),
		"at most resources.memory")
	if s.ReadOnlyRoot {
		validateTmp(v, s)
	}
}

// validateTmp checks that no other field needs the place of the writable /tmp, and that programs can
// write the outputs.
func validateTmp(v *validation, s Job) {
	const taken = "is the writable folder in memory of read_only_root"
	for i, in := range s.Inputs {
		v.require(path.Clean(in.To) != tmpPath, fmt.Sprintf("inputs[%d].to", i), taken, "another path")
	}
	if s.Checkpoint != nil {
		v.require(path.Clean(s.Checkpoint.Path) != tmpPath, "checkpoint.path", taken, "another path")
	}
	for i, o := range s.Outputs {
		why := "lies outside of the writable folders of read_only_root: no program can write it"
		if inside(path.Clean(o.Path), tmpPath) {
			why = "lies in memory, which is gone when outputs are stored"
		}
		v.require(lies(s, o.Path, true), fmt.Sprintf("outputs[%d].path", i), why,
			"a path in /workspace, in the checkpoint folder or in an input from a local folder")
	}
}

// ImageOutputs returns the paths of outputs that lie in the image, and not in a folder that Berth mounts.
func ImageOutputs(s Job) []string {
	var paths []string
	for _, o := range s.Outputs {
		if !lies(s, o.Path, false) {
			paths = append(paths, o.Path)
		}
	}
	return paths
}

// lies reports whether a path lies in a folder that Berth mounts into the container. With writable, folders
// that are mounted read-only do not count: of the inputs, the container may write local folders alone.
func lies(s Job, p string, writable bool) bool {
	p = path.Clean(p)
	return inside(p, "/workspace") || s.Checkpoint != nil && inside(p, path.Clean(s.Checkpoint.Path)) ||
		slices.ContainsFunc(s.Inputs, func(in Input) bool {
			return (!writable || in.Kind() == InputFolder) && inside(p, path.Clean(in.To))
		})
}

// tmpPath is the writable folder of a container with a read-only root.
const tmpPath = "/tmp"

// TmpOf returns the size of the writable /tmp of a container with a read-only root, 0 for any other
// container.
func TmpOf(s Job) MiB {
	switch {
	case !s.ReadOnlyRoot:
		return 0
	case s.TmpSize == 0:
		return DefaultTmpSize
	}
	return s.TmpSize
}
