package db

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/failure"
	"berth/wire"
)

// AgentActor returns the actor of events that a machine's agent caused.
func AgentActor(m berth.MachineID) string { return "agent:" + string(m) }

// registration is the state of one Register call. Its methods run in the lock order.
type registration struct {
	tx      pgx.Tx
	machine berth.MachineID
	req     wire.RegisterRequest

	allocs   []machineAlloc       // that the machine has not confirmed as removed
	state    berth.MachineState   // before the call, then the new one
	epoch    int64                // of the new session
	hostBoot string               // of the session before; "" at the first registration
	rebooted bool                 // the host has another boot id than in the session before
	kill     []berth.AllocationID // containers to remove
	unknown  []berth.AllocationID // containers to leave alone: see quarantine
	mark     markRead             // watermark, read under the machine's lock
	changed  map[berth.JobID]bool // jobs with a member that this call ended, sealed or released
}

// machineAlloc is an allocation on the machine, with the columns that decide whether its
// container stays.
type machineAlloc struct {
	ID      berth.AllocationID
	Job     berth.JobID
	Attempt int
	Rank    int
	Epoch   int64 // of the machine when the allocation was reserved
	State   berth.AllocationState
	Sealed  bool
	Orders  berth.Orders
	Current bool // its attempt is the current one of a job that has not ended
}

// Register opens an agent's session and returns the session's parameters. It also returns
// the jobs with members that the machine lost by a reboot, or that ended without a
// settlement: their workflows need a poke.
//
// A new host boot proves that all earlier containers are gone: reserved and active
// allocations become exited, orphans become released, and the machine's epoch is
// incremented. An agent that restarts on the same boot keeps everything except containers
// of work that is no longer current, and the machine gets no work until these containers
// are removed.
func (d *Agents) Register(ctx context.Context, machine berth.MachineID,
	req wire.RegisterRequest) (wire.RegisterResponse, []berth.JobID, error) {
	if req.HostBoot == "" || req.AgentBoot == "" {
		return wire.RegisterResponse{}, nil, berth.Errorf(berth.CodeInvalid,
			"host_boot and agent_boot must not be empty")
	}
	// A machine that is ahead of the database proves a restore, which must be handled
	// first.
	if _, err := vouch(ctx, d.core, req.Watermark); err != nil {
		return wire.RegisterResponse{}, nil, err
	}
	var r *registration
	err := d.movedTx(ctx, func(tx pgx.Tx) error {
		r = &registration{tx: tx, machine: machine, req: req, changed: map[berth.JobID]bool{}}
		return r.run(ctx)
	})
	if err != nil {
		return wire.RegisterResponse{}, nil, mapError(err, "register machine "+string(machine))
	}
	// Hints follow the commit; a listener that looks earlier would miss the change.
	jobs := make([]berth.JobID, 0, len(r.changed))
	for job := range r.changed {
		jobs = append(jobs, job)
		d.hub.Publish(TopicJob, string(job))
	}
	d.hub.Publish(TopicQueue, "")
	ended, err := d.endedUntold(ctx, machine)
	if err != nil {
		return wire.RegisterResponse{}, nil, err
	}
	jobs = append(jobs, ended...)
	answer := wire.RegisterResponse{Epoch: r.epoch, TTLSeconds: int(berth.MachineLeaseTTL.Seconds()), Kill: r.kill,
		Quarantine: r.unknown, Watermark: r.mark.now()}
	if r.mark.quarantined { // the registration that follows the adoption orders removals
		answer.Kill, answer.Quarantine = nil, slices.Concat(r.unknown, r.kill)
	}
	if answer.Cluster, err = clusterID(ctx, d.core); err != nil {
		return answer, jobs, err
	}
	s, err := d.session(ctx, machine)
	if err != nil {
		return answer, jobs, err
	}
	// Another process of the same agent may have registered since the commit.
	if err := s.current(ctx, d.core, machine, req.AgentBoot, r.epoch, req.Watermark); err != nil {
		return answer, jobs, err
	}
	answer.Sync = s.response("")
	return answer, jobs, nil
}

// endedUntold lists the jobs with a member that has ended for good on the machine while the
// attempt is not settled. The agent may have died after its last report, before the
// workflow was notified.
func (d *Agents) endedUntold(ctx context.Context, machine berth.MachineID) ([]berth.JobID, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT DISTINCT j.id::text
		FROM allocations a
		JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
		WHERE a.machine_id = @machine AND a.forgotten_at IS NULL AND a.sealed_at IS NOT NULL
		  AND j.state IN ('scheduled', 'running', 'preempting', 'canceling')`, namedArgs{"machine": machine})
	if err != nil {
		return nil, mapError(err, "ended ranks of machine "+string(machine))
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[berth.JobID])
	return list, mapError(err, "ended ranks of machine "+string(machine))
}

// run runs the steps of a registration in the lock order, within one transaction.
func (r *registration) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		r.lock, r.reboot, r.judge, r.noteUnknown, r.writeMachine, r.writeGPUs, r.approve, r.compare, r.writeLease,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// lock locks the jobs, the allocations and the machine, in this order. It returns errMoved,
// and the transaction starts over, if the leader placed something on the machine meanwhile.
func (r *registration) lock(ctx context.Context) error {
	args := namedArgs{"machine": r.machine}
	_, err := r.tx.Exec(ctx, `
		SELECT 1
		FROM jobs
		WHERE id IN (SELECT job FROM allocations WHERE machine_id = @machine AND forgotten_at IS NULL)
		ORDER BY id
		FOR NO KEY UPDATE`, args)
	if err != nil {
		return fmt.Errorf("lock jobs: %w", err)
	}
	rows, err := r.tx.Query(ctx, `
		SELECT a.id, a.job::text, a.attempt, a.rank, a.machine_epoch, a.state, a.sealed_at IS NOT NULL, a.orders,
		       j.attempt = a.attempt AND j.state NOT IN ('succeeded', 'failed', 'canceled')
		FROM allocations a
		JOIN jobs j ON j.id = a.job
		WHERE a.machine_id = @machine AND a.forgotten_at IS NULL
		ORDER BY a.id
		FOR NO KEY UPDATE OF a`, args)
	if err != nil {
		return fmt.Errorf("lock allocations: %w", err)
	}
	if r.allocs, err = pgx.CollectRows(rows, pgx.RowToStructByPos[machineAlloc]); err != nil {
		return fmt.Errorf("lock allocations: %w", err)
	}
	// The lock on the machine's row stops further starts on this machine.
	r.mark = markRead{}
	err = r.tx.QueryRow(ctx, `
		SELECT CASE WHEN state <> 'retired' AND drain_reason IS NOT NULL THEN 'draining' ELSE state END, epoch,
			host_boot, `+markColumns+`
		FROM machines m
		CROSS JOIN cluster c
		WHERE m.id = @machine
		FOR NO KEY UPDATE OF m`, args).Scan(append([]any{&r.state, &r.epoch, &r.hostBoot}, r.mark.dest()...)...)
	if err != nil {
		return err
	}
	if r.state == berth.MachineRetired {
		return errRetired(r.machine)
	}
	// A start that was committed between the two locks is not among the locked allocations.
	var now int
	err = r.tx.QueryRow(ctx, `
		SELECT count(*)
		FROM allocations a
		JOIN jobs j ON j.id = a.job
		WHERE a.machine_id = @machine AND a.forgotten_at IS NULL`, args).Scan(&now)
	if err != nil {
		return err
	}
	if now > len(r.allocs) {
		return errMoved
	}
	r.rebooted = r.hostBoot != r.req.HostBoot
	// The first registration of a machine has no earlier containers and keeps the first
	// epoch.
	if r.rebooted && r.hostBoot != "" {
		r.epoch++
	}
	return nil
}

// reboot ends all allocations of the previous boot, since its containers are gone: reserved
// and active ones get an exit with cause boot, exited ones are sealed without their last
// uploads (cut_off), and orphans release their capacity.
func (r *registration) reboot(ctx context.Context) error {
	if !r.rebooted {
		return nil
	}
	message := fmt.Sprintf("machine %s restarted: it came back with a new boot id", r.machine)
	_, err := r.tx.Exec(ctx, `
		UPDATE allocations a
		SET state = CASE a.state WHEN 'orphaned' THEN 'released' WHEN 'released' THEN 'released' ELSE 'exited' END,
		    alone = a.alone OR a.state = 'active' AND `+alone+`,
		    released_at = CASE WHEN a.state = 'orphaned' THEN now() ELSE a.released_at END,
		    freed_by = CASE WHEN counts(a.state) THEN 'boot' ELSE a.freed_by END,
		    exit = coalesce(a.exit, CASE WHEN a.state IN ('reserved', 'active') THEN
		        jsonb_strip_nulls(jsonb_build_object('cause', @cause::text, 'code', 255, 'message', @message::text,
		            'started_at', a.started_at, 'finished_at', now())) END),
		    exited_at = CASE WHEN a.state IN ('reserved', 'active') THEN coalesce(a.exited_at, now())
		        ELSE a.exited_at END,
		    phase = CASE WHEN a.state IN ('reserved', 'active', 'exited') THEN 'sealed' ELSE a.phase END,
		    cut_off = a.cut_off OR a.state = 'exited' AND a.sealed_at IS NULL,
		    sealed_at = CASE WHEN a.state IN ('reserved', 'active', 'exited') THEN coalesce(a.sealed_at, now())
		        ELSE a.sealed_at END
		FROM machines m
		WHERE a.machine_id = @machine AND a.forgotten_at IS NULL AND m.id = a.machine_id`,
		namedArgs{"machine": r.machine, "cause": failure.CauseBoot, "message": message})
	if err != nil {
		return fmt.Errorf("end the ranks of the old boot: %w", err)
	}
	for i := range r.allocs {
		a := &r.allocs[i]
		kind := wire.EventExited
		switch a.State {
		case berth.AllocReserved, berth.AllocActive:
			a.State = berth.AllocExited
		case berth.AllocExited:
			// The exit itself is already recorded, so no event is added; the seal lets the
			// job settle.
			if !a.Sealed {
				r.changed[a.Job] = true
			}
			continue
		case berth.AllocOrphaned:
			a.State, kind = berth.AllocReleased, wire.EventReleased
		case berth.AllocReleased:
			continue
		default:
			panic("unknown allocation state " + string(a.State))
		}
		r.changed[a.Job] = true
		detail := fmt.Sprintf("member %d of attempt %d: %s", a.Rank, a.Attempt, message)
		if err := r.event(ctx, a, kind, detail); err != nil {
			return err
		}
	}
	return nil
}

// event adds an event about the member of an allocation to its job.
func (r *registration) event(
	ctx context.Context, a *machineAlloc, kind wire.EventKind, detail string,
) error {
	return addEvent(ctx, r.tx, a.Job, wire.Event{
		Kind: kind, Attempt: a.Attempt, Actor: AgentActor(r.machine),
		Detail: detail, Facts: &wire.EventFacts{Rank: &a.Rank, Machine: r.machine},
	})
}

// judge decides which of the listed containers must be removed, and releases orphans that
// are not listed: an agent lists all containers of the machine.
func (r *registration) judge(ctx context.Context) error {
	byID := map[berth.AllocationID]machineAlloc{}
	for _, a := range r.allocs {
		byID[a.ID] = a
	}
	seen := map[berth.AllocationID]bool{}
	for _, c := range r.req.Containers {
		seen[c.Alloc] = true
		a, ok := byID[c.Alloc]
		if !ok || !r.keeps(a, c) {
			r.kill = append(r.kill, c.Alloc)
		}
	}
	// Two containers may name the same allocation.
	slices.Sort(r.kill)
	r.kill = slices.Compact(r.kill)
	if err := r.quarantine(ctx); err != nil {
		return err
	}
	var gone []berth.AllocationID
	for _, a := range r.allocs {
		if a.State == berth.AllocOrphaned && !seen[a.ID] {
			gone = append(gone, a.ID)
			r.changed[a.Job] = true
			detail := fmt.Sprintf("member %d of attempt %d: machine %s is back without the container", a.Rank,
				a.Attempt, r.machine)
			if err := r.event(ctx, &a, wire.EventReleased, detail); err != nil {
				return err
			}
		}
	}
	if len(gone) == 0 {
		return nil
	}
	_, err := r.tx.Exec(ctx, `
		UPDATE allocations
		SET state = 'released', released_at = now(), forgotten_at = now(), freed_by = 'agent'
		WHERE id = ANY(@gone) AND state = 'orphaned'`, namedArgs{"gone": ids(gone)})
	if err != nil {
		return fmt.Errorf("release orphans: %w", err)
	}
	return nil
}

// quarantine exempts containers from removal that run although the database knows neither
// their allocation nor the end of their job. The database has lost these rows: a backup was
// restored, or a standby took over that lacked the newest rows. The work in such containers
// may be worth more than the rows, so an operator decides. The machine gets no work before
// they have ended.
func (r *registration) quarantine(ctx context.Context) error {
	var alloc []int64
	var job []string
	for _, c := range r.req.Containers {
		if c.Running && !r.rebooted && slices.Contains(r.kill, c.Alloc) {
			alloc, job = append(alloc, int64(c.Alloc)), append(job, string(c.Job))
		}
	}
	if len(alloc) == 0 {
		return nil
	}
	rows, err := r.tx.Query(ctx, `
		SELECT x.alloc
		FROM unnest(@alloc::bigint[], @job::text[]::uuid[]) AS x (alloc, job)
		WHERE NOT EXISTS (SELECT 1 FROM allocations a WHERE a.id = x.alloc AND a.job = x.job)
		  AND NOT EXISTS (SELECT 1 FROM archived_jobs j WHERE j.id = x.job)
		ORDER BY 1`, namedArgs{"alloc": alloc, "job": job})
	if err != nil {
		return fmt.Errorf("look for unknown containers: %w", err)
	}
	if r.unknown, err = pgx.CollectRows(rows, pgx.RowTo[berth.AllocationID]); err != nil {
		return fmt.Errorf("look for unknown containers: %w", err)
	}
	r.kill = slices.DeleteFunc(r.kill, func(id berth.AllocationID) bool { return slices.Contains(r.unknown, id) })
	return nil
}

// keeps reports whether a container may stay: its allocation belongs to the job's current
// attempt and, unless it has exited, to the machine's current epoch.
func (r *registration) keeps(a machineAlloc, c wire.ContainerSeen) bool {
	if r.rebooted || !a.Current || a.Job != c.Job || a.Attempt != c.Attempt || a.Rank != c.Rank {
		return false
	}
	switch a.State {
	case berth.AllocReserved, berth.AllocActive:
		return a.Epoch == r.epoch
	case berth.AllocExited: // logs and checkpoints are still to be uploaded
		return true
	// The job continues elsewhere, or another job has the capacity.
	case berth.AllocOrphaned, berth.AllocReleased:
		return false
	default:
		panic("unknown allocation state " + string(a.State))
	}
}

// joined selects the pool and the labels that machine @machine got when it joined. The
// previous version of berthd stores both only in the join token, so the token, if it still
// exists, takes precedence over the machine's row.
const joined = `
	SELECT coalesce(t.pool, m.joined_pool) AS pool, coalesce(t.labels, m.joined_labels) AS labels
	FROM machines m
	LEFT JOIN LATERAL (
		SELECT pool, labels
		FROM join_tokens
		WHERE used_by = m.id
		ORDER BY used_at DESC
		LIMIT 1
	) t ON true
	WHERE m.id = @machine`

// writeMachine stores the inventory and the new state of the machine. The pool and the
// labels of the join token take precedence over the agent's: a machine cannot move itself
// to another pool. Without a pool in the token, the agent chooses among the pools without
// rules; the trigger machines_choose_pool keeps the machine out of pools with rules. A drain
// lasts until an operator ends it, also across reboots and losses. A capacity that is
// smaller than the capacity in use is not stored, and the machine's reason says so: the
// present work must end first.
func (r *registration) writeMachine(ctx context.Context) error {
	next := berth.MachineReady
	// Unknown containers keep the machine in joining too: only their end makes it ready.
	owed := slices.Concat(r.kill, r.unknown)
	if len(owed) > 0 {
		next = berth.MachineJoining
	}
	if r.state == berth.MachineDraining {
		next = berth.MachineDraining
	}
	r.state = next
	inv := r.req.Inventory
	if inv.Site == "" {
		inv.Site = "on_prem"
	}
	var pool, bound string
	var open bool // the pool has no rules
	err := r.tx.QueryRow(ctx, `
		UPDATE machines m
		SET state = @state,
		    reason = CASE
		        WHEN @state = 'draining' THEN coalesce(m.drain_reason, m.reason)
		        WHEN @cpu < m.cpu_m_used OR @mem < m.mem_mb_used OR @disk < m.disk_mb_used
		        THEN 'reports less capacity than is in use; the old figures stand until its work has ended'
		        WHEN @state = 'joining' AND @unknown > 0
		        THEN 'runs ' || @unknown ||
		          ' containers that the database does not know; they are left alone, and no work comes before they end'
		        WHEN @state = 'joining' THEN 'removes containers left over from before'
		        ELSE '' END,
		    epoch = @epoch,
		    host_boot = @host_boot,
		    agent_boot = @agent_boot,
		    -- The verdict about the container engine outlasts a restart of the same agent, whose report follows.
		    floor_boot = CASE WHEN m.floor_boot = m.agent_boot AND m.host_boot = @host_boot AND m.engine = @engine
		        AND m.agent_version = @version THEN @agent_boot ELSE m.floor_boot END,
		    joined_pool = joined.pool,
		    joined_labels = joined.labels,
		    pool = coalesce(nullif(joined.pool, ''), @pool),
		    labels = @labels::jsonb || joined.labels,
		    region = @region,
		    site = @site,
		    address = @address,
		    engine = @engine,
		    agent_version = @version,
		    declared = @declared,
		    fence_ms = @fence,
		    network = @network,
		    port_first = @port_first,
		    port_last = @port_last,
		    pending_kills = @kills,
		    engine_silent_since = NULL, -- the engine has just listed its containers
		    cpu_m = CASE WHEN @cpu >= m.cpu_m_used THEN @cpu ELSE m.cpu_m END,
		    mem_mb = CASE WHEN @mem >= m.mem_mb_used THEN @mem ELSE m.mem_mb END,
		    disk_mb = CASE WHEN @disk >= m.disk_mb_used THEN @disk ELSE m.disk_mb END
		FROM (`+joined+`) joined
		WHERE m.id = @machine
		RETURNING m.pool, m.joined_pool, pool_is_open(m.pool)`,
		namedArgs{
			"machine": r.machine, "state": string(next), "epoch": r.epoch,
			"host_boot": r.req.HostBoot, "agent_boot": r.req.AgentBoot,
			"pool": inv.Pool, "labels": nonNil(inv.Labels), "region": inv.Region, "site": inv.Site,
			"address": inv.Address,
			"engine":  inv.Engine, "version": inv.Version, "declared": inv.Declared,
			"fence": max(0, inv.Fence.Std().Milliseconds()), "kills": ids(owed), "unknown": len(r.unknown),
			"network": inv.Network, "port_first": inv.Ports.First, "port_last": inv.Ports.Last,
			"cpu": inv.Capacity.CPUMilli, "mem": inv.Capacity.MemoryMiB, "disk": inv.Capacity.DiskMiB,
		}).Scan(&pool, &bound, &open)
	if err != nil {
		return fmt.Errorf("store inventory: %w", err)
	}
	// Only a first registration is refused. A machine in service stays in its pool instead, since a
	// refusal would end its jobs.
	if r.hostBoot == "" && bound == "" && (!open || inv.Pool != "" && inv.Pool != pool) {
		named := cmp.Or(inv.Pool, pool)
		return berth.Errorf(berth.CodeForbidden, "machine %s is for pool %s, which has rules: join with a token "+
			"for this pool (berth join-token create --pool %s)", r.machine, named, named)
	}
	return nil
}

// writeLease starts the session's lease. seq 0 accepts the first call of the new agent
// process.
func (r *registration) writeLease(ctx context.Context) error {
	_, err := r.tx.Exec(ctx, `
		INSERT INTO machine_leases AS l (machine_id, epoch, agent_boot, until)
		VALUES (@machine, @epoch, @boot, clock_timestamp() + @ttl::interval)
		ON CONFLICT (machine_id) DO UPDATE
		SET epoch = excluded.epoch, agent_boot = excluded.agent_boot, until = excluded.until,
			seen_at = clock_timestamp(), seq = 0, back_at = `+backAt,
		namedArgs{"machine": r.machine, "epoch": r.epoch, "boot": r.req.AgentBoot, "ttl": berth.MachineLeaseTTL})
	return err
}

// ids returns allocation ids in the type that the driver encodes as bigint[].
func ids(allocs []berth.AllocationID) []int64 {
	list := make([]int64, len(allocs))
	for i, a := range allocs {
		list[i] = int64(a)
	}
	return list
}
