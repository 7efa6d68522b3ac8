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

// takeable is true if machine m may claim reservation a of job j. Machines are offered
// these reservations only. A held job with at_most_one execution keeps a reservation only
// from before a restore of the database.
const takeable = `
	a.state = 'reserved' AND a.machine_epoch = m.epoch AND j.attempt = a.attempt AND j.state IN ('scheduled', 'running')
	AND (j.execution <> 'at_most_one' OR m.fence_ms > 0 AND NOT j.held)
	AND NOT a.orders ?| ARRAY['stop', 'kill', 'checkpoint']`

// claimable is true if machine m may claim allocation a of job j. An active or exited
// allocation may be claimed again: a restarted agent reads its work that way.
const claimable = `
	a.id = @alloc AND a.machine_id = @machine AND a.job = @job AND a.attempt = @attempt
	AND j.id = a.job AND m.id = a.machine_id
	AND j.attempt = a.attempt
	AND (` + takeable + `
	    OR a.state = 'active' AND a.machine_epoch = m.epoch
	        AND j.state IN ('scheduled', 'running', 'preempting', 'canceling')
	    OR a.state = 'exited' AND j.state NOT IN ('succeeded', 'failed', 'canceled')
	)`

// restorePoints are the wire.RestorePoints of allocation a as JSON: the verified checkpoints of
// its job, the newest first, then the ones that a restore passed over, and last the one from which
// the job started. That one has the parts of all members if each member of the job gets all of them.
const restorePoints = `(
		              SELECT coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object('job', nullif(p.job, a.job),
		                'step', p.step, 'attempt', p.attempt, 'manifest', h.manifest, 'sha256', h.sha256,
		                'parts', h.parts, 'failed_restores', nullif(p.failed_restores, 0)))
		                ORDER BY p.job = a.job DESC, p.passed_over, p.step DESC, p.attempt DESC), '[]')
		              FROM (
		                SELECT c.job, c.step, c.attempt, c.failed_restores, c.passed_over, NULL::integer AS parts
		                FROM checkpoints c
		                WHERE c.job = a.job AND c.state = 'verified'
		                UNION ALL
		                SELECT c.job, c.step, c.attempt, c.failed_restores, c.passed_over, o.parts
		                FROM job_sources o
		                JOIN checkpoints c ON c.job = o.source AND c.step = o.step AND c.attempt = o.attempt
		                WHERE o.job = a.job AND o.array_index = -1 AND c.state = 'verified'
		              ) p
		              CROSS JOIN LATERAL (
		                SELECT h.manifest, h.sha256, NULL::jsonb AS parts
		                FROM checkpoint_shards h
		                WHERE p.parts IS NULL AND h.job = p.job AND h.step = p.step AND h.attempt = p.attempt
		                  AND h.rank = a.rank
		                UNION ALL
		                SELECT NULL, NULL, jsonb_agg(jsonb_build_object('manifest', h.manifest, 'sha256', h.sha256)
		                  ORDER BY h.rank)
		                FROM checkpoint_shards h
		                WHERE p.parts IS NOT NULL AND h.job = p.job AND h.step = p.step AND h.attempt = p.attempt
		                HAVING count(*) = p.parts
		              ) h
		          )`

// understood is true if the agent can restore all checkpoints of allocation a, and has kept the folder that a
// debug job takes.
const understood = `((@sources OR NOT EXISTS (SELECT 1 FROM job_sources o WHERE o.job = a.job))
	AND (@parts OR NOT EXISTS (SELECT 1 FROM job_sources o WHERE o.job = a.job AND o.parts IS NOT NULL))
	AND (@chunks OR NOT EXISTS (SELECT 1 FROM chunk_refs r WHERE r.job = a.job AND r.rank = a.rank) AND NOT EXISTS (
		SELECT 1
		FROM job_sources o
		JOIN chunk_refs r ON r.job = o.source AND r.step = o.step AND r.attempt = o.attempt
			AND (r.rank = a.rank OR o.parts IS NOT NULL)
		WHERE o.job = a.job AND o.array_index = -1))
	AND (@holds OR NOT EXISTS (SELECT 1 FROM holds h WHERE h.debug = a.job)))`

// Claim assigns an allocation to the agent of its machine, and the allocation becomes
// active. Claim is idempotent: a repeated call, also by a restarted agent, returns the
// data that the agent needs to adopt the container.
//
// One statement decides, and it locks the allocation's row only. A cancel or preemption
// writes its order to the same row. Either that write comes first, and the claim sees the
// order and starts nothing, or the write comes second, and the agent receives the order.
func (d *Agents) Claim(ctx context.Context, machine berth.MachineID, req wire.ClaimRequest) (wire.Claim, error) {
	var c wire.Claim
	var rawSpec json.RawMessage
	var limit int64
	var element bool   // of an array
	var number int     // of the alternative
	var requested bool // the control plane may still find the digest of the image
	var found struct {
		By wire.DigestBy
		At *time.Time
	}
	err := d.pool.QueryRow(ctx, `
		UPDATE allocations a
		SET state = CASE a.state WHEN 'reserved' THEN 'active' ELSE a.state END,
		    phase = CASE a.phase WHEN '' THEN 'claimed' ELSE a.phase END,
		    claimed_at = coalesce(a.claimed_at, now()),
		    fence_ms = greatest(a.fence_ms, m.fence_ms)
		FROM jobs j, job_specs s, machines m, cluster c
		WHERE `+knowsGranted+` AND c.quarantined_at IS NULL
		  AND s.job = a.job AND m.epoch = @epoch AND m.agent_boot = @boot
		  AND m.state NOT IN ('lost', 'retired') AND `+claimable+`
		  AND `+understood+`
		RETURNING a.id, a.job::text, j.tenant, a.attempt, a.rank, s.spec, `+claimedImage+`,
			j.array_index IS NOT NULL, j.alternative, a.cpu_m, a.mem_mb, a.log_bytes,
		          j.run_limit_ms, a.orders, j.has_checkpoint, a.phase,
		          (
		              SELECT coalesce(array_agg(g.uuid ORDER BY g.idx), '{}')
		              FROM device_allocations c
		              JOIN gpu_devices g ON g.machine_id = c.machine_id AND g.idx = c.idx
		              WHERE c.alloc_id = a.id
		          ),
		          CASE WHEN NOT j.has_checkpoint THEN '[]' ELSE `+restorePoints+` END,
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
		          ) END, (
		              SELECT jsonb_build_object('alloc', h.alloc, 'checkpoint', h.checkpoint)
		              FROM holds h
		              WHERE h.debug = a.job),
		          `+imageRequested+`, coalesce(`+claimedFinder+`, '{}')`,
		claimArgs(machine, req),
	).Scan(&c.Alloc, &c.Job, &c.Tenant, &c.Attempt, &c.Rank, &rawSpec, &c.ImageDigest, &element, &number, &c.CPUMilli,
		&c.MemoryMiB, &c.LogOffset,
		&limit, &c.Orders, &c.HadCheckpoint, &c.Phase, &c.GPUs, &c.Restore, &c.Peers, &c.Inputs, &c.Held,
		&requested, &found)
	if errors.Is(err, pgx.ErrNoRows) {
		return wire.Claim{}, d.refuseClaim(ctx, machine, req)
	}
	if err != nil {
		return wire.Claim{}, mapError(err, fmt.Sprintf("allocation %d", req.Alloc))
	}
	if err := json.Unmarshal(rawSpec, &c.Spec); err != nil {
		return wire.Claim{}, fmt.Errorf("read spec of job %s: %w", req.Job, err)
	}
	c.Spec = spec.Choose(c.Spec.WithDefaults(), number) // agents know one hardware
	c.Spec = spec.ChooseMember(c.Spec, c.Rank)          // and one command
	c.Members = c.Spec.Members
	c.FixImage = c.ImageDigest == "" && (c.Members > 1 || element || requested) && !spec.PinnedImage(c.Spec.Image)
	if c.ImageDigest != "" {
		c.ImageDigestBy, c.ImageDigestAt = found.By, found.At
	}
	c.RunLimit = spec.Duration(time.Duration(limit) * time.Millisecond)
	sum := sha256.Sum256(rawSpec)
	c.SpecHash = hex.EncodeToString(sum[:12])
	return c, nil
}

// claimArgs returns the arguments of claimable and knowsGranted.
func claimArgs(machine berth.MachineID, req wire.ClaimRequest) namedArgs {
	return markArgs(namedArgs{"alloc": int64(req.Alloc), "machine": machine, "job": req.Job,
		"attempt": req.Attempt, "epoch": req.Epoch, "boot": req.AgentBoot,
		"sources": req.Sources, "parts": req.Parts, "chunks": req.Chunks, "holds": req.Holds}, req.Watermark)
}

// refuseClaim returns the error for a claim that changed no row. It reads the conditions
// after the fact, so they may hold by now; the error is then CodeUnavailable and the agent
// retries. A stale-attempt error in that case would make the agent kill the container.
func (d *Agents) refuseClaim(ctx context.Context, machine berth.MachineID, req wire.ClaimRequest) error {
	s, err := d.session(ctx, machine)
	if err != nil {
		return err
	}
	if err := s.current(ctx, d.core, machine, req.AgentBoot, req.Epoch, req.Watermark); err != nil {
		return err
	}
	if s.mark.quarantined {
		return errQuarantined()
	}
	var holder berth.MachineID
	var now, able bool
	err = d.pool.QueryRow(ctx, `
		SELECT a.machine_id, EXISTS (SELECT 1 FROM allocations a, jobs j, machines m WHERE `+claimable+`),
			`+understood+`
		FROM allocations a
		WHERE a.id = @alloc`, claimArgs(machine, req)).Scan(&holder, &now, &able)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return mapError(err, fmt.Sprintf("allocation %d", req.Alloc))
	}
	if now && !able {
		return d.refuseOldAgent(ctx, machine, req)
	}
	if now {
		return berth.Errorf(berth.CodeUnavailable, "allocation %d changed while it was claimed; try again", req.Alloc)
	}
	if err == nil && holder != machine {
		return berth.Errorf(berth.CodeForbidden, "allocation %d does not belong to machine %s", req.Alloc, machine)
	}
	return errStaleAttempt(req.Alloc)
}

// refuseOldAgent returns the error for a claim of an agent whose version is too old for the allocation. It names the
// first need that the agent does not meet.
func (d *Agents) refuseOldAgent(ctx context.Context, machine berth.MachineID, req wire.ClaimRequest) error {
	why := "needs a newer agent"
	for _, need := range []struct {
		arg, text string
		able      bool
	}{
		{"sources", "restores a checkpoint of another job", req.Sources},
		{"parts", "restores all parts of a checkpoint", req.Parts},
		{"chunks", "restores a checkpoint with shared content (docs/operate/upgrade.md, checkpoints)", req.Chunks},
		{"holds", "takes the folder of a failed attempt", req.Holds},
	} {
		if need.able {
			continue
		}
		args := claimArgs(machine, req)
		args["sources"], args["parts"], args["chunks"], args["holds"] = true, true, true, true
		args[need.arg] = false
		var met bool
		err := d.pool.QueryRow(ctx, `SELECT `+understood+` FROM allocations a WHERE a.id = @alloc`, args).Scan(&met)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return mapError(err, fmt.Sprintf("allocation %d", req.Alloc))
		}
		if err == nil && !met {
			why = need.text
			break
		}
	}
	return berth.Errorf(berth.CodeUnavailable, "job %s %s, and the agent of machine %s is of a version that cannot do "+
		"that: upgrade the agent, or drain the machine, so that the job is placed on another one", req.Job, why,
		machine)
}

// errStaleAttempt is the error on which an agent kills the allocation's container.
func errStaleAttempt(alloc berth.AllocationID) error {
	return &berth.Error{Code: berth.CodeConflict, Slug: berth.SlugStaleAttempt,
		Message: fmt.Sprintf("allocation %d is no longer current: its job has moved on or must stop", alloc)}
}
