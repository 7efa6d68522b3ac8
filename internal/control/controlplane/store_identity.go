package controlplane

import (
	"context"
	"errors"
	"fmt"

	"berth/db"
	"berth/internal/control/blob"
	"berth/internal/control/watermark"
)

// guard compares the object store with the cluster's.
func (a *assembly) guard() blob.Guard { return blob.Guard{Store: a.blobs, IDs: a.db.Cluster} }

// identifyStore fails if the object store is not the cluster's. Only a cluster without a store gives a folder an id: an
// empty folder may be the mount point of the right one. A store that does not answer is no failure, as long as it does
// not: checkStore keeps calls away, and each change that depends on the store compares again.
func (a *assembly) identifyStore(ctx context.Context) error {
	id, err := a.db.Cluster.StoreID(ctx)
	if err != nil {
		return err
	}
	if id == "" {
		if err := blob.Mark(a.blobs); err != nil {
			a.log.Warn("cannot write the id of the object store, will recognize the folder by its inode number", "err",
				err)
		}
	}
	call, cancel := context.WithTimeout(ctx, watermark.Patience)
	defer cancel()
	err = a.guard().Check(call)
	if errors.Is(err, blob.ErrOtherStore) {
		return err
	}
	if err != nil {
		a.log.Warn("cannot read the id of the object store, will try again", "err", err)
	}
	return nil
}

// checkStore reports whether the object store answers and is the cluster's.
func (a *assembly) checkStore(ctx context.Context) error {
	if err := a.blobs.Check(ctx); err != nil {
		return err
	}
	return a.guard().Check(ctx)
}

// AdoptStore makes an object store the one of the cluster at a database, and returns the id of the store and the id
// that the database named before, or "". A bucket or folder without an id gets one. No berthd may run.
func AdoptStore(ctx context.Context, database, store string) (id, before string, err error) {
	if database == "" || store == "" {
		return "", "", errors.New("no database or no object store: set --database-url and --blob-url")
	}
	s, err := blob.Open(ctx, store)
	if err != nil {
		return "", "", err
	}
	defer s.Close()
	if err := blob.Mark(s); err != nil {
		return "", "", err
	}
	if id, err = s.ID(ctx); err == nil && id == "" {
		id, err = s.NewID(ctx)
	}
	if err != nil {
		return "", "", err
	}
	d, err := db.Open(ctx, database, db.Options{MaxConns: 4})
	if err != nil {
		return "", "", fmt.Errorf("database %s: %w", redact(database), err)
	}
	defer d.Close()
	before, err = d.Cluster.AdoptStoreID(ctx, id)
	return id, before, err
}
