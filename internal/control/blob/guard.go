package blob

import (
	"context"
	"errors"
	"fmt"

	"berth"
)

// ErrOtherStore reports that the object store is not the cluster's: its address names another one, or it was emptied.
// An error with it also has the code unavailable.
var ErrOtherStore = errors.New("the object store is not the one of this cluster")

// Identified is a store with an id; see Store.
type Identified interface {
	ID(ctx context.Context) (string, error)
	NewID(ctx context.Context) (string, error)
}

// IDs keeps the id of the cluster's store; see db.Cluster.
type IDs interface {
	StoreID(ctx context.Context) (string, error)
	RecordStoreID(ctx context.Context, id string) (recorded string, err error)
}

// Guard compares a store with the id that the database names. It is used before rows change because objects are
// missing, and before rows name new copies. It keeps nothing in memory, so a bucket that is emptied, and an id that an
// operator adopts, count at once.
type Guard struct {
	Store Identified
	IDs   IDs
}

// Check fails with ErrOtherStore if the store is not the cluster's. Other errors mean that the store or the database
// does not answer. A cluster without an id records the one of its store, and gives a bucket without one a new id. A
// folder without an id, which may be read-only, is accepted by a cluster without one.
func (g Guard) Check(ctx context.Context) error {
	want, err := g.IDs.StoreID(ctx)
	if err != nil {
		return err
	}
	have, err := g.Store.ID(ctx)
	if err == nil && want == "" && have == "" {
		have, err = g.Store.NewID(ctx)
	}
	if err == nil && want == "" && have != "" {
		want, err = g.IDs.RecordStoreID(ctx, have)
	}
	if err != nil || want == have {
		return err
	}
	has := "the id " + have
	if have == "" {
		has = "no id"
	}
	return fmt.Errorf("%w: %w", ErrOtherStore, berth.Errorf(berth.CodeUnavailable,
		"the object store has %s in %s, and the database names %s. Correct --blob-url, or restore the store. To use "+
			"this store from now on, copy all objects to it, stop every berthd, and run: berthd store adopt", has,
		markerName, want))
}
