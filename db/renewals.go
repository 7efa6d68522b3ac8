package db

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// renewals coalesce the renewals of machine leases in one process. While one
// statement is under way the others gather, and go together in the next one;
// nobody waits for a clock. A lease renewed within renewPause is not renewed
// again: that is a small part of its life.
type renewals struct {
	mu      sync.Mutex
	done    map[berth.MachineID]time.Time // last renewal
	next    *renewalBatch                 // gathers
	sending bool
}

type renewalBatch struct {
	epochs map[berth.MachineID]int64
	sent   chan struct{}
	// Set before sent is closed.
	renewed map[berth.MachineID]bool
	err     error
}

const (
	renewPause   = time.Second
	renewTimeout = 5 * time.Second
)

// renew reports whether the lease was renewed, after the call. It is not where
// that was done a moment ago, or where somebody else has the row.
func (r *renewals) renew(ctx context.Context, d *DB, machine berth.MachineID, epoch int64) (bool, error) {
	r.mu.Lock()
	if time.Since(r.done[machine]) < renewPause {
		r.mu.Unlock()
		return false, nil
	}
	if r.next == nil {
		r.next = &renewalBatch{epochs: map[berth.MachineID]int64{}, sent: make(chan struct{})}
	}
	b := r.next
	b.epochs[machine] = epoch
	lead := !r.sending
	if lead {
		r.sending = true
	}
	r.mu.Unlock()
	if lead {
		// Others ride along: their renewals must not die with this caller.
		r.send(context.WithoutCancel(ctx), d)
	}
	select {
	case <-b.sent:
		return b.renewed[machine], b.err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// send writes batches until none is left.
func (r *renewals) send(ctx context.Context, d *DB) {
	for {
		r.mu.Lock()
		b := r.next
		r.next = nil
		if b == nil {
			r.sending = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		b.renewed, b.err = d.renewLeases(ctx, b.epochs)
		if b.err == nil {
			r.mu.Lock()
			if r.done == nil || len(r.done) > 100_000 {
				r.done = map[berth.MachineID]time.Time{}
			}
			for m := range b.renewed {
				r.done[m] = time.Now()
			}
			r.mu.Unlock()
		}
		close(b.sent)
	}
}

func (d *DB) renewLeases(ctx context.Context, epochs map[berth.MachineID]int64) (map[berth.MachineID]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	machines := make([]string, 0, len(epochs))
	for m := range epochs {
		machines = append(machines, string(m))
	}
	slices.SortFunc(machines, strings.Compare)
	at := make([]int64, len(machines))
	for i, m := range machines {
		at[i] = epochs[berth.MachineID(m)]
	}
	rows, err := d.vital.Query(ctx, `
		UPDATE machine_leases l
		SET until = clock_timestamp() + @ttl::interval, seen_at = clock_timestamp()
		FROM (
			SELECT l.machine_id
			FROM machine_leases l
			JOIN unnest(@machines::text[], @epochs::bigint[]) AS x (machine_id, epoch) ON x.machine_id = l.machine_id AND x.epoch = l.epoch
			ORDER BY l.machine_id
			FOR NO KEY UPDATE OF l SKIP LOCKED
		) free
		WHERE l.machine_id = free.machine_id
		RETURNING l.machine_id`,
		pgx.NamedArgs{"machines": machines, "epochs": at, "ttl": berth.MachineLeaseTTL})
	if err != nil {
		return nil, err
	}
	renewed := make(map[berth.MachineID]bool, len(epochs))
	var m berth.MachineID
	_, err = pgx.ForEachRow(rows, []any{&m}, func() error {
		renewed[m] = true
		return nil
	})
	return renewed, err
}
