package db

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/failure"
	"berth/wire"
)

// ReportStall stores whether a member is quiet, or the evidence about a member that hangs; see
// wire.StallReport. A caller whose session is not current gets ErrStaleEpoch and has changed
// nothing. A report about another machine's member, an ended one or one of an earlier attempt has
// no effect.
func (d *Agents) ReportStall(ctx context.Context, machine berth.MachineID, req wire.StallReport) error {
	if req.Evidence != nil {
		if err := req.Evidence.Valid(); err != nil {
			return err
		}
	}
	stored := false
	err := d.tx(ctx, func(tx pgx.Tx) (err error) {
		if err := checkCaller(ctx, tx, machine, Session{AgentBoot: req.AgentBoot, Epoch: req.Epoch}); err != nil {
			return err
		}
		if req.Evidence == nil {
			stored = false
			return storeQuiet(ctx, tx, machine, req)
		}
		stored, err = storeHang(ctx, tx, machine, req)
		return err
	})
	if err != nil {
		return mapError(err, "signs of life on machine "+string(machine))
	}
	if stored {
		d.hub.Publish(TopicJob, string(req.Job))
	}
	return nil
}

// checkCaller returns an error unless s is the machine's current session.
func checkCaller(ctx context.Context, tx pgx.Tx, machine berth.MachineID, s Session) error {
	var row session
	err := tx.QueryRow(ctx, `
		SELECT state, epoch, agent_boot
		FROM machines
		WHERE id = @machine`, namedArgs{"machine": machine}).Scan(&row.state, &row.epoch, &row.agentBoot)
	if isNoRows(err) {
		return berth.Errorf(berth.CodeNotFound, "no such machine %s", machine)
	}
	if err != nil {
		return err
	}
	return row.check(machine, s.AgentBoot, s.Epoch)
}

// storeQuiet stores whether a member is quiet. A repeated report only renews the word. A report that
// a later one of the same agent process has overtaken changes nothing: a late "quiet" could stop a
// live gang.
func storeQuiet(ctx context.Context, tx pgx.Tx, machine berth.MachineID, req wire.StallReport) error {
	_, err := tx.Exec(ctx, `
		UPDATE allocations
		SET quiet_at = CASE
				WHEN NOT @quiet THEN NULL
				WHEN quiet_boot = @boot AND quiet_seq = @seq THEN quiet_at
				ELSE clock_timestamp() END,
			quiet_said_at = CASE WHEN @quiet THEN clock_timestamp() END, quiet_boot = @boot, quiet_seq = @seq
		WHERE id = @alloc AND job = @job AND attempt = @attempt AND machine_id = @machine AND machine_epoch = @epoch
		  AND state = 'active' AND (quiet_boot IS DISTINCT FROM @boot OR quiet_seq < @seq
		    OR quiet_seq = @seq AND @quiet AND quiet_at IS NOT NULL)`,
		namedArgs{
			"alloc": req.Alloc, "job": req.Job, "attempt": req.Attempt, "machine": machine, "epoch": req.Epoch,
			"boot": req.AgentBoot, "seq": req.Seq, "quiet": req.Quiet,
		})
	return err
}

// storeHang stores the first evidence about a member, with an event. It reports whether the
// evidence was stored.
func storeHang(ctx context.Context, tx pgx.Tx, machine berth.MachineID, req wire.StallReport) (bool, error) {
	args := namedArgs{
		"alloc": req.Alloc, "job": req.Job, "attempt": req.Attempt, "machine": machine, "epoch": req.Epoch,
	}
	// The event is numbered under the job's lock, which comes before the allocation's.
	var attempt int
	err := tx.QueryRow(ctx, `
		SELECT attempt
		FROM jobs
		WHERE id = @job
		FOR NO KEY UPDATE`, args).Scan(&attempt)
	if isNoRows(err) || err == nil && attempt != req.Attempt {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var rank int
	err = tx.QueryRow(ctx, `
		SELECT rank
		FROM allocations
		WHERE id = @alloc AND job = @job AND attempt = @attempt AND machine_id = @machine AND machine_epoch = @epoch
		  AND hang IS NULL AND (state = 'active' OR state = 'exited' AND sealed_at IS NULL)
		FOR NO KEY UPDATE`, args).Scan(&rank)
	if isNoRows(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	h := *req.Evidence
	h.Rank, h.Machine = rank, machine // by the row, not by the report
	return true, addHang(ctx, tx, req, h)
}

// addHang writes the evidence about a locked member and its event.
func addHang(ctx context.Context, tx pgx.Tx, req wire.StallReport, h failure.HangEvidence) error {
	b, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("evidence of member %d: %w", h.Rank, err)
	}
	if _, err := tx.Exec(ctx, `UPDATE allocations SET hang = @hang::jsonb WHERE id = @alloc`,
		namedArgs{"alloc": req.Alloc, "hang": b}); err != nil {
		return err
	}
	return addEvent(ctx, tx, req.Job, wire.Event{
		Kind: wire.EventHung, Attempt: req.Attempt, Actor: AgentActor(h.Machine),
		Detail: fmt.Sprintf("member %d on %s: %s", h.Rank, h.Machine, h.Text()),
		Facts:  &wire.EventFacts{Rank: &h.Rank, Machine: h.Machine, Step: h.Step},
	})
}
