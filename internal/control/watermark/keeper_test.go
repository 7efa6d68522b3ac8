package watermark_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/blob"
	"berth/internal/control/watermark"
)

// rig is a database and an object store, whose leaders the test plays.
type rig struct {
	t     *testing.T
	db    *db.DB
	blobs *blob.Store
}

func newRig(t *testing.T) *rig {
	t.Helper()
	blobs, err := blob.Open(t.Context(), "file://"+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = blobs.Close() })
	return &rig{t, dbtest.DB(t, db.Options{}), blobs}
}

func (r *rig) exec(sql string) {
	r.t.Helper()
	if _, err := r.db.Pool().Exec(r.t.Context(), sql); err != nil {
		r.t.Fatalf("%v\n%s", err, sql)
	}
}

// term takes the lead from its present holder.
func (r *rig) term(holder string) db.Term {
	r.t.Helper()
	r.exec(`UPDATE leases SET expires_at = now() - interval '1 s'`)
	term, ok, err := r.db.Leader.OpenLease(db.LeaseLeader, holder).Acquire(r.t.Context(), time.Hour)
	if err != nil || !ok {
		r.t.Fatal(ok, err)
	}
	return term
}

func (r *rig) keeper(s watermark.Store) *watermark.Keeper {
	return &watermark.Keeper{DB: r.db, Store: s, Logger: slog.New(slog.DiscardHandler), Every: 5 * time.Millisecond}
}

// numbers returns the watermark granted by the database, and the stored ones.
func (r *rig) numbers() (granted int64, stored []string) {
	r.t.Helper()
	err := r.db.Pool().QueryRow(r.t.Context(), `SELECT coalesce((SELECT granted FROM watermark_branches w WHERE w.branch = c.branch), 0) FROM cluster c`).Scan(&granted)
	if err != nil {
		r.t.Fatal(err)
	}
	cluster, err := r.db.Cluster.ID(r.t.Context())
	if err == nil {
		stored, err = r.blobs.Names(r.t.Context(), "clusters/"+cluster+"/watermarks")
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return granted, stored
}

func (r *rig) wants(granted int64, stored ...string) {
	r.t.Helper()
	g, s := r.numbers()
	if g != granted || len(s) != len(stored) || len(s) > 0 && s[0] != stored[0] {
		r.t.Errorf("granted %d, stored %v; want %d, %v", g, s, granted, stored)
	}
}

func (r *rig) incarnation() int64 {
	r.t.Helper()
	n, err := r.db.Leader.Incarnation(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// begins plays a process that begins to lead.
func (r *rig) begins(holder string, s watermark.Store) (*watermark.Tenure, error) {
	r.t.Helper()
	t := r.keeper(s).Open(r.term(holder))
	return t, t.Begin(r.t.Context())
}

// broken is a store of which one method does something else first.
type broken struct {
	*blob.Store
	create func() error
	names  func(context.Context) error
}

func (b broken) Create(ctx context.Context, key string, data []byte) error {
	if b.create != nil {
		if err := b.create(); err != nil {
			return err
		}
	}
	return b.Store.Create(ctx, key, data)
}

func (b broken) Names(ctx context.Context, folder string) ([]string, error) {
	if b.names != nil {
		if err := b.names(ctx); err != nil {
			return nil, err
		}
	}
	return b.Store.Names(ctx, folder)
}

var errDown = errors.New("the store is down")

func TestEachLeaderGrantsAWatermarkThatIsInTheStore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.wants(0)
	for n, stored := range []string{"0000000000000000001", "0000000000000000002", "0000000000000000003"} {
		if _, err := r.begins("leader", r.blobs); err != nil {
			t.Fatal(err)
		}
		r.wants(int64(n+1), stored)
		if err := r.keeper(r.blobs).Check(t.Context()); err != nil || r.incarnation() != 1 {
			t.Errorf("checked: %v, incarnation %d", err, r.incarnation())
		}
	}
}

// The process dies before its write to the store, after it, or loses the answer.
func TestALeaderThatDiesWhileItGrantsIsNoRestore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, err := r.begins("first", r.blobs); err != nil {
		t.Fatal(err)
	}
	before := broken{Store: r.blobs, create: func() error { return errDown }}
	if _, err := r.begins("second", before); err != nil {
		t.Fatal(err)
	}
	r.wants(1, "0000000000000000001")
	term := r.term("third")
	after := broken{Store: r.blobs, create: func() error { return nil }}
	ctx, cancel := context.WithCancel(t.Context())
	dies := diesAfterCreate{after, cancel}
	if err := r.keeper(dies).Open(term).Begin(ctx); err != nil {
		t.Fatal(err)
	}
	if g, s := r.numbers(); g != 1 || len(s) != 2 {
		t.Fatalf("granted %d, stored %v", g, s)
	}
	if _, err := r.begins("fourth", r.blobs); err != nil {
		t.Fatal(err)
	}
	if g, s := r.numbers(); g < 3 || len(s) != 1 || r.incarnation() != 1 {
		t.Errorf("granted %d, stored %v, incarnation %d", g, s, r.incarnation())
	}
}

type diesAfterCreate struct {
	broken
	die func()
}

func (d diesAfterCreate) Create(ctx context.Context, key string, data []byte) error {
	err := d.broken.Create(ctx, key, data)
	d.die()
	return err
}

func TestAnAnswerOfTheStoreThatWasLostIsNoConflict(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lost := true
	s := losesAnswers{r.blobs, &lost}
	tenure, err := r.begins("first", s)
	if err != nil {
		t.Fatal(err)
	}
	r.wants(0, "0000000000000000001")
	lost = false
	if err := tenure.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.wants(1, "0000000000000000001")
}

type losesAnswers struct {
	*blob.Store
	lost *bool
}

func (l losesAnswers) Create(ctx context.Context, key string, data []byte) error {
	err := l.Store.Create(ctx, key, data)
	if err == nil && *l.lost {
		return errDown
	}
	return err
}

// A leader that freezes between its reservation and its write wakes when another
// one leads.
func TestALeaderThatWakesLateDoesNotSetTheStoreBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	old := r.term("old")
	frozen := broken{Store: r.blobs, create: func() error {
		_, err := r.begins("new", r.blobs)
		return err
	}}
	if err := r.keeper(frozen).Open(old).Begin(t.Context()); !berth.IsSlug(err, berth.SlugStaleEpoch) {
		t.Errorf("the old leader goes on: %v", err)
	}
	if err := r.keeper(r.blobs).Check(t.Context()); err != nil || r.incarnation() != 1 {
		t.Errorf("checked: %v, incarnation %d", err, r.incarnation())
	}
	if g, _ := r.numbers(); g != 2 {
		t.Errorf("granted %d", g)
	}
}

func TestARestoredDatabaseLeapsBeyondWhatTheStoreSetApart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec(`SELECT setval(pg_get_serial_sequence('allocations', 'id'), 70000000)`)
	tenure, err := r.begins("first", r.blobs)
	if err != nil {
		t.Fatal(err)
	}
	r.exec(`CREATE TABLE kept AS SELECT * FROM watermark_branches`)
	if err := tenure.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.exec(`UPDATE watermark_branches w SET granted = k.granted, pending = k.pending FROM kept k WHERE k.branch = w.branch`)
	r.exec(`SELECT setval(pg_get_serial_sequence('allocations', 'id'), 5)`)
	if err := r.keeper(r.blobs).Check(t.Context()); !errors.Is(err, watermark.ErrLeapt) {
		t.Fatalf("checked: %v", err)
	}
	var id int64
	if err := r.db.Pool().QueryRow(t.Context(), `SELECT nextval(pg_get_serial_sequence('allocations', 'id'))`).Scan(&id); err != nil || id <= 80_000_000 {
		t.Errorf("id %d follows 80,000,000: %v", id, err)
	}
	// The next leader has no reason to leap.
	if _, err := r.begins("next", r.blobs); err != nil || r.incarnation() != 2 {
		t.Errorf("the next leader: %v, incarnation %d", err, r.incarnation())
	}
}

// The store is down, or keeps quiet, when a leader begins: it leads after a while
// and grants nothing, and notices the restore when the store is back.
func TestWithoutTheStoreALeaderLeadsAndComparesLater(t *testing.T) {
	t.Parallel()
	for name, names := range map[string]func(context.Context) error{
		"down":   func(context.Context) error { return errDown },
		"silent": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			tenure, err := r.begins("first", r.blobs)
			if err == nil {
				err = tenure.Begin(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			r.exec(`UPDATE watermark_branches SET granted = 1, pending = 1`)
			down := true
			s := broken{Store: r.blobs, names: func(ctx context.Context) error {
				if down {
					return names(ctx)
				}
				return nil
			}}
			tenure, err = r.begins("second", s)
			if g, _ := r.numbers(); err != nil || g != 1 || r.incarnation() != 1 {
				t.Fatalf("led with %v, granted %d, incarnation %d", err, g, r.incarnation())
			}
			down = false
			if err := tenure.Run(t.Context()); !errors.Is(err, watermark.ErrLeapt) || r.incarnation() != 2 {
				t.Errorf("ended with %v in incarnation %d", err, r.incarnation())
			}
		})
	}
}

func TestAStoreThatWasEmptiedIsNoRestore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, err := r.begins("first", r.blobs); err != nil {
		t.Fatal(err)
	}
	if err := r.blobs.DeleteFolder(t.Context(), "clusters"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.begins("second", r.blobs); err != nil || r.incarnation() != 1 {
		t.Errorf("led with %v in incarnation %d", err, r.incarnation())
	}
	r.wants(2, "0000000000000000002")
}

func TestADamagedRecordIsAnErrorThatNamesIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	cluster, err := r.db.Cluster.ID(t.Context())
	if err == nil {
		err = r.blobs.Create(t.Context(), "clusters/"+cluster+"/watermarks/0000000000000000009", []byte("{"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := r.keeper(r.blobs).Check(t.Context()); err == nil || errors.Is(err, watermark.ErrLeapt) {
		t.Errorf("checked: %v", err)
	}
}

// loses makes the database one that was restored to before its newest watermark.
func (r *rig) loses() {
	r.t.Helper()
	r.exec(`
		UPDATE watermark_branches
		SET granted = granted - 1, pending = granted - 1
		WHERE branch = (SELECT branch FROM cluster)`)
}

// twice grants two watermarks of one leader, so that the database has one to lose.
func (r *rig) twice() {
	r.t.Helper()
	tenure, err := r.begins("before", r.blobs)
	if err == nil {
		err = tenure.Begin(r.t.Context())
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// A database that is known to be restored, and does not leap, gets no leader, even
// once the store that proved it is away.
func TestNobodyLeadsARestoredDatabaseThatDoesNotLeap(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.twice()
	r.loses()
	r.exec(`ALTER TABLE cluster ADD CONSTRAINT stuck CHECK (incarnation < 2)`)
	up := true
	k := r.keeper(broken{Store: r.blobs, names: func(context.Context) error {
		if up {
			return nil
		}
		return errDown
	}})
	if err := k.Check(t.Context()); !errors.Is(err, db.ErrRestored) {
		t.Errorf("checked: %v", err)
	}
	up = false
	for range 2 {
		if err := k.Open(r.term("leader")).Begin(t.Context()); !errors.Is(err, db.ErrRestored) {
			t.Errorf("led: %v", err)
		}
	}
	r.exec(`ALTER TABLE cluster DROP CONSTRAINT stuck`)
	if err := k.Open(r.term("leader")).Begin(t.Context()); !errors.Is(err, watermark.ErrLeapt) || r.incarnation() != 2 {
		t.Errorf("led: %v, incarnation %d", err, r.incarnation())
	}
	if err := k.Open(r.term("leader")).Begin(t.Context()); err != nil || r.incarnation() != 2 {
		t.Errorf("led after the leap: %v, incarnation %d", err, r.incarnation())
	}
}

// The caller's patience is over, or its term, while a leap waits for a lock.
func TestALeapThatTakesLongIsNotGivenUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.twice()
	r.loses()
	pool := dbtest.Beside(t, r.db)
	tx, err := pool.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), `SELECT 1 FROM cluster FOR UPDATE`)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.keeper(r.blobs).Check(ctx) }()
	r.blocked(pool)
	cancel()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, watermark.ErrLeapt) || r.incarnation() != 2 {
		t.Errorf("checked: %v, incarnation %d", err, r.incarnation())
	}
}

// blocked waits until a session waits for a lock. pool is not that of the waiting session.
func (r *rig) blocked(pool *pgxpool.Pool) {
	r.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		var n int
		err := pool.QueryRow(r.t.Context(), `
			SELECT count(*)
			FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n)
		if err != nil {
			r.t.Fatal(err)
		}
		if n > 0 {
			return
		}
	}
}

func TestAStoreThatHangsDelaysNoLookAtTheDatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.twice()
	var begun atomic.Bool
	hangs := make(chan struct{}, 1)
	tenure, err := r.begins("leader", hangsInCreate{r.blobs, &begun, hangs})
	if err != nil {
		t.Fatal(err)
	}
	begun.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	ran, watched := make(chan error, 1), make(chan error, 1)
	go func() { ran <- tenure.Run(ctx) }()
	<-hangs
	r.exec(`UPDATE watermark_branches SET granted = 1000000, pending = 1000000`)
	go func() { watched <- tenure.Watch(ctx) }()
	for ended := false; !ended; { // a later look finds less than an earlier one
		r.loses()
		select {
		case err := <-watched:
			if ended = true; !errors.Is(err, watermark.ErrLeapt) || r.incarnation() != 2 {
				t.Errorf("watched: %v, incarnation %d", err, r.incarnation())
			}
		default:
		}
	}
	cancel()
	if err := <-ran; !errors.Is(err, context.Canceled) {
		t.Errorf("ran: %v", err)
	}
}

// hangsInCreate is a store whose writes hang once begun is set.
type hangsInCreate struct {
	*blob.Store
	begun *atomic.Bool
	hangs chan<- struct{}
}

func (h hangsInCreate) Create(ctx context.Context, key string, data []byte) error {
	if !h.begun.Load() {
		return h.Store.Create(ctx, key, data)
	}
	select {
	case h.hangs <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return ctx.Err()
}
