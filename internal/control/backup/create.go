package backup

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth"
	"berth/db"
	"berth/internal/control/blob"
	"berth/internal/lib/sealer"
)

// Options of Create.
type Options struct {
	Dir         string // of the backup; it must not exist
	DatabaseURL string
	BlobURL     string       // "" only with NoObjects
	NoObjects   bool         // the installation has no object store
	Keys        *sealer.Keys // nil: there are none
	PgBin       string       // folder of pg_dump; "": see findProgram
	Actor       string       // user and host, for the row of the backup
	Version     string       // of Berth

	// RenewEvery is the pause between two renewals of the lease; 0: a quarter of the lease.
	RenewEvery time.Duration
	// Dumped, if not nil, is called between the dump and the copies of the objects; tests use it.
	Dumped func()
}

// creation is one call of Create.
type creation struct {
	Options
	work     string // folder with the temporary name
	db       *db.DB
	id       string // of the backup's row
	manifest Manifest
}

// Create takes a backup and returns its manifest. Control planes may run meanwhile; only their deletions
// wait. A failed call leaves no folder; a killed one leaves a folder with ".partial-" in its name.
func Create(ctx context.Context, o Options) (Manifest, error) {
	c := &creation{Options: o}
	// Every check comes before the first write, so that a refused call leaves neither a folder nor
	// a lease.
	if err := c.checkDir(); err != nil {
		return Manifest{}, err
	}
	if err := c.checkStore(); err != nil {
		return Manifest{}, err
	}
	found, err := db.Inspect(ctx, o.DatabaseURL)
	if err != nil {
		return Manifest{}, err
	}
	if err := checkSource(found); err != nil {
		return Manifest{}, err
	}
	// Server is the version as PostgreSQL reports it: 150004 is 15.4. An older pg_dump refuses a
	// newer server.
	dump, err := findProgram(ctx, "pg_dump", o.PgBin, found.Server/10000)
	if err != nil {
		return Manifest{}, err
	}
	if err := dump.checkServer(found.Server / 10000); err != nil {
		return Manifest{}, err
	}
	c.manifest = Manifest{Format: format, Berth: o.Version, Schema: found.Version, SealedWith: found.SealedKeys,
		StartedAt: time.Now().UTC(), Database: Database{Server: found.Server, Tool: dump.major}}
	if o.Keys != nil {
		c.manifest.Keys = o.Keys.IDs()
	}
	if c.db, err = db.Open(ctx, o.DatabaseURL, db.Options{MaxConns: 4}); err != nil {
		return Manifest{}, err
	}
	defer c.db.Close()
	if c.manifest.Cluster, err = c.db.Cluster.ID(ctx); err != nil {
		return Manifest{}, err
	}
	// The temporary folder is next to the final one, and so on the same file system: publish
	// renames it.
	if c.work, err = os.MkdirTemp(filepath.Dir(c.Dir), filepath.Base(c.Dir)+".partial-"); err != nil {
		return Manifest{}, fmt.Errorf("create backup: %w", err)
	}
	defer os.RemoveAll(c.work) // nothing is left there after the rename
	if err := c.leased(ctx, dump); err != nil {
		return Manifest{}, fmt.Errorf("create backup %s: %w", c.Dir, err)
	}
	return c.manifest, nil
}

// checkDir refuses a folder that exists.
func (c *creation) checkDir() (err error) {
	if c.Dir, err = filepath.Abs(c.Dir); err != nil {
		return err
	}
	if _, err := os.Lstat(c.Dir); err == nil {
		return fmt.Errorf("create backup: %s exists: name a new folder, such as one with the date", c.Dir)
	}
	return nil
}

// checkStore refuses a call that names no object store, and a store whose folder does not exist: an empty store
// hides a wrong name.
func (c *creation) checkStore() error {
	switch {
	case c.BlobURL == "" && !c.NoObjects:
		return errors.New("create backup: no object store: name it by --blob-url or BERTH_BLOB_URL, or say by " +
			"--no-objects that the installation has none")
	case c.BlobURL != "" && c.NoObjects:
		return fmt.Errorf("create backup: --no-objects is given, and the settings name the object store %s: keep one",
			withoutQuery(c.BlobURL))
	}
	u, err := url.Parse(c.BlobURL)
	if err != nil || u.Scheme != "file" {
		return nil // blob.Open judges the URL
	}
	if _, err := os.Stat(filepath.FromSlash(u.Path)); err != nil {
		return fmt.Errorf("create backup: the object store %s has no folder: %w", withoutQuery(c.BlobURL), err)
	}
	return nil
}

// checkSource refuses a database that this program does not know.
func checkSource(found db.Inspection) error {
	switch {
	case found.Conflict != nil:
		return found.Conflict
	case found.Version == 0:
		return errors.New("the database has no schema of Berth: nothing to back up")
	case found.Version != found.Wanted:
		return fmt.Errorf("the database is at schema version %d, and this program at %d: run the backup with the "+
			"berthd "+
			"that serves the cluster", found.Version, found.Wanted)
	}
	return nil
}

// leased takes the backup under its lease. A lease that is lost ends the backup: objects may be missing.
func (c *creation) leased(ctx context.Context, dump program) (err error) {
	if c.id, err = c.db.Backups.Begin(ctx, c.Actor); err != nil {
		return err
	}
	// The lease ends on every path, so that deletions wait no longer than needed. The context of
	// the call may have ended by then, so the end has a context of its own.
	whole := false
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		// A lease that cannot be ended ends by itself.
		if failed := c.db.Backups.End(end, c.id, whole); whole && failed != nil {
			err = fmt.Errorf("the backup is whole, and the database does not record that: %w", failed)
		}
	}()
	held, lost := context.WithCancelCause(ctx)
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		c.renew(held, lost)
	}()
	err = c.fill(held, dump)
	// lost(nil) sets a cause as well, so a lost lease must be read from the context before.
	cause := context.Cause(held)
	lost(nil)
	<-renewed
	if cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	// The lease has never lapsed if it can still be renewed, so no object was deleted meanwhile.
	if err := c.db.Backups.Renew(ctx, c.id); err != nil {
		return err
	}
	if err := c.publish(); err != nil {
		return err
	}
	whole = true
	return nil
}

// renew renews the lease until ctx ends, and calls lost once the database reports that the lease has ended.
// Other errors are ignored: the lease may still hold, and the last renewal decides.
func (c *creation) renew(ctx context.Context, lost context.CancelCauseFunc) {
	every := c.RenewEvery
	if every == 0 {
		every = db.BackupLease / 4
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := c.db.Backups.Renew(ctx, c.id); berth.CodeOf(err) == berth.CodeConflict {
			lost(err)
			return
		}
	}
}

// fill writes the contents of the backup into the temporary folder: the database first, the objects after it.
func (c *creation) fill(ctx context.Context, dump program) error {
	file := filepath.Join(c.work, databaseFile)
	// pg_dump would create the file with the rights of the umask.
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	// Only the custom format lets a restore leave out single tables. With the time limit, pg_dump
	// fails instead of waiting for a long transaction that has locked a table.
	if err := dump.run(ctx, c.DatabaseURL, nil, "--format=custom", "--lock-wait-timeout=60s", "--file",
		file); err != nil {
		return err
	}
	var err error
	if c.manifest.Database.Bytes, c.manifest.Database.SHA256, err = sumFile(file); err != nil {
		return err
	}
	if c.Dumped != nil {
		c.Dumped()
	}
	if err := c.objects(ctx); err != nil {
		return err
	}
	c.manifest.EndedAt = time.Now().UTC()
	return c.manifest.write(c.work)
}

// objects copies or lists the objects.
func (c *creation) objects(ctx context.Context) error {
	if c.NoObjects {
		c.manifest.Objects = Objects{Kind: ObjectsNone}
		return nil
	}
	store, err := blob.Open(ctx, c.BlobURL)
	if err != nil {
		return err
	}
	defer store.Close()
	within, err := inside(c.work, store.Folder())
	if err != nil {
		return err
	}
	if within {
		return fmt.Errorf("the folder of the backup lies in the object store %s: name another folder", store.Folder())
	}
	c.manifest.Objects, err = saveObjects(ctx, store, c.work)
	c.manifest.Objects.Store = withoutQuery(c.BlobURL)
	return err
}

// inside reports whether path lies in folder, with all links resolved. Both exist; the folder "" has nothing in it.
func inside(path, folder string) (bool, error) {
	if folder == "" {
		return false, nil
	}
	folder, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return false, err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return false, err
	}
	rel, err := filepath.Rel(folder, path)
	return err == nil && filepath.IsLocal(rel), nil
}

// withoutQuery returns the URL of a store without parameters and credentials.
func withoutQuery(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	u.RawQuery, u.User = "", nil
	return u.String()
}

// publish gives the folder its final name, once all its files are on the disk.
func (c *creation) publish() error {
	parent, err := os.Open(filepath.Dir(c.Dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := unix.Syncfs(int(parent.Fd())); err != nil {
		return fmt.Errorf("write the files to disk: %w", err)
	}
	// The rename is atomic, so a folder with the final name is a whole backup. The sync of the
	// parent folder keeps the new name after a loss of power.
	if err := os.Rename(c.work, c.Dir); err != nil {
		return err
	}
	return parent.Sync()
}
