package controlplane

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"berth/db"
	"berth/db/dbtest"
)

// records is a log that passes the text of each record on.
type records chan string

func (r records) Enabled(context.Context, slog.Level) bool { return true }
func (r records) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r records) WithGroup(string) slog.Handler            { return r }

func (r records) Handle(ctx context.Context, x slog.Record) error {
	select {
	case r <- x.Message:
	case <-ctx.Done():
	}
	return nil
}

// await waits for a record that contains text.
func (r records) await(t *testing.T, text string) {
	t.Helper()
	for {
		select {
		case got := <-r:
			if strings.Contains(got, text) {
				return
			}
		case <-t.Context().Done():
			t.Fatalf("no record says %q", text)
		}
	}
}

// TestPartsStartOnceTheClusterIsAdopted checks that no part that acts runs in a quarantined cluster, and that a
// process ends if its database is replaced by a quarantined one.
func TestPartsStartOnceTheClusterIsAdopted(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	quarantine := func() {
		if _, err := dbtest.Beside(t, d).Exec(t.Context(), `UPDATE cluster SET quarantined_at = now()`); err != nil {
			t.Fatal(err)
		}
	}
	quarantine()
	log := make(records, 10)
	a := newAdoption(d, slog.New(log))
	a.every = time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended, runs := make(chan error, 2), make(chan struct{})
	go func() { ended <- a.watch(ctx) }()
	go func() {
		ended <- a.after(func(ctx context.Context) error { close(runs); <-ctx.Done(); return nil })(ctx)
	}()
	if err := a.check(t.Context()); !errors.Is(err, errWaits) {
		t.Errorf("the readiness check: %v", err)
	}
	// Parts that wait end with their context.
	waits, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.after(func(context.Context) error { return nil })(waits); !errors.Is(err, context.Canceled) {
		t.Errorf("a part that waits: %v", err)
	}
	log.await(t, "cluster is quarantined")
	select {
	case <-runs:
		t.Error("a part runs in the quarantine")
	default:
	}
	if _, err := d.Leader.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-runs
	if err := a.check(t.Context()); err != nil {
		t.Errorf("the readiness check after the adoption: %v", err)
	}
	quarantine()
	if err := <-ended; !errors.Is(err, errRestoredBelow) {
		t.Errorf("a process whose database was replaced ends with %v", err)
	}
}

// TestAFailedLookStartsNoPart checks that a look that cannot read the quarantine ends at its limit and starts no
// part, and that the readiness check leaves the failure to the check of the database.
func TestAFailedLookStartsNoPart(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	tx, err := dbtest.Beside(t, d).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), `LOCK TABLE cluster IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	log := make(records, 10)
	a := newAdoption(d, slog.New(log))
	a.every, a.limit = time.Millisecond, 50*time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go a.watch(ctx)
	runs := make(chan struct{})
	go a.after(func(context.Context) error { close(runs); return nil })(ctx)
	for range 2 {
		log.await(t, "cannot read whether the cluster is quarantined")
	}
	select {
	case <-runs:
		t.Error("a part runs although no look has read the quarantine")
	default:
	}
	limited, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := a.check(limited); err != nil {
		t.Errorf("the readiness check of a database that does not answer: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-runs
}
