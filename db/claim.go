package db

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// takeable is when a reservation a of job j may be taken up by machine m. Such
// reservations are what a machine is told of, and what it may claim. A
// reservation of at_most_one work whose job is held is from before a restore.
const takeable = `
	a.state = 'reserved' AND a.machine_epoch = m.epoch AND j.attempt = a.attempt AND j.state IN ('scheduled', 'running')
	AND (j.mode <> 'exclusive' OR m.fence_ms > 0 AND NOT j.held)
	AND NOT a.orders ?| ARRAY['stop', 'kill', 'checkpoint']`

// claimable is when an allocation a of job j may be claimed from machine m.
const claimable = `
	a.id = @alloc AND a.machine_id = @machine AND a.job = @job AND a.attempt = @attempt
	AND j.id = a.job AND m.id = a.machine_id
	AND j.attempt = a.attempt
	AND (` + takeable + `
	    OR a.state = 'active' AND a.machine_epoch = m.epoch AND j.state IN ('scheduled', 'running', 'preempting', 'canceling')
	    OR a.state = 'exited' AND j.state NOT IN ('succeeded', 'failed', 'canceled')
	)`

// Claim hands one member's work to its machine: the allocation becomes active. It
// is idempotent, for the same agent and for one that was restarted, which gets
// back what it needs to adopt the container.
//
// One statement decides. It locks the allocation alone: whoever cancels or
// preempts the job writes its order to this very row, so that either the order
// is seen here and nothing new begins, or it comes after and is delivered.
func (d *Agents) Claim(ctx context.Context, machine berth.MachineID, req wire.ClaimRequest) (wire.Claim, error) {
	var c wire.Claim
	var rawSpec json.RawMessage
	var limit int64
	err := d.pool.QueryRow(ctx, `
		UPDATE allocations a
		SET state = CASE a.state WHEN 'reserved' THEN 'active' ELSE a.state END,
		    phase = CASE a.phase WHEN '' THEN 'claimed' ELSE a.phase END,
		    claimed_at = coalesce(a.claimed_at, now()),
		    fence_ms = greatest(a.fence_ms, m.fence_ms)
		FROM jobs j, job_specs s, machines m, cluster c
		WHERE `+knowsGranted+` AND s.job = a.job AND m.epoch = @epoch AND m.agent_boot = @boot AND m.state NOT IN ('lost', 'retired') AND `+claimable+`
		RETURNING a.id, a.job::text, j.tenant, a.attempt, a.rank, s.spec, j.image_digest, a.cpu_m,
			a.mem_mb, a.log_bytes,
		          j.run_limit_ms, a.orders, j.has_checkpoint, a.phase,
		          (
		              SELECT coalesce(array_agg(g.uuid ORDER BY g.idx), '{}')
		              FROM gpu_claims c
		              JOIN gpu_devices g ON g.machine_id = c.machine_id AND g.idx = c.idx
		              WHERE c.alloc_id = a.id
		          ),
		          CASE WHEN NOT j.has_checkpoint THEN '[]' ELSE (
		              SELECT coalesce(jsonb_agg(jsonb_build_object('step', c.step, 'attempt', c.attempt, 'manifest',
		                h.manifest, 'sha256', h.sha256)
		                                        ORDER BY c.step DESC, c.attempt DESC), '[]')
		              FROM checkpoints c
		              JOIN checkpoint_shards h ON h.job = c.job AND h.step = c.step AND h.attempt = c.attempt
		                AND h.rank = a.rank
		              WHERE c.job = a.job AND c.state = 'verified'
		          ) END,
		          CASE WHEN a.port IS NULL THEN '[]' ELSE (
		              SELECT jsonb_agg(jsonb_build_object('rank', r.rank, 'machine', r.machine_id, 'address',
		                p.address, 'network', p.network, 'port', r.port)
		                               ORDER BY r.rank)
		              FROM allocations r
		              JOIN machines p ON p.id = r.machine_id
		              WHERE r.job = a.job AND r.attempt = a.attempt
		          ) END,
		          CASE WHEN NOT s.spec ? 'inputs' THEN '[]' ELSE (
		              SELECT coalesce(jsonb_agg(jsonb_build_object('input', i.input, 'address', o.address)), '[]')
		              FROM job_inputs i
		              JOIN outputs o ON o.job = i.source AND o.attempt = i.attempt AND o.rank = i.rank
		                AND o.name = i.name
		              WHERE i.job = a.job
		          ) END`,
		claimArgs(machine, req),
	).Scan(&c.Alloc, &c.Job, &c.Tenant, &c.Attempt, &c.Rank, &rawSpec, &c.ImageDigest, &c.CPUMilli,
		&c.MemoryMiB, &c.LogOffset,
		&limit, &c.Orders, &c.HadCheckpoint, &c.Phase, &c.GPUs, &c.Restore, &c.Peers, &c.Inputs)
	if errors.Is(err, pgx.ErrNoRows) {
		return wire.Claim{}, d.refuseClaim(ctx, machine, req)
	}
	if err != nil {
		return wire.Claim{}, mapError(err, fmt.Sprintf("allocation %d", req.Alloc))
	}
	if err := json.Unmarshal(rawSpec, &c.Spec); err != nil {
		return wire.Claim{}, fmt.Errorf("read spec of job %s: %w", req.Job, err)
	}
	c.Spec = c.Spec.WithDefaults()
	c.Members = c.Spec.Members
	c.RunLimit = spec.Duration(time.Duration(limit) * time.Millisecond)
	sum := sha256.Sum256(rawSpec)
	c.SpecHash = hex.EncodeToString(sum[:12])
	return c, nil
}

func claimArgs(machine berth.MachineID, req wire.ClaimRequest) pgx.NamedArgs {
	return markArgs(pgx.NamedArgs{"alloc": int64(req.Alloc), "machine": machine, "job": req.Job,
		"attempt": req.Attempt, "epoch": req.Epoch, "boot": req.AgentBoot}, req.Watermark)
}

// refuseClaim finds out which of the conditions did not hold. Where the session
// alone was at fault, and is in order by now, the caller is to try again: told
// that its work is not current, it would kill the container.
func (d *Agents) refuseClaim(ctx context.Context, machine berth.MachineID, req wire.ClaimRequest) error {
	s, err := d.session(ctx, machine)
	if err != nil {
		return err
	}
	if err := s.current(ctx, d.core, machine, req.AgentBoot, req.Epoch, req.Watermark); err != nil {
		return err
	}
	var holder berth.MachineID
	var now bool
	err = d.pool.QueryRow(ctx, `
		SELECT h.machine_id, EXISTS (SELECT 1 FROM allocations a, jobs j, machines m WHERE `+claimable+`)
		FROM allocations h
		WHERE h.id = @alloc`, claimArgs(machine, req)).Scan(&holder, &now)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return mapError(err, fmt.Sprintf("allocation %d", req.Alloc))
	}
	if now {
		return berth.Errorf(berth.CodeUnavailable, "allocation %d changed while it was claimed; try again", req.Alloc)
	}
	if err == nil && holder != machine {
		return berth.Errorf(berth.CodeForbidden, "allocation %d is not machine %s's", req.Alloc, machine)
	}
	return errStaleAttempt(req.Alloc)
}

func errStaleAttempt(alloc berth.AllocationID) error {
	return &berth.Error{Code: berth.CodeConflict, Slug: berth.SlugStaleAttempt,
		Message: fmt.Sprintf("allocation %d is not current any more: its job has gone on, or must stop", alloc)}
}
