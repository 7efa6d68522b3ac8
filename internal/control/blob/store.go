package blob

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	"cloud.google.com/go/storage"
	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	"gocloud.dev/blob/gcsblob"
	_ "gocloud.dev/blob/memblob" // mem:// for tests
	"gocloud.dev/blob/s3blob"
	"gocloud.dev/gcerrors"
	"golang.org/x/sys/unix"
	"google.golang.org/api/googleapi"

	"berth"
)

// Store is an object store. It may be used concurrently.
type Store struct {
	location
	signer signer // nil: the store has no signed addresses
	google *storage.Client
}

// Open opens the store at a URL: file:///folder (made if absent), s3://bucket
// with the options of gocloud.dev, gs://bucket/prefix, or mem:// for tests.
func Open(ctx context.Context, address string) (*Store, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("blob store %q: %w", address, err)
	}
	var s *Store
	switch u.Scheme {
	case "file":
		s = &Store{location: location{folder: filepath.FromSlash(u.Path)}}
		if s.bucket, err = openFolder(u); err == nil {
			s.is, err = identify(s.folder)
		}
	case s3blob.Scheme:
		s, err = openS3(ctx, u)
	case gcsblob.Scheme:
		s, err = openGCS(ctx, u)
	default:
		s = &Store{}
		s.bucket, err = blob.OpenBucket(ctx, address)
	}
	if err != nil {
		return nil, fmt.Errorf("open blob store %s: %w", u.Redacted(), err)
	}
	return s, nil
}

// openFolder opens a folder as a bucket. Temporary files are in the folders of the
// final ones, so that a rename stays on one file system. Attribute files are off,
// since they have no reader.
func openFolder(u *url.URL) (*blob.Bucket, error) {
	dir := filepath.FromSlash(u.Path)
	if u.Host != "" || !filepath.IsAbs(dir) {
		return nil, errors.New("a folder is written file:///absolute/path")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return fileblob.OpenBucket(dir, &fileblob.Options{
		NoTempDir:   true,
		DirFileMode: 0o700,
		Metadata:    fileblob.MetadataDontWrite,
	})
}

// Close releases the store's connections.
func (s *Store) Close() error {
	err := s.bucket.Close()
	if s.google != nil {
		err = errors.Join(err, s.google.Close())
	}
	return err
}

// Check reports whether the store answers. The folder of a store must be the one that was opened.
func (s *Store) Check(ctx context.Context) error {
	_, err := s.Exists(ctx, "health")
	return err
}

// usable refuses keys as checkKey does, and every key while present fails.
func (s *Store) usable(key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	return s.present()
}

// FreeShare returns the free share of the file system of a store in a folder, in bytes or inodes, the
// smaller one, from 0 to 1. ok is false for other stores, and for a folder that cannot be measured.
func (s *Store) FreeShare() (share float64, ok bool) {
	var fs unix.Statfs_t
	if s.folder == "" || unix.Statfs(s.folder, &fs) != nil || fs.Blocks == 0 {
		return 0, false
	}
	share = float64(fs.Bavail) / float64(fs.Blocks)
	// File systems that create inodes as needed report none, or more free ones than there are.
	if fs.Files > 0 && fs.Ffree <= fs.Files {
		share = min(share, float64(fs.Ffree)/float64(fs.Files))
	}
	return share, true
}

// Put stores the content of r under key and returns its length. The object appears
// when it is complete, or not at all. size is the announced length, or -1 if it is
// unknown; another length is an error.
func (s *Store) Put(ctx context.Context, key string, r io.Reader, size int64) (int64, error) {
	return s.put(ctx, key, r, size, false)
}

// Create is Put for an object that must not exist yet; for an existing key the error has the code
// conflict.
func (s *Store) Create(ctx context.Context, key string, data []byte) error {
	_, err := s.put(ctx, key, bytes.NewReader(data), int64(len(data)), true)
	return err
}

// put writes an object of the given size, or of any size if size is negative. A reader that ends
// early or late leaves no object. With once an existing object is an error.
func (s *Store) put(ctx context.Context, key string, r io.Reader, size int64, once bool) (int64, error) {
	if err := s.usable(key); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := s.bucket.NewWriter(ctx, key, &blob.WriterOptions{ContentType: "application/octet-stream",
		IfNotExist: once, BufferSize: bufferSize(s, size)})
	if err != nil {
		return 0, mapError(err, "object "+key)
	}
	n, err := io.Copy(w, r)
	if err == nil && size >= 0 && n != size {
		err = berth.Errorf(berth.CodeInvalid, "object %s: %d bytes were announced and %d came", key, size, n)
	}
	if err != nil {
		cancel() // makes Close discard the written part
		_ = w.Close()
		return n, mapError(err, "object "+key)
	}
	return n, mapError(w.Close(), "object "+key)
}

// bufferSize returns the length of the parts in which this process stores an object of a size itself; 0: the library's
// default. That of S3, 5 MiB, is too short for the 10,000 parts that S3 allows of a larger object.
func bufferSize(s *Store, size int64) int {
	switch {
	case s.google != nil:
		return gcsBuffer(size)
	case size <= LeastPart*maxParts:
		return 0
	}
	return int(size/maxParts) + 1
}

// Open returns a reader of the object, which the caller closes, and its size. A
// missing object is an error of code not_found.
func (s *Store) Open(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	if err := s.usable(key); err != nil {
		return nil, 0, err
	}
	r, err := s.bucket.NewReader(ctx, key, nil)
	if err != nil {
		return nil, 0, mapError(err, "object "+key)
	}
	return r, r.Size(), nil
}

// ReadAll returns an object of at most limit bytes.
func (s *Store) ReadAll(ctx context.Context, key string, limit int64) ([]byte, error) {
	r, size, err := s.Open(ctx, key)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if size > limit {
		return nil, berth.Errorf(berth.CodeInvalid, "object %s has %d bytes: allowed are %d", key, size, limit)
	}
	b, err := io.ReadAll(io.LimitReader(r, limit))
	return b, mapError(err, "object "+key)
}

// Exists reports whether key names an object.
func (s *Store) Exists(ctx context.Context, key string) (bool, error) {
	if err := s.usable(key); err != nil {
		return false, err
	}
	// The driver's own method also reports that an object is missing which the login may not read.
	_, err := s.bucket.Attributes(ctx, key)
	if missing(err) {
		return false, nil
	}
	return err == nil, mapError(err, "object "+key)
}

// Folders lists the names of the folders in the folder key, none for an absent folder.
func (s *Store) Folders(ctx context.Context, key string) ([]string, error) {
	if err := s.usable(key); err != nil {
		return nil, err
	}
	var names []string
	all := s.bucket.List(&blob.ListOptions{Prefix: strings.TrimSuffix(key, "/") + "/", Delimiter: "/"})
	for {
		o, err := all.Next(ctx)
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err != nil {
			return nil, mapError(err, "objects below "+key)
		}
		if o.IsDir {
			names = append(names, path.Base(strings.TrimSuffix(o.Key, "/")))
		}
	}
}

// Names lists the names of the objects directly in the folder key, none for an absent folder.
func (s *Store) Names(ctx context.Context, key string) ([]string, error) {
	if err := s.usable(key); err != nil {
		return nil, err
	}
	var names []string
	all := s.bucket.List(&blob.ListOptions{Prefix: strings.TrimSuffix(key, "/") + "/", Delimiter: "/"})
	for {
		o, err := all.Next(ctx)
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err != nil {
			return nil, mapError(err, "objects in "+key)
		}
		if !o.IsDir {
			names = append(names, path.Base(o.Key))
		}
	}
}

// Delete deletes an object. A missing object is no error.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.usable(key); err != nil {
		return err
	}
	if err := s.bucket.Delete(ctx, key); err != nil && !missing(err) {
		return mapError(err, "object "+key)
	}
	return nil
}

// DeleteFolder deletes every object below key, which is a folder. A missing object
// is no error.
func (s *Store) DeleteFolder(ctx context.Context, key string) error {
	if err := s.usable(key); err != nil {
		return err
	}
	all := s.bucket.List(&blob.ListOptions{Prefix: strings.TrimSuffix(key, "/") + "/"})
	for {
		o, err := all.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return mapError(err, "objects below "+key)
		}
		if err := s.bucket.Delete(ctx, o.Key); err != nil && !missing(err) {
			return mapError(err, "object "+o.Key)
		}
	}
}

// missing reports whether an error says that an object does not exist. The driver of Google Cloud Storage says so of
// objects that the login may not read: there, the status decides.
func missing(err error) bool {
	if fault, ok := errors.AsType[*googleapi.Error](err); ok {
		return fault.Code == http.StatusNotFound
	}
	return gcerrors.Code(err) == gcerrors.NotFound
}

// mapError turns the store's errors into berth errors.
func mapError(err error, what string) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*berth.Error](err); ok {
		return err
	}
	if missing(err) {
		return berth.Errorf(berth.CodeNotFound, "no such %s", what)
	}
	if fault, ok := errors.AsType[*googleapi.Error](err); ok && fault.Code == http.StatusPreconditionFailed {
		return berth.Errorf(berth.CodeConflict, "%s exists", what)
	}
	switch gcerrors.Code(err) {
	case gcerrors.FailedPrecondition, gcerrors.AlreadyExists:
		return berth.Errorf(berth.CodeConflict, "%s exists", what)
	case gcerrors.ResourceExhausted, gcerrors.DeadlineExceeded:
		return berth.Errorf(berth.CodeUnavailable, "%s: the blob store does not answer: %v", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
