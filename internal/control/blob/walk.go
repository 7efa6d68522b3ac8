package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

// Object is one entry of a listing.
type Object struct {
	Key  string
	Size int64
	MD5  []byte // as far as the store lists it; nil: unknown
}

// Folder returns the folder of a store in a folder, else "".
func (s *Store) Folder() string { return s.folder }

// unfinished matches files that are still written, or whose writer was killed.
var unfinished = regexp.MustCompile(`\.[0-9a-f]{12,}\.tmp$`)

// Walk calls each for every object of the store whose key Berth could have created, in no particular
// order. Objects that are created or deleted meanwhile may be missing. If the folder of the store is gone or replaced
// meanwhile, the error has the code unavailable, and other objects may be missing too.
func (s *Store) Walk(ctx context.Context, each func(Object) error) error {
	if err := s.present(); err != nil {
		return err
	}
	if s.folder != "" {
		if err := s.walkFolder(ctx, each); err != nil {
			return err
		}
		// A file system that is unmounted during the walk looks like objects that are deleted meanwhile.
		return s.present()
	}
	for all := s.bucket.List(nil); ; {
		o, err := all.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return mapError(err, "objects")
		}
		if checkKey(o.Key) != nil {
			continue
		}
		if err := each(Object{Key: o.Key, Size: o.Size, MD5: o.MD5}); err != nil {
			return err
		}
	}
}

// walkFolder is Walk without the driver, which reads the whole folder again for each page of a
// listing.
func (s *Store) walkFolder(ctx context.Context, each func(Object) error) error {
	root, err := filepath.EvalSymlinks(s.folder) // WalkDir follows no link
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if path == root {
			return err
		}
		key, failed := filepath.Rel(root, path)
		if failed != nil {
			return failed
		}
		key = filepath.ToSlash(key)
		switch {
		case checkKey(key) != nil:
			if d.IsDir() { // such as lost+found
				return fs.SkipDir
			}
			return nil
		case errors.Is(err, os.ErrNotExist):
			return s.present() // deleted meanwhile, or the whole store is gone
		case err != nil:
			return err
		case d.IsDir() || unfinished.MatchString(key):
			return nil
		case !d.Type().IsRegular():
			return fmt.Errorf("%s is neither a file nor a folder: a store in a folder has these alone", path)
		}
		info, err := d.Info()
		if errors.Is(err, os.ErrNotExist) {
			return s.present()
		}
		if err != nil {
			return err
		}
		return each(Object{Key: key, Size: info.Size()})
	})
}
