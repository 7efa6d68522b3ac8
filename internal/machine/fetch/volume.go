package fetch

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"berth"
	"berth/spec"
)

// kindVolume distinguishes addresses of content in shared folders.
const kindVolume = "volume-"

// volume is a folder of this machine, as a store. Its keys are paths below it. All
// opens go through an os.Root, so that no link leads out of it, even if its content
// changes meanwhile.
type volume struct {
	site
	name  spec.Volume
	most  int // entries that are worth listing
	calls chan struct{}
}

// callsAbreast bounds the open calls of one volume. Calls that a dead file server
// never answers cannot be canceled: no more than these hang. Each call that lists a
// folder makes up to abreast calls for its entries.
const callsAbreast = 64

// openVolume sets up b to read from a shared folder. A folder that this machine does not share is
// the machine's fault: another machine may share it.
func (s *Sources) openVolume(b *bucket, in spec.Input) error {
	name, key, err := spec.ParseFile(in.From)
	if err != nil {
		return refusedf("%.200q: %v", in.From, err)
	}
	v, ok := s.volumes[name]
	if !ok {
		return Local{berth.Errorf(berth.CodeUnavailable, "this machine does not share the folder %s", name)}
	}
	b.store, b.origin, b.prefix = v, "volume "+name.String(), key
	return nil
}

// url returns the address of a path in the form that jobs use.
func (v *volume) url(key string) string { return "file://" + v.name.String() + "/" + key }

// one returns the state of one path, through links that stay in the volume.
func (v *volume) one(ctx context.Context, key string) (object, error) {
	return call(ctx, v, func(func()) (object, error) {
		root, err := v.root()
		if err != nil {
			return object{}, err
		}
		defer root.Close()
		now, err := v.look(root, key)
		if err != nil {
			return object{}, v.orAbsent(root, err)
		}
		return found(key, now), nil
	}, nil)
}

// found is a file or folder as an object.
func found(key string, now state) object {
	if now.isFolder() {
		return object{key: key + "/", folder: true}
	}
	return object{key: key, size: now.size, version: now.version(), settled: now.settled()}
}

// branch is a folder that has yet to be listed.
type branch struct {
	path  string     // below the volume; "" is the volume
	above []identity // of the folders around it, through any links
}

// identity identifies a folder regardless of the paths and links that lead to the folder.
type identity struct{ dev, ino uint64 }

// all walks the tree depth first, with one call to the file system for each folder. Its order is
// not sorted.
func (v *volume) all(ctx context.Context, prefix string, each func(object) error) error {
	for todo := []branch{{path: strings.TrimSuffix(prefix, "/")}}; len(todo) > 0; {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		here, err := call(ctx, v, func(alive func()) (level, error) { return v.list(at, alive) }, nil)
		if err != nil {
			return err
		}
		for _, o := range here.objects {
			if err := each(o); err != nil {
				return err
			}
			if o.folder {
				todo = append(todo, branch{strings.TrimSuffix(o.key, "/"), here.above})
			}
		}
	}
	return nil
}

// level is the content of one folder, and the identities of the folder and its parents.
type level struct {
	objects []object
	above   []identity
}

// list reads one folder, up to v.most entries. It calls alive whenever the file system has
// answered, so that a large folder on a slow file system does not count as silent. A folder that
// is its own ancestor, by a link, is refused.
func (v *volume) list(at branch, alive func()) (l level, err error) {
	root, err := v.root()
	if err != nil {
		return l, err
	}
	defer root.Close()
	dir, now, err := v.enter(root, at.path)
	if err != nil {
		if len(at.above) == 0 {
			err = v.orAbsent(root, err)
		}
		return l, err
	}
	defer dir.Close()
	// Only ancestors are compared: two links to one folder are no circle, and both are listed.
	self := identity{now.dev, now.ino}
	if slices.Contains(at.above, self) {
		return l, refusedf("%s: the links of its folders lead in a circle", v.url(at.path))
	}
	l.above = append(slices.Clone(at.above), self)
	for len(l.objects) <= v.most {
		alive()
		names, err := dir.ReadDir(256)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return l, v.fault(at.path, err)
		}
		more, err := v.lookAt(root, dir, at.path, names)
		if err != nil {
			return l, err
		}
		l.objects = append(l.objects, more...)
	}
	if at.path == "" && len(l.objects) == 0 {
		return l, v.absent()
	}
	return l, nil
}

// enter opens a folder for reading, and fails on anything but a folder. O_NONBLOCK keeps the open
// of a named pipe from waiting for a writer.
func (v *volume) enter(root *os.Root, at string) (*os.File, state, error) {
	name := cmp.Or(at, ".")
	dir, err := root.OpenFile(name, unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, unix.ENOTDIR) {
		return nil, state{}, v.noFolder(root, at)
	}
	if err != nil {
		return nil, state{}, v.fault(at, err)
	}
	now, err := stateOf(dir)
	if err != nil {
		_ = dir.Close()
		return nil, state{}, v.fault(at, err)
	}
	return dir, now, nil
}

// noFolder is the error for a path that is not a folder, or does not lie in one.
func (v *volume) noFolder(root *os.Root, at string) error {
	info, err := root.Stat(at)
	if err != nil {
		return v.fault(at, err)
	}
	switch now := seen(info); {
	case now.isFile():
		return refusedf("%s is a file: remove the / at the end", v.url(at))
	case now.isFolder(): // by now
		return Changed{v.url(at)}
	default:
		return v.strange(at, now)
	}
}

// lookAt returns the entries of an open folder as objects, with up to abreast calls at a time.
// Entries that have disappeared since are left out.
func (v *volume) lookAt(root *os.Root, dir *os.File, at string, names []os.DirEntry) ([]object, error) {
	// Each call fills its own place, so the order of the folder stays and no lock is needed.
	list := make([]*object, len(names))
	var work errgroup.Group
	work.SetLimit(abreast)
	for i, e := range names {
		work.Go(func() error {
			key := path.Join(at, e.Name())
			now, err := stateAt(dir, e.Name())
			switch {
			case errors.Is(err, unix.ENOENT): // gone since
				return nil
			case err != nil:
				return v.fault(key, err)
			case now.isLink():
				if now, err = v.look(root, key); err != nil {
					return err
				}
			case !now.isFile() && !now.isFolder():
				return v.strange(key, now)
			}
			o := found(key, now)
			list[i] = &o
			return nil
		})
	}
	if err := work.Wait(); err != nil {
		return nil, err
	}
	var objects []object
	for _, o := range list {
		if o != nil {
			objects = append(objects, *o)
		}
	}
	return objects, nil
}

// look returns the state of a path's target, through links that stay in the volume.
// An entry that is neither a file nor a folder is not opened.
func (v *volume) look(root *os.Root, key string) (state, error) {
	info, err := root.Stat(key)
	if err != nil {
		return state{}, v.fault(key, err)
	}
	now := seen(info)
	switch {
	case now.isFolder():
		return now, nil
	case !now.isFile():
		return state{}, v.strange(key, now)
	}
	f, err := root.OpenFile(key, unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return state{}, v.fault(key, err)
	}
	defer f.Close()
	// The state of the open file counts: the name may lead to another file by now.
	if now, err = stateOf(f); err != nil {
		return state{}, v.fault(key, err)
	}
	if !now.isFile() {
		return state{}, Changed{v.url(key)}
	}
	return now, nil
}

// open opens a file, and fails with Changed unless the file has the listed version. It first
// waits until the version is settled: before that moment another write could leave the version as
// it is.
func (v *volume) open(ctx context.Context, o object, from int64) (io.ReadCloser, error) {
	// However wrong the clock of the file server is, this is the longest.
	if wait := min(time.Until(o.settled), coarseTick); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	f, err := call(ctx, v, func(func()) (*os.File, error) {
		root, err := v.root()
		if err != nil {
			return nil, err
		}
		defer root.Close()
		f, err := root.OpenFile(o.key, unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err != nil {
			return nil, v.gone(o.key, err)
		}
		if err := v.same(f, o); err != nil {
			_ = f.Close()
			return nil, err
		}
		return f, nil
	}, func(f *os.File) { _ = f.Close() })
	if err != nil {
		return nil, err
	}
	return &reading{ctx: ctx, volume: v, file: f, object: o, at: from}, nil
}

// same fails unless an open file has the version that was found.
func (v *volume) same(f opened, o object) error {
	now, err := stateOf(f)
	switch {
	case err != nil:
		return v.gone(o.key, err)
	case !now.isFile() || now.size != o.size || now.version() != o.version:
		return Changed{v.url(o.key)}
	}
	return nil
}

// root opens the volume. A fault of the volume is the machine's fault, and the error
// does not contain its path.
func (v *volume) root() (*os.Root, error) {
	root, err := v.reach()
	if err == nil {
		return root, nil
	}
	why := "it is not what an operator may share"
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		why = errno.Error()
	} else if errors.Is(err, errElsewhere) {
		why = err.Error()
	}
	return nil, Local{berth.Errorf(berth.CodeUnavailable, "this machine cannot open the folder %s: %s", v.name, why)}
}

// absent returns the error of an empty volume: an unmounted file system looks the same, and an
// input without files would otherwise start the job on nothing.
func (v *volume) absent() error {
	return Local{berth.Errorf(berth.CodeUnavailable,
		"the folder %s is empty on this machine, as if it were not mounted", v.name)}
}

// orAbsent returns absent's error for an empty volume, and err for any other.
func (v *volume) orAbsent(root *os.Root, err error) error {
	dir, failed := root.Open(".")
	if failed != nil {
		return err
	}
	defer dir.Close()
	if _, failed := dir.ReadDir(1); errors.Is(failed, io.EOF) {
		return v.absent()
	}
	return err
}

// strange returns the refusal of an entry that is neither a file nor a folder.
func (v *volume) strange(key string, now state) error {
	return refusedf("%s is %s: only files and folders are read", v.url(key), now.what())
}

// fault describes an error of the file system without its text, which would contain
// paths of this machine.
func (v *volume) fault(key string, err error) error {
	what := v.url(key)
	errno, ok := errors.AsType[syscall.Errno](err)
	switch {
	case Final(err):
		return err
	case !ok: // os.Root's own
		return refusedf("%s leads out of the folder %s by a link", what, v.name)
	case errno == unix.ENOENT:
		return Refused{says: what + ": no such file or folder", absent: true}
	case errno == unix.ENOTDIR:
		return refusedf("%s: a file lies where its path has a folder", what)
	case errno == unix.ELOOP:
		return refusedf("%s: its links lead in a circle", what)
	case errno == unix.ENAMETOOLONG:
		return refusedf("%s: its name is too long", what)
	case errno == unix.EACCES, errno == unix.EPERM:
		return refusedf("%s: the machine's agent may not read it", what)
	default:
		return berth.Errorf(berth.CodeUnavailable, "%s: %v", what, errno)
	}
}

// gone is fault for an entry that existed a moment ago.
func (v *volume) gone(key string, err error) error {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok || slices.Contains([]syscall.Errno{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ESTALE, unix.ENXIO}, errno) {
		return Changed{v.url(key)}
	}
	return v.fault(key, err)
}
