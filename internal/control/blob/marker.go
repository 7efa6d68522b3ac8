package blob

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"gocloud.dev/blob"
	"golang.org/x/sys/unix"

	"berth"
)

// This file identifies a store. An unmounted file system leaves an empty folder behind, and another file system may be
// mounted there; a bucket may be emptied, or its address mistyped. Inode numbers do not identify a folder: the root of
// a file system has the same number everywhere, a new folder may get the number of a deleted one, and some network file
// systems change their numbers. So berthd writes a random id into the store when it first starts. A copy of the store
// has the id too, and counts as the same store. The database names the id; see Guard.

// markerName is the name of the file or object with the id. No key contains @, so no other object has this name, and
// Walk leaves it out.
const markerName = "@berth-store"

// goodMarker matches an id, as rand.Text creates it.
var goodMarker = regexp.MustCompile(`^[A-Z2-7]{26}$`)

// identity identifies the folder of a store. The inode counts for a folder without an id only.
type identity struct {
	id    string // "": the folder had no id
	inode uint64
}

// location is the place of a store, which has an id.
type location struct {
	bucket *blob.Bucket
	folder string   // of a store in a folder; else ""
	is     identity // of the folder when it was opened
}

// identify returns the identity of a folder. The id is "" for a folder without one.
func identify(folder string) (i identity, err error) {
	var st unix.Stat_t
	if err := unix.Stat(folder, &st); err != nil {
		return i, fmt.Errorf("stat %s: %w", folder, err)
	}
	i.inode = st.Ino
	file := filepath.Join(folder, markerName)
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return i, nil
	}
	if err != nil {
		return i, err
	}
	if i.id = string(bytes.TrimSpace(text)); !goodMarker.MatchString(i.id) {
		return i, fmt.Errorf("%s contains %.40q: allowed is the store's id of 26 capital letters and digits; if the "+
			"id is lost, remove the file and restart every berthd, which creates an id", file, text)
	}
	return i, nil
}

// Mark gives the folder of a store an id, unless the folder has one. Only a process that owns the store calls Mark,
// once and before any other call: tools that open a store leave the folder as it is. Processes that call Mark at the
// same time agree on one id. After an error, the store can be used. The folder is then identified by its id, if it has
// one, and otherwise by its inode number alone. A bucket gets its id from NewID.
func Mark(s *Store) error { return mark(s, syncFolder) }

// ID returns the id of the store, or "" for a store without one.
func (s *location) ID(ctx context.Context) (string, error) {
	if s.folder != "" {
		return s.is.id, s.present()
	}
	r, err := s.bucket.NewReader(ctx, markerName, nil)
	if missing(err) {
		return "", nil
	}
	if err != nil {
		return "", mapError(err, "object "+markerName)
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, maxMarker))
	if err != nil {
		return "", mapError(err, "object "+markerName)
	}
	id := string(bytes.TrimSpace(text))
	if !goodMarker.MatchString(id) {
		return "", fmt.Errorf("object %s contains %.40q: allowed is the store's id of 26 capital letters and digits; "+
			"if the id is lost, write the id that the database names (cluster.store_id)", markerName, text)
	}
	return id, nil
}

// maxMarker bounds the bytes that are read of an object with an id.
const maxMarker = 64

// NewID gives a bucket an id, unless it has one, and returns the bucket's id. Processes that call NewID at the same
// time agree on one id, since the bucket creates the object only once. The result is "" for a folder, which gets its id
// from Mark.
func (s *location) NewID(ctx context.Context) (string, error) {
	if s.folder != "" {
		return s.ID(ctx)
	}
	w, err := s.bucket.NewWriter(ctx, markerName, &blob.WriterOptions{ContentType: "text/plain", IfNotExist: true})
	if err != nil {
		return "", mapError(err, "object "+markerName)
	}
	_, err = io.WriteString(w, rand.Text()+"\n")
	err = mapError(errors.Join(err, w.Close()), "object "+markerName)
	if err != nil && berth.CodeOf(err) != berth.CodeConflict {
		return "", err
	}
	return s.ID(ctx)
}

// mark is Mark with the function that makes a new file in a folder durable.
func mark(s *Store, durable func(folder string) error) error {
	if s.folder == "" || s.is.id != "" {
		return nil
	}
	failed := createMarker(s.folder, durable)
	if errors.Is(failed, fs.ErrExist) {
		failed = nil
	} else if failed != nil {
		failed = fmt.Errorf("create an id in the folder of the blob store: %w", failed)
	}
	is, err := identify(s.folder) // the id may be there, also after a failure
	if err == nil {
		s.is = is
	} else {
		failed = errors.Join(failed, err)
	}
	return failed
}

// createMarker writes a new id into a folder. If the folder has one, the error is fs.ErrExist. The file appears with
// its content, by a link, and survives a crash: other processes may read it at any time.
func createMarker(folder string, durable func(folder string) error) error {
	f, err := os.CreateTemp(folder, markerName+".*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(rand.Text() + "\n")
	// The id is no secret, and a backup may run as another user.
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Link(f.Name(), filepath.Join(folder, markerName))
	}
	if err != nil {
		return err
	}
	return durable(folder)
}

// syncFolder makes the entries of a folder survive a crash.
func syncFolder(folder string) error {
	dir, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// present fails with code unavailable while the folder of the store is gone or is another one than at the start. The
// driver creates missing folders: without this check, stored objects would seem to be deleted, and new ones would go
// to the wrong disk. It keeps no file open, which would keep the file system from being unmounted.
func (s *location) present() error {
	if s.folder == "" {
		return nil
	}
	now, err := identify(s.folder)
	switch {
	case err != nil:
	case s.is.id == "" && now.inode != s.is.inode:
		err = errors.New("it is another folder than at the start of this process")
	case s.is.id != "" && now.id == "":
		err = fmt.Errorf("it has no file %s; if it is the right folder, write the id %s to that file", markerName,
			s.is.id)
	case s.is.id != "" && now.id != s.is.id:
		err = fmt.Errorf("it is another store: the file %s contains %s, and %s at the start of this process",
			markerName, now.id, s.is.id)
	}
	if err != nil {
		return berth.Errorf(berth.CodeUnavailable,
			"the folder %s of the blob store is not usable; mount or restore it: %v", s.folder, err)
	}
	return nil
}
