package db

import (
	"context"
	"encoding/json"
	"fmt"

	"berth"
	"berth/wire"
)

// ReportUse stores the measured use of a machine in place of the former one. A caller whose
// session is not current gets ErrStaleEpoch and has changed nothing.
func (d *Agents) ReportUse(ctx context.Context, machine berth.MachineID, req wire.UseReport) error {
	if err := req.Use.Valid(); err != nil {
		return err
	}
	use, err := json.Marshal(req.Use)
	if err != nil {
		return fmt.Errorf("use of machine %s: %w", machine, err)
	}
	// The conflict's UPDATE leaves the key alone, so it takes no lock on the row of machines.
	tag, err := d.pool.Exec(ctx, `
		INSERT INTO machine_use (machine_id, at, use)
		SELECT m.id, now(), @use::jsonb
		FROM machines m
		WHERE m.id = @machine AND m.epoch = @epoch AND m.agent_boot = @boot AND m.state NOT IN ('lost', 'retired')
		ON CONFLICT (machine_id) DO UPDATE
		SET at = excluded.at, use = excluded.use`,
		namedArgs{"machine": machine, "epoch": req.Epoch, "boot": req.AgentBoot, "use": use})
	if err == nil && tag.RowsAffected() == 0 {
		err = d.checkSession(ctx, machine, Session{AgentBoot: req.AgentBoot, Epoch: req.Epoch})
	}
	return mapError(err, "use of machine "+string(machine))
}

// measuredUse is the measured use of machine m as JSON, null without a recent report.
const measuredUse = `(
				SELECT jsonb_build_object('at', u.at) || u.use
				FROM machine_use u
				WHERE u.machine_id = m.id AND m.state NOT IN ('lost', 'retired')
				  AND u.at > now() - make_interval(secs => @use_age))`
