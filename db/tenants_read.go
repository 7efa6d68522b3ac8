package db

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// TenantRow is a tenant with its quota and its use, as of Now.
type TenantRow struct {
	wire.Tenant  // Use has the present use if List or Page has read the row
	Quota        spec.Quota
	Usage        TenantUsage
	Stalled      time.Duration // time in which its work waited only for its quota, up to StalledSince
	StalledSince *time.Time    // nil: its work does not wait for its quota at present
	Now          time.Time     // clock of the database
}

// TenantUsage is the use by a tenant's work that no longer holds capacity, in amounts times
// seconds.
type TenantUsage struct {
	CPU       float64 // core seconds, decayed with the configured half-life
	MemoryMiB float64 // MiB seconds, decayed with the half-life
	GPU       float64 // GPU seconds, decayed with the half-life
	Spent     float64 // GPU seconds in the present period of the budget, without decay
}

// usageOf returns common table expressions that sum the charges c by tenant as of n.at: the
// decayed use (u.cpu_s, u.mem_mb_s, u.gpu_s), and the part within the present period of the
// tenant's budget (u.spent_s).
//
// A charge covers from_at to to_at. A charge with entry_ms is a fixed amount at to_at
// instead, and does not count towards the budget.
func usageOf(charges string) string {
	return `
		n AS MATERIALIZED (SELECT clock_timestamp() AS at),
		p AS MATERIALIZED (
			SELECT t.id, CASE WHEN t.budget_since IS NOT NULL THEN period_of(t.budget_since, t.budget_period_ms,
				n.at) END AS period
			FROM tenants t
			CROSS JOIN n
		), u AS MATERIALIZED (
			SELECT c.tenant, sum(c.cpu_m / 1000.0 * w.seconds) AS cpu_s, sum(c.mem_mb * w.seconds) AS mem_mb_s,
				sum(c.gpu_milli / 1000.0 * w.seconds) AS gpu_s, sum(c.gpu_milli / 1000.0 * w.spent) AS spent_s
			FROM ` + charges + ` c
			JOIN p ON p.id = c.tenant
			CROSS JOIN n
			CROSS JOIN LATERAL (
				SELECT
					CASE
						WHEN @half_life::interval <= '0' THEN 0
						WHEN c.entry_ms > 0 THEN decayed(c.entry_ms / 1000.0, c.to_at, n.at, @half_life::interval)
						ELSE decayed_seconds(c.from_at, c.to_at, n.at, @half_life::interval)
					END AS seconds,
					CASE WHEN c.entry_ms = 0 AND p.period IS NOT NULL
						THEN greatest(0, extract(epoch FROM c.to_at - greatest(c.from_at, p.period)))::double
							precision ELSE 0 END AS spent
			) w
			GROUP BY c.tenant
		)`
}

// usedNow returns the decayed value of a column of tenant t's row at n.at.
func usedNow(column string) string {
	return `CASE WHEN @half_life::interval > '0' THEN decayed(t.` + column +
		`, t.used_at, n.at, @half_life::interval) ELSE 0 END`
}

// readTenants selects all tenants by id, without the use by work that still holds capacity.
var readTenants = readTenantsWhere("true") + `
	ORDER BY t.id`

// readTenantPage selects a page of tenants by id, otherwise as readTenants.
var readTenantPage = readTenantsWhere("t.id > @after") + `
	ORDER BY t.id
	LIMIT @limit`

// readTenantsWhere returns the statement for the tenants that satisfy the condition. A
// tenant's use is the sum in its row plus the charges that FoldUsage has not added yet. The
// columns are in the order of scanTenant.
func readTenantsWhere(condition string) string {
	return `
	WITH ` + usageOf("usage_charges") + `
	SELECT t.id, coalesce(t.parent, ''), t.weight, t.created_at, t.untrusted, n.at,
		t.guarantee_cpu_m, t.guarantee_mem_mb, t.guarantee_gpu_milli, t.limit_cpu_m, t.limit_mem_mb, t.limit_gpu_milli,
		t.borrow, t.max_running, t.max_queued, t.budget_gpu_hours, t.budget_period_ms, p.period, t.version,
		t.` + strings.Join(LaterQuotaSettings, ", t.") + `,
		t.stalled_ms, t.stalled_since,
		` + usedNow("used_cpu_s") + ` + coalesce(u.cpu_s, 0),
		` + usedNow("used_mem_mb_s") + ` + coalesce(u.mem_mb_s, 0),
		` + usedNow("used_gpu_s") + ` + coalesce(u.gpu_s, 0),
		CASE WHEN t.period_at = p.period THEN t.period_gpu_s ELSE 0 END + coalesce(u.spent_s, 0),
		coalesce(lower(x.uids), 0), coalesce(upper(x.uids) - 1, 0)
	FROM tenants t
	CROSS JOIN n
	JOIN p ON p.id = t.id
	LEFT JOIN u ON u.tenant = t.id
	LEFT JOIN tenant_uids x ON x.tenant = t.id
	WHERE ` + condition
}

// usageArgs returns the arguments of usageOf and usedNow.
func (d *Tenants) usageArgs() namedArgs { return namedArgs{"half_life": d.halfLife} }

// Rows returns all tenants by id, without their present use.
func (d *Tenants) Rows(ctx context.Context) ([]TenantRow, error) {
	list, err := queryTenants(ctx, d.pool, readTenants, d.usageArgs())
	return list, mapError(err, "tenants")
}

func queryTenants(ctx context.Context, q querier, sql string, args namedArgs) ([]TenantRow, error) {
	rows, err := q.Query(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanTenant)
}

// scanTenant scans a row of readTenantsWhere.
func scanTenant(row pgx.CollectableRow) (t TenantRow, err error) {
	var guarantee, limit spec.Amounts
	var hours *float64
	var periodMS *int64
	var period *time.Time
	var stalledMS int64
	var storage map[string]int64
	q := &t.Quota
	targets := []any{
		&t.ID, &t.Parent, &t.Weight, &t.CreatedAt, &t.Untrusted, &t.Now,
		&guarantee.CPUs, &guarantee.Memory, &guarantee.GPUs, &limit.CPUs, &limit.Memory, &limit.GPUs,
		&q.Borrow, &q.MaxRunning, &q.MaxQueued, &hours, &periodMS, &period, &q.Version,
	}
	later := q.Later()
	later["storage"] = &storage
	for _, name := range LaterQuotaSettings {
		targets = append(targets, later[name])
	}
	err = row.Scan(append(targets,
		&stalledMS, &t.StalledSince, &t.Usage.CPU, &t.Usage.MemoryMiB, &t.Usage.GPU, &t.Usage.Spent, &t.Users.First,
		&t.Users.Last)...)
	q.Tenant, q.Storage = t.ID, storageLimits(storage)
	if guarantee != (spec.Amounts{}) {
		q.Guarantee = &guarantee
	}
	if limit != (spec.Amounts{}) {
		q.Limit = &limit
	}
	if hours != nil && periodMS != nil {
		q.Budget = &spec.GPUBudget{GPUHours: *hours,
			Period: spec.Duration(time.Duration(*periodMS) * time.Millisecond), Since: period}
	}
	t.Stalled = time.Duration(stalledMS) * time.Millisecond
	return t, err
}

// List returns tenants by id with their present use, from one snapshot: the tenant id, or
// all tenants if id is "".
func (d *Tenants) List(ctx context.Context, id berth.TenantID) ([]TenantRow, error) {
	var list []TenantRow
	err := d.readTx(ctx, func(tx pgx.Tx) error {
		var err error
		if list, err = queryTenants(ctx, tx, readTenants, d.usageArgs()); err != nil {
			return err
		}
		if id != "" {
			list = slices.DeleteFunc(list, func(t TenantRow) bool { return t.ID != id })
		}
		return addPresent(ctx, tx, list, d.usageArgs())
	})
	if err == nil && id != "" && len(list) == 0 {
		err = pgx.ErrNoRows
	}
	return list, mapError(err, "tenant "+string(id))
}

// Page returns a page of all tenants by id with their present use.
func (d *Tenants) Page(ctx context.Context, p Paging) (list []TenantRow, next string, err error) {
	after := ""
	if _, err := p.after(&after); err != nil {
		return nil, "", err
	}
	args := d.usageArgs()
	args["after"], args["limit"] = after, p.limit()+1
	err = d.readTx(ctx, func(tx pgx.Tx) error {
		rows, err := queryTenants(ctx, tx, readTenantPage, args)
		if err != nil {
			return err
		}
		list, next = cut(p, rows, func(t TenantRow) []any { return []any{t.ID} })
		return addPresent(ctx, tx, list, d.usageArgs())
	})
	return list, next, mapError(err, "tenants")
}

// addPresent adds the tenants' present use: stored data, waiting and running jobs, and held
// capacity.
func addPresent(ctx context.Context, tx pgx.Tx, list []TenantRow, args namedArgs) error {
	byID := make(map[berth.TenantID]*TenantRow, len(list))
	ids := make([]string, len(list))
	for i := range list {
		t := &list[i]
		byID[t.ID], ids[i] = t, string(t.ID)
		t.Use.CPUHours, t.Use.GPUHours, t.Use.SpentGPUs = t.Usage.CPU/3600, t.Usage.GPU/3600, t.Usage.Spent/3600
		t.Use.Holding = spec.Amounts{CPUs: new(spec.MilliCPU), Memory: new(spec.MiB), GPUs: new(spec.MilliGPU)}
	}
	stored, err := storedBelow(ctx, tx, ids)
	if err != nil {
		return err
	}
	for id, s := range stored {
		byID[id].Quota.Stored = s
	}
	rows, err := tx.Query(ctx, `
		SELECT tenant, count(*) FILTER (WHERE state IN ('submitted', 'queued', 'retrying')),
			count(*) FILTER (WHERE state IN ('scheduled', 'running', 'preempting', 'canceling'))
		FROM jobs w
		WHERE (`+countsAsQueued+` OR w.debug AND state NOT IN ('submitted', 'queued', 'retrying'))
			AND state NOT IN ('succeeded', 'failed', 'canceled')
		GROUP BY tenant`)
	if err != nil {
		return err
	}
	var id berth.TenantID
	var waiting, running int
	if _, err = pgx.ForEachRow(rows, []any{&id, &waiting, &running}, func() error {
		if t := byID[id]; t != nil {
			t.Use.Waiting, t.Use.Running = waiting, running
		}
		return nil
	}); err != nil {
		return err
	}
	return addHoldings(ctx, tx, byID, args)
}

// addHoldings adds the capacity that tenants hold, and its use up to now. Orphans still
// count as held, but their use ends when they are orphaned.
func addHoldings(ctx context.Context, tx pgx.Tx, byID map[berth.TenantID]*TenantRow, args namedArgs) error {
	rows, err := tx.Query(ctx, `
		WITH held AS (
			SELECT alloc.id AS alloc_id, 0 AS entry_ms, j.tenant, alloc.cpu_m, alloc.mem_mb, alloc.gpu_milli,
				alloc.reserved_at AS from_at, coalesce(alloc.orphaned_at, clock_timestamp()) AS to_at
			FROM allocations alloc
			JOIN jobs j ON j.id = alloc.job
			WHERE alloc.forgotten_at IS NULL AND alloc.state IN ('reserved', 'active', 'orphaned')
		), `+usageOf("held")+`
		SELECT h.tenant, sum(h.cpu_m)::bigint, sum(h.mem_mb)::bigint, sum(h.gpu_milli)::bigint, u.cpu_s,
			u.gpu_s, u.spent_s
		FROM held h
		JOIN u ON u.tenant = h.tenant
		GROUP BY h.tenant, u.cpu_s, u.gpu_s, u.spent_s`, args)
	if err != nil {
		return err
	}
	var id berth.TenantID
	var held berth.Capacity
	var cpu, gpu, spent float64
	_, err = pgx.ForEachRow(rows, []any{&id, &held.CPUMilli, &held.MemoryMiB, &held.GPUMilli, &cpu, &gpu, &spent},
		func() error {
			if t := byID[id]; t != nil {
				*t.Use.Holding.CPUs, *t.Use.Holding.Memory, *t.Use.Holding.GPUs = spec.MilliCPU(held.CPUMilli),
					spec.MiB(held.MemoryMiB), spec.MilliGPU(held.GPUMilli)
				t.Use.CPUHours, t.Use.GPUHours, t.Use.SpentGPUs = t.Use.CPUHours+cpu/3600, t.Use.GPUHours+gpu/3600,
					t.Use.SpentGPUs+spent/3600
			}
			return nil
		})
	return err
}
