package watermark

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/db"
)

// Store is the part of the object store that a Keeper needs; see blob.Store.
type Store interface {
	Names(ctx context.Context, folder string) ([]string, error)
	ReadAll(ctx context.Context, key string, limit int64) ([]byte, error)
	Create(ctx context.Context, key string, data []byte) error
	Delete(ctx context.Context, key string) error
}

// Timing of a Keeper.
const (
	// Patience bounds the wait for the store at the start of a process or of a term. After that
	// the process works without the store.
	Patience = 3 * time.Second

	// DefaultEvery is the time from one watermark to the next. A backup that is
	// restored is noticed if it is older than the newest watermark.
	DefaultEvery = 10 * time.Second

	// verifyEvery is the time between two looks at the database alone.
	verifyEvery = time.Second

	// LeapPatience is how long a leap may take. It waits for the leader's writes and
	// locks all live at_most_one jobs, so it has more time than a look.
	LeapPatience = 30 * time.Second
)

// maxRecord bounds the bytes read of a record, which has some 200.
const maxRecord = 4 << 10

// ErrLeapt reports that the database was found to be restored: its ids and terms
// have leapt, and the leader must take the lead again.
var ErrLeapt = errors.New("the database was restored from a backup and has leapt")

// Keeper compares the database with the object store, and grants watermarks. All
// fields but Every are required. Its methods may be called concurrently.
type Keeper struct {
	DB     *db.DB
	Store  Store
	Logger *slog.Logger
	Every  time.Duration // between two watermarks; 0: DefaultEvery

	mu   sync.Mutex
	owed *db.Outside // proof of a restore whose leap has failed
}

// Check compares the database with the newest record of the store. A database without that
// record leaps, and the result is ErrLeapt, or db.ErrRestored if the leap failed: then
// nothing may be placed and no machine answered. Any other error means that nothing is
// known: the store or the database did not answer within Patience.
func (k *Keeper) Check(ctx context.Context) error {
	if err := k.retryLeap(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	_, err := k.check(ctx)
	return err
}

// leap makes the database leap beyond a proof of its restore, and returns ErrLeapt, or
// db.ErrRestored with the cause of the failure. Neither the caller's deadline, which bounds the
// look, nor the end of its term interrupts a leap.
func (k *Keeper) leap(ctx context.Context, proof db.Outside) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), LeapPatience)
	defer cancel()
	_, err := k.DB.Leader.Leap(ctx, proof)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.owed = &proof
		k.Logger.Error("database restored from a backup, but its leap failed, no work is placed before it succeeds",
			"lost_watermark", proof.Number, "err", err)
		return fmt.Errorf("%w: leap: %w", db.ErrRestored, err)
	}
	k.owed = nil
	return ErrLeapt
}

// retryLeap repeats a leap that has failed in this process. The proof is kept in memory, since
// the store that holds the proof may be away by now.
func (k *Keeper) retryLeap(ctx context.Context) error {
	k.mu.Lock()
	owed := k.owed
	k.mu.Unlock()
	if owed == nil {
		return nil
	}
	return k.leap(ctx, *owed)
}

// check is Check, and also returns the newest record's number, 0 for an empty store.
func (k *Keeper) check(ctx context.Context) (int64, error) {
	folder, err := k.folder(ctx)
	if err != nil {
		return 0, err
	}
	names, err := k.records(ctx, folder)
	if err != nil || len(names) == 0 {
		return 0, err
	}
	newest := names[len(names)-1]
	b, err := k.Store.ReadAll(ctx, folder+"/"+newest, maxRecord)
	if berth.CodeOf(err) == berth.CodeNotFound {
		// Removed meanwhile by a leader that has written the next one.
		return 0, berth.Errorf(berth.CodeUnavailable, "watermark %s was replaced while it was read", newest)
	}
	if err != nil {
		return 0, err
	}
	var found db.Outside
	if err := json.Unmarshal(b, &found); err != nil || key(folder, found.Number) != folder+"/"+newest {
		return 0, fmt.Errorf("watermark %s/%s in the object store is damaged (%v): remove it", folder, newest, err)
	}
	known, err := k.DB.Leader.KnowsStored(ctx, found.StoredWatermark)
	if err != nil || known {
		return found.Number, err
	}
	return 0, k.leap(ctx, found)
}

// folder is where this cluster's records lie: several may share a store.
func (k *Keeper) folder(ctx context.Context) (string, error) {
	cluster, err := k.DB.Cluster.ID(ctx)
	return "clusters/" + cluster + "/watermarks", err
}

// digits is the length of a record's name: all have one, so that they sort by
// their number.
const digits = 19

// key returns the key of a record. Keys sort as their numbers do.
func key(folder string, number int64) string { return fmt.Sprintf("%s/%0*d", folder, digits, number) }

// records lists the names of the records, the newest last.
func (k *Keeper) records(ctx context.Context, folder string) ([]string, error) {
	names, err := k.Store.Names(ctx, folder)
	names = slices.DeleteFunc(names, func(n string) bool {
		return len(n) != digits ||
			strings.Trim(n, "0123456789") != ""
	})
	slices.Sort(names)
	return names, err
}

// Tenure grants watermarks for one leader's term, and detects a restore of the database during
// the term. Run and Watch may run at once; the other methods are not for concurrent use.
type Tenure struct {
	keeper   *Keeper
	baseline db.Baseline // Watch's
	branch   db.Branch   // Run's, as is the rest
	checked  bool        // the database was compared with the store in this term
	folder   string
	number   int64 // of this tenure's newest record
}

// Open begins a tenure.
func (k *Keeper) Open(term db.Term) *Tenure {
	return &Tenure{keeper: k, branch: db.Branch{Term: term}}
}

// Begin compares the database with the store and grants a first watermark, within
// Patience. It returns ErrLeapt, db.ErrRestored or a stale epoch where the term is
// over. A store that does not answer is no error: Run tries again.
func (t *Tenure) Begin(ctx context.Context) error {
	if err := t.keeper.retryLeap(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	err := t.advance(ctx)
	if err != nil && !over(err) {
		t.keeper.Logger.Error("object store unreachable, leading without a new watermark", "err", err)
		return nil
	}
	return err
}

// Run grants watermarks until ctx ends or the term is over.
func (t *Tenure) Run(ctx context.Context) error {
	every := cmp.Or(t.keeper.Every, DefaultEvery)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		call, cancel := context.WithTimeout(ctx, max(every, Patience))
		err := t.advance(call)
		cancel()
		switch {
		case err == nil || ctx.Err() != nil:
		case over(err):
			return err
		default:
			t.keeper.Logger.Error("cannot write the watermark, only machines would notice a restored backup",
				"err", err)
		}
	}
}

// Watch checks each second whether the database was restored under this leader, and returns when
// ctx ends or a restore is found. It never waits for the store, so a store that hangs does not
// delay a check.
func (t *Tenure) Watch(ctx context.Context) error {
	tick := time.NewTicker(min(cmp.Or(t.keeper.Every, DefaultEvery), verifyEvery))
	defer tick.Stop()
	for {
		if err := t.verify(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// verify is one look of Watch. It is as good as the database answers: its silence
// proves nothing. Once the database is known to have lost rows, every result ends
// the term.
func (t *Tenure) verify(ctx context.Context) error {
	look, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	if err := t.baseline.Verify(look, t.keeper.DB.Leader); errors.Is(err, db.ErrRestored) {
		return t.keeper.leap(ctx, t.baseline.Lost())
	}
	return nil
}

// over reports whether an error ends the leader's term.
func over(err error) bool {
	return errors.Is(err, ErrLeapt) || errors.Is(err, db.ErrRestored) || berth.IsSlug(err, berth.SlugStaleEpoch)
}

// advance reserves, stores and grants a watermark, in this order: a granted watermark is
// always in the store.
func (t *Tenure) advance(ctx context.Context) error {
	var above int64
	if !t.checked {
		var err error
		if above, err = t.keeper.check(ctx); err != nil {
			return err
		}
		if t.folder, err = t.keeper.folder(ctx); err != nil {
			return err
		}
		t.checked = true
	}
	next, err := t.branch.Reserve(ctx, t.keeper.DB.Leader, above)
	if err != nil {
		return t.proved(ctx, err)
	}
	record, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("watermark %d: %w", next.Number, err)
	}
	err = t.keeper.Store.Create(ctx, key(t.folder, next.Number), record)
	if berth.CodeOf(err) == berth.CodeConflict {
		err = t.adopt(ctx, next)
	}
	if err != nil {
		return err
	}
	if err := t.branch.Grant(ctx, t.keeper.DB.Leader, next); err != nil {
		return t.proved(ctx, err)
	}
	t.clear(ctx, next.Number)
	return nil
}

// proved has a database leap that no longer has this term's watermarks, and returns
// all other errors as they are.
func (t *Tenure) proved(ctx context.Context, err error) error {
	if errors.Is(err, db.ErrRestored) {
		return t.keeper.leap(ctx, t.branch.Lost())
	}
	return err
}

// adopt accepts an existing record if an earlier try of this process has written that
// record, and only the answer was lost. Any other record comes from another process: the
// store is compared again.
func (t *Tenure) adopt(ctx context.Context, next db.Outside) error {
	b, err := t.keeper.Store.ReadAll(ctx, key(t.folder, next.Number), maxRecord)
	if err != nil {
		return err
	}
	var found db.Outside
	if err := json.Unmarshal(b, &found); err == nil && found.StoredWatermark == next.StoredWatermark {
		return nil
	}
	t.checked = false
	return berth.Errorf(berth.CodeUnavailable, "watermark %d is in the object store already, and not by this leader",
		next.Number)
}

// clear removes the records before the newest one: the latest of this term or, at
// the beginning of a term, all records of earlier leaders. A leftover record does no
// harm.
func (t *Tenure) clear(ctx context.Context, newest int64) {
	var err error
	if t.number > 0 {
		err = t.keeper.Store.Delete(ctx, key(t.folder, t.number))
	} else {
		var names []string
		names, err = t.keeper.records(ctx, t.folder)
		for _, name := range names {
			if k := t.folder + "/" + name; err == nil && k < key(t.folder, newest) {
				err = t.keeper.Store.Delete(ctx, k)
			}
		}
	}
	t.number = newest
	if err != nil {
		t.keeper.Logger.Warn("cannot remove old watermarks from the object store", "err", err)
	}
}
