package blob_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"berth"
	"berth/internal/control/blob"
)

// recorded keeps the id of a cluster's store in memory.
type recorded struct {
	mu sync.Mutex
	id string
}

func (r *recorded) StoreID(context.Context) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.id, nil
}

func (r *recorded) RecordStoreID(_ context.Context, id string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.id == "" {
		r.id = id
	}
	return r.id, nil
}

// Replicas that start at once agree on one id. Later the store must have it: an empty store of the same kind, as an
// emptied bucket is, gets no id, and is another one until its id is adopted.
func TestAClusterKnowsItsStore(t *testing.T) {
	stores(t, func(t *testing.T, s *blob.Store) {
		if err := blob.Mark(s); err != nil {
			t.Fatal(err)
		}
		ids := &recorded{}
		first := make([]error, 8)
		var all sync.WaitGroup
		for i := range first {
			all.Go(func() { first[i] = blob.Guard{Store: s, IDs: ids}.Check(t.Context()) })
		}
		all.Wait()
		if err := errors.Join(first...); err != nil {
			t.Fatal(err)
		}
		id, err := s.ID(t.Context())
		if err != nil || id == "" || id != ids.id {
			t.Fatalf("the store has the id %q, and %q is recorded: %v", id, ids.id, err)
		}
		if err := s.Walk(t.Context(), func(o blob.Object) error { return errors.New(o.Key) }); err != nil {
			t.Errorf("the id is listed as an object: %v", err)
		}
		empty, err := blob.Open(t.Context(), "mem://")
		if err != nil {
			t.Fatal(err)
		}
		defer empty.Close()
		g := blob.Guard{Store: empty, IDs: ids}
		err = g.Check(t.Context())
		if !errors.Is(err, blob.ErrOtherStore) || berth.CodeOf(err) != berth.CodeUnavailable ||
			!strings.Contains(err.Error(), id) || !strings.Contains(err.Error(), "berthd store adopt") {
			t.Errorf("an empty store: %v", err)
		}
		if id, err := empty.ID(t.Context()); id != "" || err != nil {
			t.Errorf("the empty store has got the id %q, %v", id, err)
		}
		if ids.id, err = empty.NewID(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := g.Check(t.Context()); err != nil {
			t.Errorf("an adopted store: %v", err)
		}
	})
}
