package db

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth/internal/control/cloud"
)

// shortActor is the actor of the drain of a machine that joined with less than its offer.
const shortActor = "cloud"

// compare compares the first registration of a machine with the offer of its launch. A machine with less than the
// offer is drained before any work comes, and the offering is closed for a while. The scaler ends its own launches, see
// unfitLaunches; for other launches an admin decides. A machine with all of the offer closes the breaker again, and so
// does one whose offer is unknown: it has joined.
//
// Later registrations are not compared: work may run, and a device that fails later is shown as unhealthy.
func (r *registration) compare(ctx context.Context) error {
	if r.hostBoot != "" {
		return nil
	}
	var l cloud.Record
	// The machine may have joined under the name of a launch with a token of an admin, from any host.
	err := r.tx.QueryRow(ctx, `
		SELECT `+launchDocument+`
		FROM launches l
		CROSS JOIN cluster c
		JOIN machines m ON m.id = l.machine AND m.joined_token = l.join_token
		WHERE l.machine = @machine AND l.join_token <> ''`, namedArgs{"machine": r.machine}).Scan(&l)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the offer of the machine's launch: %w", err)
	}
	var models []string
	for _, g := range r.req.Inventory.GPUs {
		if g.Healthy {
			models = append(models, g.Model)
		}
	}
	lacks := l.Shape.Lacks(r.req.Inventory.Capacity.MemoryMiB, models)
	if lacks == "" {
		return closeOlder(ctx, r.tx, l, breakerArgs([]cloud.Breaker{l.Request().JoinBreaker()}, ""))
	}
	if err := actAs(ctx, r.tx, shortActor); err != nil {
		return err
	}
	_, err = r.tx.Exec(ctx, `
		UPDATE machines
		SET state = 'draining', reason = @reason, drain_reason = @reason, drain_deadline = NULL
		WHERE id = @machine AND (state IN ('joining', 'ready', 'suspect')
			-- a window would return the machine; the agent drains for a device with a fault, by this registration
			OR state = 'draining' AND (drain_actor = @agent OR drain_actor LIKE 'maintenance:%'))`,
		namedArgs{"machine": r.machine, "reason": "the machine " + lacks, "agent": AgentActor(r.machine)})
	if err != nil {
		return fmt.Errorf("drain a machine with less than its offer: %w", err)
	}
	return trip(ctx, r.tx, l.Request().JoinBreaker(), func(b cloud.Breaker, now time.Time) cloud.Breaker {
		return b.Trip(cloud.Capacity, "machine "+string(r.machine)+" "+lacks, now)
	})
}
