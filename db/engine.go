package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/internal/lib/enginesilence"
)

// noteEngine stores whether the machine's container engine answers, where its row
// s says otherwise. Every call names the present condition, so where the change
// cannot be written now, the next call writes it.
//
// The time comes from the clock of the database: that of a machine may be wrong.
func (c *syncCall) noteEngine(s *session) {
	if c.noted {
		return
	}
	c.noted = true // a held call is old by its second reading, and later calls know better
	if s.engineSilent == (c.req.EngineSilent > 0) {
		return
	}
	ctx, cancel := context.WithTimeout(c.bounded, readTimeout)
	defer cancel()
	tag, err := c.pool.Exec(ctx, `
		UPDATE machines
		SET engine_silent_since = CASE WHEN @on THEN clock_timestamp() - @silent::interval END
		WHERE id = @machine AND epoch = @epoch AND agent_boot = @boot AND (engine_silent_since IS NOT NULL) <> @on`,
		namedArgs{
			"machine": c.machine, "epoch": c.req.Epoch, "boot": c.req.AgentBoot,
			"on": c.req.EngineSilent > 0, "silent": c.req.EngineSilent,
		})
	if err != nil {
		c.log.Warn("cannot store a container engine's condition, the next call retries",
			"machine_id", c.machine, "err", err)
		return
	}
	if tag.RowsAffected() > 0 {
		c.hub.Publish(TopicQueue, "")
	}
}

// SilentEngines returns the machines of a list whose container engine does not
// answer, by id. Machines that are lost or retired are left out: nothing is known
// of their engines.
func (d *Machines) SilentEngines(ctx context.Context, machines []berth.MachineID) ([]enginesilence.Machine, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT id, engine_silent_since
		FROM machines
		WHERE id = ANY(@machines::text[]) AND engine_silent_since IS NOT NULL AND state NOT IN ('lost', 'retired')
		ORDER BY id`, namedArgs{"machines": machines})
	if err != nil {
		return nil, mapError(err, "machines")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[enginesilence.Machine])
	return list, mapError(err, "machines")
}
