package controlplane

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"berth/db"
	"berth/db/dbtest"
)

// TestPartsStartOnceTheClusterIsAdopted checks that no part that acts runs in a quarantined cluster, and that a
// process ends if its database is replaced by a quarantined one.
func TestPartsStartOnceTheClusterIsAdopted(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t, dbtest.URL(t), db.Options{})
	quarantine := func() {
		if _, err := dbtest.Beside(t, d).Exec(t.Context(), `UPDATE cluster SET quarantined_at = now()`); err != nil {
			t.Fatal(err)
		}
	}
	quarantine()
	a := newAdoption(d, slog.New(slog.DiscardHandler))
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
