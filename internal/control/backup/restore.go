package backup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"berth"
	"berth/db"
	"berth/internal/control/blob"
	"berth/internal/lib/sealer"
)

// RestoreOptions are the options of Restore.
type RestoreOptions struct {
	Dir         string // of the backup
	DatabaseURL string // of an empty database
	BlobURL     string // "": only for a backup without objects
	Keys        *sealer.Keys
	PgBin       string // folder of pg_restore; "": see findProgram
}

// Restored is the result of Restore.
type Restored struct {
	Manifest
	Copied  int // objects that were copied into the store
	Present int // objects that the store had already
	Missing int // listed objects that the bucket lacks

	// Changed are objects that have another size in the store, by a later upload: the store's are kept.
	// Replaced are objects of the same size and another content: they are copied from the backup.
	Changed, Replaced int
}

// Restore verifies a backup, puts its objects into the store, and restores its database, which is then
// quarantined. It refuses a damaged backup, keys that do not open the stored secrets, a schema of another
// version, and a database that is not empty. The objects come first, so a usable database has
// them. A failed call can be repeated; if it left tables, create the database again first.
func Restore(ctx context.Context, o RestoreOptions) (Restored, error) {
	m, err := Verify(ctx, o.Dir)
	if err != nil {
		return Restored{}, err
	}
	r := Restored{Manifest: m}
	// Everything that can refuse the restore comes before the first write.
	if err := m.checkKeys(o.Keys); err != nil {
		return r, err
	}
	found, err := db.Inspect(ctx, o.DatabaseURL)
	if err != nil {
		return r, err
	}
	if m.Schema != found.Wanted {
		return r, fmt.Errorf("backup %s has schema version %d, and this program %d: restore it with Berth %s, which "+
			"created it, and upgrade after that", o.Dir, m.Schema, found.Wanted, m.Berth)
	}
	// pg_restore must be as new as the pg_dump that wrote the file, and as the server.
	tool, err := findProgram(ctx, "pg_restore", o.PgBin, max(m.Database.Tool, found.Server/10000))
	if err != nil {
		return r, err
	}
	if err := tool.checkServer(found.Server / 10000); err != nil {
		return r, err
	}
	if err := db.CheckVacant(ctx, o.DatabaseURL); err != nil {
		return r, err
	}
	if err := r.objects(ctx, o); err != nil {
		return r, fmt.Errorf("restore objects: %w", err)
	}
	err = db.Restore(ctx, o.DatabaseURL, db.Restoration{Schema: m.Schema, Taken: m.StartedAt},
		func(ctx context.Context) error { return fillDatabase(ctx, tool, o) })
	if err != nil {
		return r, fmt.Errorf("restore database: %w", err)
	}
	return r, nil
}

// checkKeys refuses keys with which the restored cluster could not open its secrets, or would seal new ones
// under another key than before.
func (m Manifest) checkKeys(keys *sealer.Keys) error {
	var missing []string
	needed := m.SealedWith
	if len(m.Keys) > 0 {
		needed = append([]string{m.Keys[0]}, needed...)
	}
	for _, id := range needed {
		if keys == nil || !keys.Has(id) {
			missing = append(missing, id)
		}
	}
	switch {
	case len(missing) == 0:
		return nil
	case keys == nil:
		return fmt.Errorf("the backup has secrets under the keys %s: name the file with these keys by "+
			"--secret-key-file",
			strings.Join(missing, ", "))
	default:
		return fmt.Errorf("the key file has the keys %s and lacks %s, which the backup needs: name the key file "+
			"of the "+
			"cluster that was backed up", strings.Join(keys.IDs(), ", "), strings.Join(missing, ", "))
	}
}

// fillDatabase restores the dump in one transaction, without the rows of table schema_version; see
// db.Restore.
func fillDatabase(ctx context.Context, tool program, o RestoreOptions) error {
	work, err := os.MkdirTemp("", "berth-restore-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	dump, list := filepath.Join(o.Dir, databaseFile), filepath.Join(work, "list")
	f, err := os.OpenFile(list, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = tool.run(ctx, o.DatabaseURL, f, "--list", dump)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	if err := withoutVersion(list); err != nil {
		return err
	}
	// pg_restore connects to a database only with --dbname. The empty value makes it use PGDATABASE.
	return tool.run(ctx, o.DatabaseURL, nil, "--dbname=", "--single-transaction", "--exit-on-error", "--no-owner",
		"--no-privileges", "--use-list", list, dump)
}

// withoutVersion removes the rows of table schema_version from a list of the contents of a dump.
func withoutVersion(list string) error {
	text, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	var kept [][]byte
	removed := 0
	for line := range bytes.Lines(text) {
		if bytes.Contains(line, []byte(" TABLE DATA public schema_version ")) {
			removed++
			continue
		}
		kept = append(kept, line)
	}
	if removed != 1 {
		return fmt.Errorf("the dump has %d tables of the schema's version: it is no backup by berthd", removed)
	}
	return os.WriteFile(list, bytes.Join(kept, nil), 0o600)
}

// objects puts the copied objects into the store, or compares the listing with the bucket.
func (r *Restored) objects(ctx context.Context, o RestoreOptions) error {
	if r.Objects.Kind == ObjectsNone {
		return nil
	}
	if o.BlobURL == "" {
		return fmt.Errorf("the backup has %d objects of %s: name the object store of the restored cluster by "+
			"--blob-url",
			r.Objects.Count, r.Objects.Store)
	}
	store, err := blob.Open(ctx, o.BlobURL)
	if err != nil {
		return err
	}
	defer store.Close()
	// One walk reads the sizes of all objects. A look-up for each line of the listing would be a
	// call to the store for each.
	sizes := map[string]int64{}
	if err := store.Walk(ctx, func(x blob.Object) error { sizes[x.Key] = x.Size; return nil }); err != nil {
		return err
	}
	return readListing(o.Dir, r.Manifest, func(e entry) error {
		size, ok := sizes[e.Key]
		switch {
		case ok && size != e.Size: // such as a piece of a log that has grown
			r.Changed++
			return nil
		case ok:
			// Equal sizes do not prove equal content: the SHA-256 of the copy decides.
			same, err := sameObject(ctx, store, e)
			if same || err != nil {
				r.Present++
				return err
			}
			r.Replaced++
		case r.Objects.Kind == ObjectsListed:
			r.Missing++
			return nil
		default:
			r.Copied++
		}
		return putObject(ctx, store, e.Key, filepath.Join(o.Dir, objectsDir, filepath.FromSlash(e.Key)))
	})
}

// sameObject compares an object of the store with the SHA-256 of a copied one. Without a SHA-256 it is the same.
func sameObject(ctx context.Context, store *blob.Store, e entry) (bool, error) {
	if e.SHA256 == "" {
		return true, nil
	}
	f, _, err := store.Open(ctx, e.Key)
	if err != nil {
		return false, err
	}
	defer f.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	return hex.EncodeToString(sum.Sum(nil)) == e.SHA256, err
}

// putObject stores a copied object.
func putObject(ctx context.Context, store *blob.Store, key, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	_, err = store.Put(ctx, key, f, info.Size())
	return err
}

// Adopt ends the quarantine of the restored cluster at a database. A database that berthd has not
// migrated to the schema of this program is an error of code conflict.
func Adopt(ctx context.Context, database string) (db.Adoption, error) {
	found, err := db.Inspect(ctx, database)
	if err != nil {
		return db.Adoption{}, err
	}
	// Before the first start of berthd, which migrates, no machine can have registered.
	if found.Conflict != nil || found.Version != found.Wanted {
		return db.Adoption{}, cmp.Or(found.Conflict, error(berth.Errorf(berth.CodeConflict, "the database is at "+
			"schema "+
			"version %d, and this program at %d: start berthd first", found.Version, found.Wanted)))
	}
	d, err := db.Open(ctx, database, db.Options{MaxConns: 4})
	if err != nil {
		return db.Adoption{}, err
	}
	defer d.Close()
	return d.Leader.Adopt(ctx)
}
