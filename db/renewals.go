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

// leaseKey names a machine's session as its lease row does.
type leaseKey struct {
	machine berth.MachineID
	boot    string
	epoch   int64
}

// renewals renews machine leases, many in one statement, on the vital
// connections. The statement touches machine_leases and nothing else, so a lock
// on any other table delays no renewal. The lease row names the session by itself:
// whatever ends a session changes its epoch or agent_boot in the same transaction
// (trigger machines_end_lease, and Register).
//
// A lease renewed within renewPause is not renewed again: that is a small part of
// its life.
type renewals struct {
	*gather[leaseKey, bool] // whether the lease was renewed; no answer: the session is over

	mu   sync.Mutex
	done map[leaseKey]time.Time // last renewal
}

const (
	renewPause   = time.Second
	renewGather  = 200 * time.Millisecond
	renewTimeout = 5 * time.Second
	renewLanes   = 2
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

// renewal is one call's share in a renewal.
type renewal struct {
	ticket ticket[leaseKey, bool]
	recent bool // the lease was renewed within renewPause: there is no ticket
}

// begin asks for a renewal of the lease, which happens whether or not anybody
// waits for its result.
func (r *renewals) begin(key leaseKey) renewal {
	r.mu.Lock()
	recent := time.Since(r.done[key]) < renewPause
	r.mu.Unlock()
	if recent {
		return renewal{recent: true}
	}
	return renewal{ticket: r.join(key)}
}

// result waits for the renewal. renewed is false if the lease was renewed a moment
// before, or if another transaction has its row; over reports that the lease is
// not of this session.
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

func (r *renewals) note(got map[leaseKey]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.done) > 100_000 {
		clear(r.done)
	}
	for key, renewed := range got {
		if renewed {
			r.done[key] = time.Now()
		}
	}
}

// renewLeases renews the leases of sessions that are current. A row that another
// transaction has is left to the next renewal.
func (d *core) renewLeases(ctx context.Context, keys []leaseKey) (map[leaseKey]bool, error) {
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
			SET until = clock_timestamp() + @ttl::interval, seen_at = clock_timestamp()
			FROM free
			WHERE l.machine_id = free.machine_id
			RETURNING l.machine_id
		)
		SELECT x.n, r.machine_id IS NOT NULL
		FROM asked x
		JOIN machine_leases l ON l.machine_id = x.machine_id AND l.agent_boot = x.boot AND l.epoch = x.epoch
		LEFT JOIN renewed r ON r.machine_id = x.machine_id`,
		pgx.NamedArgs{"machines": machines, "boots": boots, "epochs": epochs, "ttl": berth.MachineLeaseTTL})
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
