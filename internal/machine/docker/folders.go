package docker

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/client"

	"berth/activities/node"
	"berth/spec"
)

// usualSteps is the number of questions that most jobs need. If these use up the time, the engine is slow, and
// not the search long.
const usualSteps = 32

// GiveFolders changes owners in the container's writable layer; see node.FolderGiver. The engine
// extracts a tar of the folders, and thereby merges a folder with the existing one. An entry with the name "/" is
// the root itself; the engine would skip the name ".".
func (r *execs) GiveFolders(ctx context.Context, name string, paths []string, u spec.UserID) error {
	ctx, cancel := context.WithTimeout(ctx, r.engine.bounds.call)
	defer cancel()
	c, err := r.engine.Inspect(ctx, name)
	if err != nil || c.State != node.ContainerCreated {
		return err
	}
	if err := r.giveFolders(ctx, c.ID, paths, u); err != nil {
		// The engine answers 404 for a container that is gone, and for a mount whose source is absent.
		if _, gone := r.engine.Inspect(ctx, name); errors.Is(gone, node.ErrNoContainer) {
			return gone
		}
		return fmt.Errorf("give folders of container %s to user %s: %w", name, u, err)
	}
	return nil
}

// giveFolders does the work of GiveFolders for a container that has not started.
func (r *execs) giveFolders(ctx context.Context, id string, paths []string, u spec.UserID) error {
	found, err := r.engine.api.ContainerInspect(ctx, id)
	if err != nil {
		return err
	}
	w := &walk{api: r.engine.api, id: id, known: map[string]container.PathStat{}}
	folders, err := w.search(ctx, r.engine.bounds.search, found.Mounts, paths)
	if err != nil || len(folders) == 0 {
		return err
	}
	entries, err := ownedBy(u, folders)
	if err != nil {
		return err
	}
	err = r.engine.api.CopyToContainer(ctx, id, "/", entries, container.CopyToContainerOptions{})
	if err != nil && strings.Contains(err.Error(), syscall.EROFS.Error()) {
		return fmt.Errorf("%w: %w", node.ErrBadPath, err)
	}
	return err
}

// walk finds folders in a container that has not started, whose files thus do not change.
type walk struct {
	api     *client.Client
	id      string
	binds   []bind
	steps   int                           // questions to the engine so far, of node.MaxFolderSteps
	looks   int                           // questions and answers from known
	slowest time.Duration                 // of the questions
	known   map[string]container.PathStat // by path; without a name: absent
}

// bind is a mount of the container's spec. Volumes of the image are folders of the container alone.
type bind struct {
	container.MountPoint
	// place is the destination without links: the engine follows the image's links to it.
	place string
}

// search returns the folders to give, by path. A search that takes long although each answer came
// promptly is the fault of the image and the job file.
func (w *walk) search(ctx context.Context, limit time.Duration, mounts []container.MountPoint, paths []string) (
	map[string]container.PathStat, error) {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	folders, err := w.folders(bounded, mounts, paths)
	if bounded.Err() != nil && ctx.Err() == nil && w.steps > usualSteps && w.slowest < limit/2 &&
		errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("the search through %d folders and links of the image takes more than %s: %w", w.steps,
			limit, node.ErrBadPath)
	}
	return folders, err
}

// folders places the mounts first, since a folder in a mount belongs to the machine.
func (w *walk) folders(ctx context.Context, mounts []container.MountPoint, paths []string) (
	map[string]container.PathStat, error) {
	_, err := w.stat(ctx, "/")
	if errors.Is(err, node.ErrNoPath) { // no place for a mount in the image: the start fails, and names it
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := w.placeMounts(ctx, mounts); err != nil {
		return nil, err
	}
	folders := map[string]container.PathStat{}
	for _, p := range paths {
		if slices.ContainsFunc(w.binds, func(b bind) bool { return inside(p, b.Destination) }) {
			continue
		}
		at, err := w.folder(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("find the folder of %s: %w", p, err)
		}
		if at.Name != "" && at.Mode.Perm()&0o003 != 0o003 { // else every user may create files in it
			folders[at.Name] = at
		}
	}
	return folders, nil
}

// placeMounts finds the places of the mounts in the order of the engine, which mounts folders above first. A link
// may lead a mount to another folder of the image, but not into another mount.
func (w *walk) placeMounts(ctx context.Context, mounts []container.MountPoint) error {
	for _, m := range mounts {
		if m.Type == mount.TypeBind {
			w.binds = append(w.binds, bind{MountPoint: m})
		}
	}
	slices.SortFunc(w.binds, func(a, b bind) int {
		return cmp.Or(cmp.Compare(strings.Count(a.Destination, "/"), strings.Count(b.Destination, "/")),
			cmp.Compare(a.Destination, b.Destination))
	})
	for i := range w.binds {
		b := &w.binds[i]
		at, rest, err := w.follow(ctx, b.Destination, func(link, to string) error {
			// The owner of a mounted folder could change a link in it between two calls.
			if other := w.bindAt(link); other != nil {
				return intoOther(b.Destination, to, other)
			}
			if other := w.bindAt(to); other != nil && !nested(b.Destination, to, other) {
				return intoOther(b.Destination, to, other)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("find the place of the mount %s: %w", b.Destination, err)
		}
		b.place = path.Join(append([]string{at.Name}, rest...)...)
		if inside(b.place, "/proc") {
			return fmt.Errorf("a link leads the mount %s to %s, and no mount can be in /proc: %w", b.Destination,
				b.place, node.ErrBadImage)
		}
	}
	for _, a := range w.binds {
		for j := range w.binds {
			if b := &w.binds[j]; inside(a.place, b.place) && !nested(a.Destination, a.place, b) {
				return intoOther(a.Destination, a.place, b)
			}
		}
	}
	return nil
}

// nested reports whether a mount with a destination and a place lies in another mount, or is that mount, as the
// container's spec says.
func nested(destination, place string, outer *bind) bool {
	return inside(destination, outer.Destination) &&
		strings.TrimPrefix(destination, outer.Destination) == strings.TrimPrefix(place, outer.place)
}

// intoOther returns the fault of an image whose link leads a mount into another one.
func intoOther(destination, to string, other *bind) error {
	return fmt.Errorf("a link leads the mount %s to %s, in the mount %s: %w", destination, to, other.Destination,
		node.ErrBadPath)
}

// folder returns the folder at a path, or else the deepest folder above it. The result's name is its path, "" if
// no gift is needed or none would help.
func (w *walk) folder(ctx context.Context, p string) (container.PathStat, error) {
	var none container.PathStat
	if b := w.bindAt(p); b != nil {
		return none, intoMount(p, b)
	}
	writable := errors.New("in a writable mount") // Berth gives each of them to the user itself
	at, rest, err := w.follow(ctx, p, func(_, to string) error {
		b := w.bindAt(to)
		if b == nil {
			return nil
		}
		return cmp.Or(intoMount(to, b), writable)
	})
	switch {
	case errors.Is(err, writable):
		return none, nil
	case err != nil:
		return none, err
	case at.Mode.IsDir():
		return at, nil
	case at.Mode.IsRegular() && len(rest) == 0:
		return w.stat(ctx, path.Dir(at.Name))
	default: // a file where the path needs a folder, or a device
		return none, nil
	}
}

// follow returns the deepest file or folder on a path, with its path as its name, and the names of the path below
// it. It goes down from the root: then each found folder has a path without links, and its place in a mount shows in
// that path. Each link, and the path to which it leads, is shown to a function, whose error ends the walk.
func (w *walk) follow(ctx context.Context, p string, linked func(link, to string) error) (
	container.PathStat, []string, error) {
	at, err := w.stat(ctx, "/")
	names := strings.FieldsFunc(p, func(r rune) bool { return r == '/' })
	for i, name := range names {
		if err != nil {
			break
		}
		next, err := w.stat(ctx, path.Join(at.Name, name))
		switch {
		case errors.Is(err, node.ErrNoPath):
			return at, names[i:], nil
		case err != nil:
			return at, nil, err
		case next.Mode&fs.ModeSymlink != 0:
			// The engine has followed all links of the target, so each link shortens the way.
			to := path.Join(append([]string{next.LinkTarget}, names[i+1:]...)...)
			if err := linked(next.Name, to); err != nil {
				return at, nil, err
			}
			return w.follow(ctx, to, linked)
		case !next.Mode.IsDir():
			return next, names[i+1:], nil
		}
		at = next
	}
	return at, nil, err
}

// stat returns the file, folder or link at a path whose parent has no links. Each question to the engine counts one
// step. Known answers are bounded, too, since a link may lead through itself.
func (w *walk) stat(ctx context.Context, at string) (container.PathStat, error) {
	found, ok := w.known[at]
	if !ok {
		w.steps++
	}
	if w.looks++; w.steps > node.MaxFolderSteps || w.looks > 16*node.MaxFolderSteps {
		return container.PathStat{}, fmt.Errorf("the paths lead through more than %d folders and links of the "+
			"image: %w", node.MaxFolderSteps, node.ErrBadPath)
	}
	if !ok {
		var err error
		if found, err = w.ask(ctx, at); err != nil {
			return container.PathStat{}, err
		}
		w.known[at] = found
	}
	if found.Name == "" {
		return container.PathStat{}, fmt.Errorf("%s: %w", at, node.ErrNoPath)
	}
	return found, nil
}

// ask asks the engine for the file at a path. The result has no name if none is there. The root always is there: a
// 404 for it means a mount without a source, or no container.
func (w *walk) ask(ctx context.Context, at string) (container.PathStat, error) {
	begun := time.Now()
	found, err := w.api.ContainerStatPath(ctx, w.id, at)
	if err != nil && (at == "/" || !cerrdefs.IsNotFound(err)) {
		err = w.fault(ctx, at, err)
	}
	w.slowest = max(w.slowest, time.Since(begun))
	switch {
	case err == nil:
		found.Name = at
		return found, nil
	case cerrdefs.IsNotFound(err) && at != "/", leadsNowhere(err):
		return container.PathStat{}, nil
	default:
		return container.PathStat{}, err
	}
}

// fault asks again for a path that the engine could not look at, since the answer to the first question, a HEAD
// request, has no body and thus no message. A path that is found now was a passing fault.
func (w *walk) fault(ctx context.Context, at string, first error) error {
	in, _, err := w.api.CopyFromContainer(ctx, w.id, at)
	if err != nil {
		return err
	}
	return errors.Join(first, in.Close())
}

// bindAt returns the deepest mount that contains a path without links, nil for none.
func (w *walk) bindAt(p string) *bind {
	var best *bind
	for i, b := range w.binds {
		if b.place != "" && inside(p, b.place) && (best == nil || len(b.place) > len(best.place)) {
			best = &w.binds[i]
		}
	}
	return best
}

// inside reports whether a path is a folder or lies in it.
func inside(p, folder string) bool {
	return p == folder || strings.HasPrefix(p, strings.TrimSuffix(folder, "/")+"/")
}

// intoMount returns the fault of an image with a link into a mount, nil if the user may write there: Berth
// gives each writable mount to the user itself.
func intoMount(to string, b *bind) error {
	if b.RW {
		return nil
	}
	return fmt.Errorf("a link of the image leads to %s, in the read-only folder %s: %w", to, b.Destination,
		node.ErrBadPath)
}

// ownedBy returns a tar of folders with another owner and group, and with the modes and times that they have.
func ownedBy(u spec.UserID, folders map[string]container.PathStat) (*bytes.Buffer, error) {
	var entries bytes.Buffer
	w := tar.NewWriter(&entries)
	for name, at := range folders {
		h := &tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: tarMode(at.Mode), Uid: u.UID, Gid: u.GID,
			ModTime: at.Mtime, Format: tar.FormatPAX}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
	}
	return &entries, w.Close()
}

// tarMode returns the mode of a folder in the form of a tar.
func tarMode(m fs.FileMode) int64 {
	bits := int64(m.Perm())
	for bit, value := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&bit != 0 {
			bits |= value
		}
	}
	return bits
}
