package db

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/lifecycle"
	"berth/wire"
)

// joinTerms selects the terms of join token t, or null for none.
const joinTerms = `CASE WHEN t.approves OR t.most IS NOT NULL
		        THEN jsonb_strip_nulls(jsonb_build_object('approves', t.approves, 'most', t.most)) END`

// bindToToken stores the terms of the join token with which the machine has just joined. The trigger
// machines_hold has cleared the terms of the token before, and the approval of the machine.
func bindToToken(ctx context.Context, tx pgx.Tx, args namedArgs) error {
	_, err := tx.Exec(ctx, `
		UPDATE machines m
		SET joined_token = t.id,
		    joined_terms = `+joinTerms+`
		FROM join_tokens t
		WHERE m.id = @machine AND t.id = @join`, args)
	return err
}

// equipment returns the part of the inventory that an approval covers, in a fixed order. Pool and
// labels are the ones that the machine got, not the ones that its agent named.
func equipment(inv wire.Inventory, pool string, labels map[string]string) wire.Equipment {
	e := wire.Equipment{CPUMilli: inv.Capacity.CPUMilli, MemoryMiB: inv.Capacity.MemoryMiB, Labels: labels,
		Region: inv.Region, Site: inv.Site, Pool: pool}
	for _, g := range inv.GPUs {
		e.GPUs = append(e.GPUs, wire.EquipmentGPU{UUID: g.UUID, Model: g.Model, MemoryMiB: g.MemoryMiB})
	}
	slices.SortFunc(e.GPUs, func(a, b wire.EquipmentGPU) int { return strings.Compare(a.UUID, b.UUID) })
	return e
}

// approve stores the equipment of the registration, and holds the machine back if it needs the
// approval of an operator. The machine is locked. Running work continues on a machine that is held.
func (r *registration) approve(ctx context.Context) error {
	args := namedArgs{"machine": r.machine}
	var pool, site string
	var labels map[string]string
	var token string
	var a lifecycle.Approval
	var terms *lifecycle.JoinTerms
	// The version before spends a token without a copy of its terms.
	err := r.tx.QueryRow(ctx, `
		SELECT m.pool, m.site, m.labels, coalesce(t.id, m.joined_token),
			CASE WHEN NOT m.returned THEN coalesce(t.terms, m.joined_terms) END, m.approved,
			machine_needs_approval(m.pool, m.joined_pool), m.returned
		FROM machines m
		LEFT JOIN LATERAL (
			SELECT t.id, `+joinTerms+` AS terms
			FROM join_tokens t
			WHERE t.used_by = m.id
			ORDER BY t.used_at DESC
			LIMIT 1
		) t ON true
		WHERE m.id = @machine`, args).Scan(&pool, &site, &labels, &token, &terms, &a.Approved, &a.Needed,
		&a.Returned)
	if err != nil {
		return fmt.Errorf("read approval: %w", err)
	}
	if terms != nil {
		a.Terms = *terms
	}
	inv := r.req.Inventory
	inv.Site = site
	seen := equipment(inv, pool, labels)
	held, approves := a.Judge(seen)
	args["equipment"], args["held"], args["approves"], args["by"] = seen, held, approves, "join-token:"+token
	args["token"], args["terms"] = token, terms
	var state berth.MachineState
	err = r.tx.QueryRow(ctx, `
		UPDATE machines
		SET equipment = @equipment,
		    held = @held,
		    joined_token = @token,
		    joined_terms = @terms,
		    reason = CASE WHEN state = 'joining' AND held <> '' AND reason = held THEN @held ELSE reason END,
		    approved = CASE WHEN @approves THEN @equipment ELSE approved END,
		    approved_by = CASE WHEN @approves THEN @by ELSE approved_by END,
		    approved_at = CASE WHEN @approves THEN now() ELSE approved_at END,
		    state = CASE WHEN state = 'joining' AND cardinality(pending_kills) = 0 THEN 'ready' ELSE state END
		WHERE id = @machine
		RETURNING state`, args).Scan(&state)
	if err != nil {
		return fmt.Errorf("store approval: %w", err)
	}
	r.state = state
	return nil
}

// Approve approves the equipment that a machine reported last, so that the machine gets work. A
// repeat has no further effect. With a fingerprint of other equipment it is a conflict, as for a
// machine that has not registered or is not held.
func (d *Machines) Approve(ctx context.Context, id berth.MachineID, fingerprint, actor string) error {
	err := d.tx(ctx, func(tx pgx.Tx) error {
		if err := actAs(ctx, tx, actor); err != nil {
			return err
		}
		args := namedArgs{"machine": id, "actor": actor}
		var seen *wire.Equipment
		var state berth.MachineState
		var wanted bool
		err := tx.QueryRow(ctx, `
			SELECT coalesce(equipment, CASE WHEN host_boot <> '' THEN machine_equipment(m) END), state,
				held <> '' OR approved IS NOT NULL OR returned OR machine_needs_approval(pool, joined_pool)
			FROM machines m
			WHERE id = @machine
			FOR NO KEY UPDATE`, args).Scan(&seen, &state, &wanted)
		switch {
		case err != nil:
			return err
		case state == berth.MachineRetired:
			return berth.Errorf(berth.CodeConflict, "machine %s is retired and cannot be approved", id)
		case seen == nil:
			return berth.Errorf(berth.CodeConflict, "machine %s has not registered, so its equipment is not known: "+
				"start its agent first", id)
		case !wanted:
			return berth.Errorf(berth.CodeConflict, "machine %s needs no approval: its pool requires none "+
				"(berth pool set POOL --approval)", id)
		case fingerprint != "" && fingerprint != seen.Fingerprint():
			return berth.Errorf(berth.CodeConflict, "machine %s now reports other equipment, with fingerprint %s: "+
				"check it again (berth machine show %s)", id, seen.Fingerprint(), id)
		}
		args["seen"] = seen
		_, err = tx.Exec(ctx, `
			UPDATE machines
			SET approved = @seen, approved_by = @actor, approved_at = now(), `+released+`
			WHERE id = @machine`, args)
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return berth.Errorf(berth.CodeNotFound, "no such machine %s", id)
	}
	if err != nil {
		return mapError(err, "machine "+string(id))
	}
	d.hub.Publish(TopicQueue, "")
	d.hub.Publish(TopicMachine, string(id))
	return nil
}

// released opens a machine that was held, as Undrain does, except that a machine with containers
// still to be removed stays joining.
const released = `held = '',
			    reason = CASE WHEN state = 'joining' AND held <> '' THEN '' ELSE reason END,
			    state = CASE
			        WHEN state <> 'joining' OR held = '' OR cardinality(pending_kills) > 0 THEN state
			        WHEN EXISTS (
			            SELECT 1
			            FROM machine_leases l
			            WHERE l.machine_id = machines.id AND l.until > now()) THEN 'ready'
			        ELSE 'suspect'
			    END`

// lockMachinesOf locks the machines of a pool, in the order of ids as other statements do, and before
// the row of the pool, as registrations do.
func lockMachinesOf(ctx context.Context, tx pgx.Tx, pool string) error {
	_, err := tx.Exec(ctx, `SELECT 1 FROM machines WHERE pool = @pool ORDER BY id FOR NO KEY UPDATE`,
		namedArgs{"pool": pool})
	return err
}

// switchApproval follows a change of the rule approval of a pool. The machines of the pool and its row
// are locked. When the rule begins, the machines in service are approved as they are; when it ends, the
// machines that waited only for it get work.
func switchApproval(ctx context.Context, tx pgx.Tx, pool string, needed, before bool, actor string) error {
	if needed == before {
		return nil
	}
	if err := actAs(ctx, tx, actor); err != nil {
		return err
	}
	args := namedArgs{"pool": pool, "actor": actor}
	if needed {
		_, err := tx.Exec(ctx, `
			UPDATE machines m
			SET approved = coalesce(equipment, machine_equipment(m)), approved_by = @actor, approved_at = now()
			WHERE pool = @pool AND held = '' AND host_boot <> '' AND state <> 'retired'`, args)
		return err
	}
	_, err := tx.Exec(ctx, `
		UPDATE machines
		SET `+released+`
		WHERE pool = @pool AND state <> 'retired' AND (approved IS NOT NULL OR NOT returned)
		  AND (held = 'waits for approval' OR held <> '' AND joined_terms->'most' IS NULL)`, args)
	return err
}
