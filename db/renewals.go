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

// leaseKey identifies a machine's session by the columns of its lease row.
type leaseKey struct {
	machine berth.MachineID
	boot    string // agent_boot: identifies the agent process
	epoch   int64
}

// renewals renews machine leases, many in one statement, on the vital connections. The
// statement touches no table but machine_leases, so a lock on any other table delays no
// renewal. The lease row alone identifies the session: a transaction that ends a session
// also changes the row's epoch or agent_boot (trigger machines_end_lease, and Register).
//
// A lease renewed within renewPause is not renewed again, since renewPause is a small part
// of the lease's lifetime. All methods may be called concurrently.
type renewals struct {
	*gather[leaseKey, bool] // whether the lease was renewed; no value: the session is over

	mu   sync.Mutex
	done map[leaseKey]time.Time // time of the last renewal by this process
}

const (
	renewPause   = time.Second            // shortest time between two renewals of a lease
	renewGather  = 200 * time.Millisecond // longest wait for other calls to share the statement
	renewTimeout = 5 * time.Second        // of one statement
	renewLanes   = 2                      // statements in flight at once
)

func newRenewals(d *core) *renewals {
	r := &renewals{done: map[leaseKey]time.Time{}}
	r.gather = newGather(renewLanes, renewGather, renewTimeout,
		func(ctx context.Context, keys []leaseKey) (map[leaseKey]bool, error) {
			got, err := d.renewLeases(ctx, keys)
			r.note(got)
			return got, err
		})
	return r
}

// renewal is a caller's handle on a renewal that may be shared with other calls.
type renewal struct {
	ticket ticket[leaseKey, bool]
	recent bool // the lease was renewed within renewPause; ticket is unused
}

// begin requests a renewal of the lease. The renewal is made even if no caller waits for
// its result.
func (r *renewals) begin(key leaseKey) renewal {
	r.mu.Lock()
	recent := time.Since(r.done[key]) < renewPause
	r.mu.Unlock()
	if recent {
		return renewal{recent: true}
	}
	return renewal{ticket: r.join(key)}
}

// result waits for the renewal. renewed is false if the lease was renewed within
// renewPause, or if another transaction has locked its row; over reports that the lease
// belongs to another session.
func (x renewal) result(ctx context.Context) (renewed, over bool, err error) {
	if x.recent {
		return false, false, nil
	}
	renewed, ok, err := x.ticket.answer(ctx)
	if err != nil {
		return false, false, mapError(err, "lease of machine "+string(x.ticket.key.machine))
	}
	return renewed, !ok, nil
}

// note records the time of successful renewals.
func (r *renewals) note(got map[leaseKey]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Ended sessions are never removed one by one. A cleared map costs one early renewal
	// per lease.
	if len(r.done) > 100_000 {
		clear(r.done)
	}
	for key, renewed := range got {
		if renewed {
			r.done[key] = time.Now()
		}
	}
}

// renewLeases renews the leases of current sessions and reports for each session whether
// its lease was renewed. A row locked by another transaction is skipped; the next renewal
// takes it. Sessions without a lease row are missing from the result.
func (d *core) renewLeases(ctx context.Context, keys []leaseKey) (map[leaseKey]bool, error) {
	// Leases are locked in order of machine id, as everywhere.
	slices.SortFunc(keys, func(a, b leaseKey) int { return strings.Compare(string(a.machine), string(b.machine)) })
	machines, boots, epochs := make([]string, len(keys)), make([]string, len(keys)), make([]int64, len(keys))
	for i, k := range keys {
		machines[i], boots[i], epochs[i] = string(k.machine), k.boot, k.epoch
	}
	rows, err := d.vital.Query(ctx, `
		WITH asked AS (
			SELECT x.n, x.machine_id, x.boot, x.epoch
			FROM unnest(@machines::text[], @boots::text[], @epochs::bigint[]) WITH ORDINALITY AS x (machine_id,
				boot, epoch, n)
		), free AS (
			SELECT l.machine_id
			FROM machine_leases l
			JOIN asked x ON x.machine_id = l.machine_id AND x.boot = l.agent_boot AND x.epoch = l.epoch
			ORDER BY l.machine_id
			FOR NO KEY UPDATE OF l SKIP LOCKED
		), renewed AS (
			UPDATE machine_leases l
			SET until = clock_timestamp() + @ttl::interval, seen_at = clock_timestamp(), back_at = `+backAt+`
			FROM free
			WHERE l.machine_id = free.machine_id
			RETURNING l.machine_id
		)
		SELECT x.n, r.machine_id IS NOT NULL
		FROM asked x
		JOIN machine_leases l ON l.machine_id = x.machine_id AND l.agent_boot = x.boot AND l.epoch = x.epoch
		LEFT JOIN renewed r ON r.machine_id = x.machine_id`,
		namedArgs{"machines": machines, "boots": boots, "epochs": epochs, "ttl": berth.MachineLeaseTTL})
	if err != nil {
		return nil, err
	}
	got := make(map[leaseKey]bool, len(keys))
	var n int
	var renewed bool
	_, err = pgx.ForEachRow(rows, []any{&n, &renewed}, func() error {
		got[keys[n-1]] = renewed
		return nil
	})
	return got, err
}
