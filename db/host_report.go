package db

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// ReportHost stores the facts about a machine's container engine in place of the former ones, for the leader to judge.
// Facts that have not changed keep their verdict. A caller whose session is not current gets ErrStaleEpoch and has
// changed nothing.
func (d *Agents) ReportHost(ctx context.Context, machine berth.MachineID, req wire.HostReport) error {
	if err := req.Facts.Valid(); err != nil {
		return err
	}
	facts, err := json.Marshal(req.Facts)
	if err != nil {
		return fmt.Errorf("facts of machine %s: %w", machine, err)
	}
	var stored bool
	err = d.pool.QueryRow(ctx, `
		INSERT INTO machine_hosts AS h (machine_id, agent_boot, at, facts)
		SELECT m.id, m.agent_boot, clock_timestamp(), @facts::jsonb
		FROM machines m
		WHERE m.id = @machine AND m.epoch = @epoch AND m.agent_boot = @boot AND m.state NOT IN ('lost', 'retired')
		ON CONFLICT (machine_id) DO UPDATE
		SET agent_boot = excluded.agent_boot, at = excluded.at, facts = excluded.facts,
			judged_by = CASE WHEN h.facts = excluded.facts AND h.agent_boot = excluded.agent_boot THEN h.judged_by
				ELSE '' END,
			findings = CASE WHEN h.facts = excluded.facts THEN h.findings END
		RETURNING true`,
		namedArgs{"machine": machine, "epoch": req.Epoch, "boot": req.AgentBoot, "facts": facts}).Scan(&stored)
	// No row: the machine or its session did not match. checkSession names the reason.
	if errors.Is(err, pgx.ErrNoRows) {
		err = d.checkSession(ctx, machine, Session{AgentBoot: req.AgentBoot, Epoch: req.Epoch})
	}
	return mapError(err, "facts of machine "+string(machine))
}
