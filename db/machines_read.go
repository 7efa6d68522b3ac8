package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/internal/lib/enginesilence"
	"berth/spec"
	"berth/wire"
)

// MachineFilter selects machines; zero fields select all that are not retired.
type MachineFilter struct {
	ID     berth.MachineID
	State  []berth.MachineState // shown states, drained apart from draining
	Tenant berth.TenantID       // only jobs of this tenant are named; "" names all
	Pool   string
	Labels map[string]string // all of these
	After  berth.MachineID   // the last id of the page before
	Limit  int               // 0: all
}

// shownState is the state of machine m for readers. A draining machine is drained once nothing
// of it counts against its capacity, all results are stored, and no container is left to be
// removed: it may be switched off. A joining machine is pending while it waits for an approval only.
const shownState = `
	CASE WHEN m.state = 'joining' AND m.held <> '' AND (m.returned OR cardinality(m.pending_kills) = 0) THEN 'pending'
	WHEN m.state = 'draining' AND cardinality(m.pending_kills) = 0 AND NOT EXISTS (
		SELECT 1 FROM allocations a WHERE a.machine_id = m.id AND ` + heldThere + `)
	THEN 'drained' ELSE m.state END`

// Get returns a machine with its devices and its jobs. The capacity in use covers all
// tenants; jobs are named only to their own tenant ("" sees all).
func (d *Machines) Get(ctx context.Context, tenant berth.TenantID, id berth.MachineID) (wire.Machine, error) {
	// One statement serves both calls, so that a machine never looks different on its own page.
	found, err := d.List(ctx, MachineFilter{ID: id, Tenant: tenant})
	if err != nil {
		return wire.Machine{}, err
	}
	if len(found) == 0 {
		return wire.Machine{}, berth.Errorf(berth.CodeNotFound, "no such machine %s", id)
	}
	return found[0], nil
}

// List returns machines in order of ids, with the same content as Get. Retired machines are
// left out unless f names them by id or by state.
func (d *Machines) List(ctx context.Context, f MachineFilter) ([]wire.Machine, error) {
	states := f.State
	if states == nil {
		states = []berth.MachineState{}
	}
	// LIMIT NULL is no limit.
	limit := any(nil)
	if f.Limit > 0 {
		limit = f.Limit
	}
	// One document per machine, so that a page is one statement and one snapshot. The columns
	// *_used are sums that triggers keep.
	rows, err := d.pool.Query(ctx, `
		SELECT jsonb_strip_nulls(jsonb_build_object(
			'id', m.id, 'state', shown.state, 'state_at', m.state_at, 'reason', m.reason, 'epoch', m.epoch,
			'pool', m.pool, 'region', m.region, 'site', m.site, 'labels', machine_labels(m), 'declared', m.declared,
			'taints', nullif(to_jsonb(m.taints || m.pool_taints), '[]'),
			'engine', m.engine, 'version', m.agent_version, 'fence', nullif(m.fence_ms, 0) || 'ms', 'drain_deadline',
				m.drain_deadline,
			'approval', CASE WHEN m.equipment IS NOT NULL
					AND (m.held <> '' OR m.approved IS NOT NULL AND machine_needs_approval(m.pool, m.joined_pool))
				THEN jsonb_build_object('held', m.held, 'equipment', m.equipment, 'by', nullif(m.approved_by, ''),
					'at', m.approved_at) END,
			'drain_actor', CASE WHEN m.state = 'draining' THEN nullif(m.drain_actor, '') END,
			'engine_silent_since', CASE WHEN m.state NOT IN ('lost', 'retired') THEN m.engine_silent_since END,
			'maintenance', `+machineWindow+`, 'security', `+machineSecurity+`,
			'seen_at', (SELECT l.seen_at FROM machine_leases l WHERE l.machine_id = m.id),
			'capacity', jsonb_build_object('cpu_milli', m.cpu_m, 'memory_mib', m.mem_mb, 'disk_mib', m.disk_mb,
				'gpu_milli', m.gpu_milli),
			'used', jsonb_build_object('cpu_milli', m.cpu_m_used, 'memory_mib', m.mem_mb_used, 'disk_mib',
				m.disk_mb_used, 'gpu_milli', m.gpu_milli_used),
			'free', jsonb_build_object('cpu_milli', m.cpu_m - m.cpu_m_used, 'memory_mib', m.mem_mb - m.mem_mb_used,
				'disk_mib', m.disk_mb - m.disk_mb_used, 'gpu_milli', m.gpu_milli - m.gpu_milli_used),
			'measured', `+measuredUse+`,
			'gpus', (
				SELECT jsonb_agg(jsonb_build_object(
					'index', g.idx, 'uuid', g.uuid, 'model', g.model, 'memory_mib', g.mem_mb,
					'healthy', g.healthy, 'reason', g.reason, 'used_milli', g.milli_used,
					'jobs', (
						SELECT jsonb_agg(a.job ORDER BY a.id)
						FROM device_allocations c
						JOIN allocations a ON a.id = c.alloc_id
						JOIN jobs j ON j.id = a.job
						WHERE c.machine_id = g.machine_id AND c.idx = g.idx AND counts(a.state)
						  AND a.machine_id = m.id AND a.forgotten_at IS NULL
						  AND (@tenant = '' OR j.tenant = @tenant))) ORDER BY g.idx)
				FROM gpu_devices g WHERE g.machine_id = m.id),
			'jobs', (
				SELECT jsonb_agg(jsonb_build_object(
					'job', a.job, 'handle', CASE WHEN @id <> '' THEN `+handleOf("a.job")+` END,
					'name', j.name, 'tenant', j.tenant, 'attempt', a.attempt,
					'rank', a.rank, 'state', a.state, 'phase', a.phase) ORDER BY a.id)
				FROM allocations a
				JOIN jobs j ON j.id = a.job
				WHERE a.machine_id = m.id AND a.forgotten_at IS NULL AND counts(a.state)
				  AND (@tenant = '' OR j.tenant = @tenant))))
		FROM machines m
		CROSS JOIN LATERAL (SELECT `+shownState+` AS state) shown
		WHERE (@id = '' OR m.id = @id)
		  AND CASE
			WHEN cardinality(@states::text[]) > 0 THEN shown.state = ANY(@states)
			ELSE @id <> '' OR m.state <> 'retired'
		  END
		  AND (@pool = '' OR m.pool = @pool) AND machine_labels(m) @> @labels
		  AND m.id > @after
		ORDER BY m.id
		LIMIT @limit`,
		namedArgs{"id": string(f.ID), "states": states, "tenant": string(f.Tenant), "after": string(f.After),
			"limit": limit, "pool": f.Pool, "labels": nonNilMap(f.Labels), "use_age": wire.UseAge.Seconds()})
	if err != nil {
		return nil, mapError(err, "machines")
	}
	machines, err := pgx.CollectRows(rows, pgx.RowTo[wire.Machine])
	for i := range machines {
		complete(&machines[i])
	}
	return machines, mapError(err, "machines")
}

// complete derives the parts of a machine's document that follow from others.
func complete(m *wire.Machine) {
	if m.Approval != nil {
		m.Approval.Fingerprint = m.Approval.Equipment.Fingerprint()
	}
	completeSecurity(m.Security)
	m.Reason = machineReason(*m)
}

// Drained returns the set of the drained machines.
func (d *Machines) Drained(ctx context.Context) (map[berth.MachineID]bool, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT m.id FROM machines m WHERE m.state = 'draining' AND `+shownState+` = 'drained'`)
	if err != nil {
		return nil, mapError(err, "drained machines")
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[berth.MachineID])
	set := make(map[berth.MachineID]bool, len(list))
	for _, id := range list {
		set[id] = true
	}
	return set, mapError(err, "drained machines")
}

// nonNilMap replaces nil, which would become JSON's null.
func nonNilMap(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// machineReason returns the reason of a machine's state in words. Rows hold the reasons of
// changes by operators and the leader; the reasons of the other states follow from the state.
// Engine silence is no state, so its reason is added to the one of the state.
func machineReason(m wire.Machine) string {
	reason := m.Reason
	switch {
	case m.State == berth.MachineSuspect && m.SeenAt != nil:
		reason = "no contact since " + m.SeenAt.UTC().Format(time.RFC3339) + "; gets no new work before its next call"
	case m.State == berth.MachineJoining && reason == "":
		reason = "its agent has not registered yet"
	case m.State == wire.MachineDrained && reason == "", m.State == berth.MachineDraining && reason == "":
		reason = "no reason was given"
	}
	if len(m.Taints) > 0 && m.State != berth.MachineLost && m.State != berth.MachineRetired {
		if reason != "" {
			reason += "; "
		}
		reason += "tainted " + spec.ShortTaints(m.Taints)
	}
	if m.EngineSilentSince == nil {
		return reason
	}
	if reason != "" {
		reason += "; "
	}
	return reason + enginesilence.Reason(*m.EngineSilentSince)
}
