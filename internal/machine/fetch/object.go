package fetch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"berth"
	"berth/internal/lib/archive"
	"berth/spec"
)

// abreast is how many objects of one input are read at a time.
const abreast = 8

// store is where objects lie, by the protocol that its server speaks. Its errors
// are worded for people; it tries nothing twice.
type store interface {
	// one finds one object.
	one(ctx context.Context, key string) (object, error)
	// all calls each for the objects below a prefix, until each returns an error.
	all(ctx context.Context, prefix string, each func(object) error) error
	// open requests an object from a position on, in exactly the listed version. If
	// that version no longer exists, the error is Changed.
	open(ctx context.Context, o object, from int64) (io.ReadCloser, error)
	// url is how people write a key.
	url(key string) string
}

// object is one object to read, with the properties that a store lists.
type object struct {
	key, name string // name is where it goes, below the input's folder
	size      int64
	version   string    // distinguishes contents of one key
	pin       string    // the version as its store's requests name it; "": requests by key alone
	crc32c    *uint32   // of its content; nil: not known
	gzipped   bool      // its store would unpack it on the way by default
	folder    bool      // the entry is a folder, which some stores list
	settled   time.Time // from when on a change makes another version; zero: always
}

// Bounds of a store's list. A page has at most pageSize objects. Their keys, which may be longer
// in encoded form, and their other properties are bounded only by the length of the answer.
const (
	pageSize   = 1000
	told       = 16 << 20 // bytes of an answer kept in memory
	emptyPages = 1000     // in a row; stores send some where much was deleted
)

// brief is an answer with a bound on its length. A truncated answer could look like
// a complete one with fewer objects, so it is an error.
type brief struct {
	io.ReadCloser
	left int64
}

// errLong is the error of an answer beyond its bound.
var errLong = fmt.Errorf("the answer is longer than %s", berth.BytesText(told))

// Read fails with errLong as soon as the answer exceeds the bound.
func (b *brief) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left+1)])
	if int64(n) > b.left {
		return int(b.left), errLong
	}
	b.left -= int64(n)
	return n, err
}

// empty counts consecutive pages of a list without an object.
type empty int

// page takes a page with that number of objects. It fails after emptyPages empty pages, since a
// faulty server could send such pages without end.
func (e *empty) page(list string, objects int) error {
	if *e++; objects > 0 {
		*e = 0
	}
	if *e < emptyPages {
		return nil
	}
	return berth.Errorf(berth.CodeUnavailable, "%s: %d pages of the list in a row have nothing on them",
		list, emptyPages)
}

// bucket is the part of a store that one input reads.
type bucket struct {
	store  store
	limits archive.Limits
	origin string // the store and where it is, in addresses
	prefix string
}

// findObjects lists the objects to read, and names their versions in the address: a change of any
// object changes the address.
func (s *Sources) findObjects(ctx context.Context, in spec.Input, login spec.Sensitive) (*Found, error) {
	b := &bucket{limits: s.limits}
	kind, err := "", error(nil)
	switch in.Kind() {
	case spec.InputS3:
		kind, err = kindS3, s.openS3(b, in, login)
	case spec.InputGS:
		kind, err = kindGS, s.openGS(b, in, login)
	case spec.InputAzure:
		kind, err = kindAzure, s.openAzure(b, in, login)
	case spec.InputFile:
		kind, err = kindVolume, s.openVolume(b, in)
	default:
		panic(fmt.Sprintf("objects of kind %d", in.Kind()))
	}
	if err != nil {
		return nil, err
	}
	var list []object
	var folders []string
	if in.OneFile() {
		list, err = b.head(ctx)
	} else {
		list, folders, err = b.list(ctx)
	}
	if err != nil {
		return nil, err
	}
	return &Found{Kind: kind, Address: b.address(list, folders),
		fetch: func(ctx context.Context, to *os.Root, again Again) (archive.Summary, error) {
			return b.fetch(ctx, to, again, list, folders)
		}}, nil
}

// head finds the one object of an input that is a single file.
func (b *bucket) head(ctx context.Context) ([]object, error) {
	ctx, _, end := watch(ctx)
	defer end()
	o, err := b.store.one(ctx, b.prefix)
	if err != nil {
		if r, refused := errors.AsType[Refused](err); refused && r.absent {
			return nil, refusedf("%v; end the address with / to fetch all objects below a prefix", err)
		}
		return nil, err
	}
	o.key, o.name = b.prefix, FileName
	switch {
	case o.size < 0 || o.folder:
		return nil, refusedf("%s is not an object; end the address with / to fetch all objects below a prefix",
			b.store.url(o.key))
	case o.size > b.limits.Bytes:
		return nil, b.tooMuch(1, o.size)
	}
	return []object{o}, nil
}

// maxKey is the longest key of an object, in bytes, of any of the stores.
const maxKey = 4096

// list finds all objects below the prefix, sorted by key. A key that ends in / is a folder, as
// some tools create folders. The server's answer is not trusted: a key outside the prefix, a file
// without a size or a list beyond the limits is refused before the first byte is fetched.
func (b *bucket) list(ctx context.Context) (list []object, folders []string, err error) {
	var entries []archive.Entry
	total, itself := int64(0), false
	// itself: some tools store an empty object for the prefix. It is neither a file nor a folder
	// of the input, and may be listed once.
	err = b.store.all(ctx, b.prefix, func(o object) error {
		name, below := strings.CutPrefix(o.key, b.prefix)
		o.folder = o.folder || strings.HasSuffix(o.key, "/")
		switch {
		case len(o.key) > maxKey:
			return refusedf("%s: the server lists a key of %d bytes, more than the limit of %d", b.store.url(b.prefix),
				len(o.key), maxKey)
		case !below || o.size < 0:
			return refusedf("%s: the server lists %q with %d bytes, which is outside the prefix or has no size",
				b.store.url(b.prefix), o.key, o.size)
		case o.folder && o.size > 0:
			return refusedf("%s is named like a folder but has content", b.store.url(o.key))
		case name == "" && itself:
			return refusedf("%s: listed twice by the server", b.store.url(b.prefix))
		case name == "": // the folder itself
			itself = true
			return nil
		case o.folder:
			name = strings.TrimSuffix(name, "/")
			folders = append(folders, name)
			entries = append(entries, archive.Entry{Name: name, Kind: archive.Folder})
		default:
			o.name = name
			list = append(list, o)
			entries = append(entries, archive.Entry{Name: name, Kind: archive.File, Size: o.size})
		}
		if total += o.size; total > b.limits.Bytes || len(entries) > b.limits.Files {
			return b.tooMuch(len(entries), total)
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	if len(list) == 0 {
		return nil, nil, refusedf("%s: no objects found", b.store.url(b.prefix))
	}
	// The address is that of the list, and some stores have no order.
	slices.SortFunc(list, func(a, o object) int { return strings.Compare(a.key, o.key) })
	slices.Sort(folders)
	if err := archive.Judge(entries, b.limits); err != nil {
		return nil, nil, refusedf("%s: %s", b.store.url(b.prefix), strings.TrimPrefix(err.Error(), "archive: "))
	}
	return list, folders, nil
}

// tooMuch returns the refusal of a list beyond the limits. The numbers are lower bounds, since
// listing stops at the limit.
func (b *bucket) tooMuch(files int, bytes int64) error {
	return refusedf("%s has at least %d objects of %s; the limits of this machine are %d objects and %s",
		b.store.url(b.prefix), files, berth.BytesText(bytes), b.limits.Files, berth.BytesText(b.limits.Bytes))
}

// address is the hash of the list: the store, the prefix, and each object's key, size and
// version.
func (b *bucket) address(list []object, folders []string) berth.Address {
	sum := sha256.New() // at once: the text of a million files takes as much memory as their list
	fmt.Fprintf(sum, "%s %q\n", b.origin, b.prefix)
	for _, o := range list {
		fmt.Fprintf(sum, "%q %d %q\n", o.key, o.size, o.version)
	}
	for _, f := range folders {
		fmt.Fprintf(sum, "%q/\n", f)
	}
	return berth.AddressOf(sum.Sum(nil))
}

// fetch creates the folders one after the other and then downloads the objects, up to abreast at
// a time. The first error stops the downloads.
func (b *bucket) fetch(ctx context.Context, to *os.Root, again Again, list []object,
	folders []string) (sum archive.Summary, err error) {
	made := map[string]bool{".": true}
	folder := func(name string) error {
		for at := name; !made[at]; at = path.Dir(at) {
			made[at] = true
			sum.Files++
		}
		if err := to.MkdirAll(name, 0o755); err != nil {
			return Local{err}
		}
		return nil
	}
	for _, name := range folders {
		if err := folder(name); err != nil {
			return sum, err
		}
	}
	for _, o := range list {
		if err := folder(path.Dir(o.name)); err != nil {
			return sum, err
		}
		sum.Files++
		sum.Bytes += o.size
	}
	progressOf(ctx).expect(sum.Bytes)
	// The sums above are known before the first byte arrives, so that they do not depend on the
	// order of the downloads.
	work, within := errgroup.WithContext(ctx)
	work.SetLimit(abreast)
	for _, o := range list {
		if within.Err() != nil {
			break
		}
		work.Go(func() error {
			return into(to, o.name, func(f *os.File) error { return b.object(within, o, f, again) })
		})
	}
	if err := work.Wait(); err != nil {
		return sum, err
	}
	return sum, context.Cause(ctx) // the reason why the rest was not begun
}

// castagnoli is the polynomial of Google's checksums, the only ones that stores list.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// object downloads one object. After a broken connection it continues where the connection broke.
// If the whole has a wrong checksum, or its end was not verified, it starts again.
func (b *bucket) object(ctx context.Context, o object, to *os.File, again Again) error {
	have, sum := int64(0), crc32.New(castagnoli)
	return again(ctx, func() error {
		if have == o.size {
			return nil
		}
		if have == 0 {
			sum.Reset()
		}
		var w io.Writer = io.NewOffsetWriter(to, have)
		if o.crc32c != nil {
			w = io.MultiWriter(w, sum)
		}
		n, err := b.read(ctx, o, have, w)
		if have += n; err != nil && have == o.size {
			have = 0 // its end was not looked at
		}
		if err == nil && o.crc32c != nil && sum.Sum32() != *o.crc32c {
			have = 0 // all of it again
			err = berth.Errorf(berth.CodeUnavailable, "%s: what came is not what its checksum says", b.store.url(o.key))
		}
		return err
	})
}

// read makes one request and returns the number of bytes written. A body that ends early is an
// error. A request from the beginning reads to the end of the body, where some stores' clients
// verify a checksum, and returns 0 if that fails.
func (b *bucket) read(ctx context.Context, o object, from int64, to io.Writer) (int64, error) {
	ctx, lively, end := watch(ctx)
	defer end()
	body, err := b.store.open(ctx, o, from)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	n, err := copied(ctx, to, progressOf(ctx).through(io.LimitReader(lively(body), o.size-from)))
	switch {
	case err == nil && n < o.size-from:
		err = io.ErrUnexpectedEOF
	case err == nil && from == 0: // at the end some stores' clients look at a checksum
		if _, err = copied(ctx, io.Discard, io.LimitReader(body, 1)); err != nil {
			n = 0 // all of it again
		}
	}
	if err != nil {
		err = fault(b.store.url(o.key), err)
	}
	return n, err
}
