package db

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// lockTenants locks the rows of all tenants, so that tenants are changed one at a time: two
// concurrent changes could otherwise create a cycle of parents. Lock order: after
// everything else, by id.
const lockTenants = `SELECT id, coalesce(parent, '') FROM tenants ORDER BY id FOR NO KEY UPDATE`

// refuseFormer returns an error if a tenant with this id was deleted before and has left
// jobs, archived or submitted during its deletion. A new tenant with the id would own these
// jobs, with their logs and outputs.
func refuseFormer(ctx context.Context, tx pgx.Tx, id berth.TenantID) error {
	var left bool
	if err := tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT 1 FROM archived_jobs WHERE tenant = @tenant AND parent IS NULL)
			OR EXISTS (SELECT 1 FROM jobs WHERE tenant = @tenant AND parent IS NULL)`,
		namedArgs{"tenant": id}).Scan(&left); err != nil {
		return err
	}
	if left {
		return berth.Errorf(berth.CodeConflict,
			"a tenant %s was deleted, and its jobs are still on record: choose another id", id)
	}
	return nil
}

// ensureTenant creates the tenant if it does not exist, and otherwise prevents its deletion
// until the transaction ends. As with keepTenant, the transaction must not lock anything
// afterwards.
func ensureTenant(ctx context.Context, tx pgx.Tx, id berth.TenantID) error {
	tag, err := tx.Exec(ctx, `INSERT INTO tenants (id) VALUES (@id) ON CONFLICT DO NOTHING`, namedArgs{"id": id})
	switch {
	case err != nil:
		return err
	case tag.RowsAffected() == 1:
		return refuseFormer(ctx, tx, id) // an error rolls the insert back
	}
	return keepTenant(ctx, tx, id)
}

// Create adds a tenant. An id that exists is a conflict, and so is the id of a deleted
// tenant that has left jobs.
func (d *Tenants) Create(ctx context.Context, n spec.NewTenant) error {
	if n.Weight == 0 {
		n.Weight = 1
	}
	err := d.tx(ctx, func(tx pgx.Tx) error {
		parents, err := tenantParents(ctx, tx)
		if err != nil {
			return err
		}
		if _, taken := parents[n.ID]; taken {
			return berth.Errorf(berth.CodeConflict, "tenant %s exists already", n.ID)
		}
		if err := refuseFormer(ctx, tx, n.ID); err != nil {
			return err
		}
		if err := checkParent(parents, n.ID, n.Parent); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO tenants (id, parent, weight, untrusted)
			VALUES (@id, nullif(@parent, ''), @weight, @untrusted)`,
			namedArgs{"id": n.ID, "parent": string(n.Parent), "weight": n.Weight, "untrusted": n.Untrusted})
		return err
	})
	return d.changed(err, n.ID)
}

// Update changes a tenant's weight, parent and trust. Unset fields of the patch stay as they are;
// an empty parent moves the tenant to the root.
func (d *Tenants) Update(ctx context.Context, id berth.TenantID, p spec.TenantPatch) error {
	err := d.tx(ctx, func(tx pgx.Tx) error {
		parents, err := tenantParents(ctx, tx)
		if err != nil {
			return err
		}
		if _, known := parents[id]; !known {
			return pgx.ErrNoRows
		}
		if p.Parent != nil {
			if err := checkParent(parents, id, *p.Parent); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, `
			UPDATE tenants
			SET parent = CASE WHEN @parent::text IS NULL THEN parent ELSE nullif(@parent::text, '') END,
				weight = coalesce(@weight::double precision, weight),
				untrusted = coalesce(@untrusted::boolean, untrusted), version = version + 1
			WHERE id = @id`,
			namedArgs{"id": id, "parent": p.Parent, "weight": p.Weight, "untrusted": p.Untrusted})
		return err
	})
	return d.changed(err, id)
}

// clearTenant deletes a tenant's uploads, secrets, results of cached steps, webhook notices, notification
// channels, submit leases and burst policy. A later tenant with the same id must not find any of these rows,
// and without the secret no notice can be signed. The tenant's range of users is
// given to no other tenant.
func clearTenant(ctx context.Context, tx pgx.Tx, id berth.TenantID) error {
	for _, sql := range []string{`
		WITH theirs AS MATERIALIZED (
			SELECT address
			FROM uploads
			WHERE tenant = @id
			ORDER BY address
			FOR UPDATE
		), gone AS (
			DELETE FROM uploads
			WHERE tenant = @id AND address IN (SELECT address FROM theirs)
			RETURNING folder
		)
		INSERT INTO doomed_objects (prefix, since)
		SELECT folder, clock_timestamp() FROM gone
		ON CONFLICT (prefix) DO UPDATE SET since = excluded.since`,
		`DELETE FROM secrets WHERE tenant = @id`,
		`DELETE FROM step_results WHERE tenant = @id`,
		`DELETE FROM notices WHERE tenant = @id`,
		`DELETE FROM channels WHERE tenant = @id`,
		`DELETE FROM submit_leases WHERE tenant = @id`,
		`DELETE FROM burst_policies WHERE tenant = @id`,
		`UPDATE tenant_uids SET tenant = NULL WHERE tenant = @id`,
	} {
		if _, err := tx.Exec(ctx, sql, namedArgs{"id": id}); err != nil {
			return err
		}
	}
	return nil
}

// keepTenant prevents the deletion of a tenant until the end of a transaction that has
// stored something for the tenant. It must be the last lock, after the stored rows: see the
// lock order. A deleted tenant is not_found, and the transaction must be rolled back.
func keepTenant(ctx context.Context, tx pgx.Tx, id berth.TenantID) error {
	var one int
	err := tx.QueryRow(ctx, `SELECT 1 FROM tenants WHERE id = @id FOR KEY SHARE`, namedArgs{"id": id}).Scan(&one)
	return mapError(err, "tenant "+string(id))
}

// errStoredMeanwhile reports that something was stored after deleteTenant removed the
// tenant's data, and before it locked the tenant's row. From that lock on, nothing can be
// stored.
var errStoredMeanwhile = berth.Errorf(berth.CodeUnavailable, "data is being stored for the tenant; try again")

// Delete removes a tenant that nothing belongs to: no job that is not archived, no valid
// token, no tenant below, no schedule, no rule of a pool, no machine of a cloud. Its secrets
// and uploads are deleted with it; its archived jobs stay, and keep the id from being used
// again.
//
// Secrets, uploads, schedules and tokens that are stored concurrently either keep the
// tenant or are not stored. Jobs are not excluded in this way, since each submit would have
// to lock its tenant: a job submitted between the count of jobs and the commit has no
// tenant, and keeps the id from being used, as an archived job does.
func (d *Tenants) Delete(ctx context.Context, id berth.TenantID) error {
	var err error
	for range 10 {
		err = d.tx(ctx, func(tx pgx.Tx) error { return deleteTenant(ctx, tx, id) })
		if !errors.Is(err, errStoredMeanwhile) {
			break
		}
	}
	return d.changed(err, id)
}

// deleteTenant deletes the tenant in one transaction. It returns errStoredMeanwhile if the
// transaction must be repeated.
func deleteTenant(ctx context.Context, tx pgx.Tx, id berth.TenantID) error {
	// The deletes precede the locks of tenants in the lock order. They are rolled back if
	// the tenant stays.
	if err := clearTenant(ctx, tx, id); err != nil {
		return err
	}
	parents, err := tenantParents(ctx, tx)
	if err != nil {
		return err
	}
	if _, known := parents[id]; !known {
		return pgx.ErrNoRows
	}
	if id == "default" {
		return berth.Errorf(berth.CodeConflict, "tenant default cannot be deleted: it owns tokens without a tenant")
	}
	args := namedArgs{"id": id}
	// FOR UPDATE conflicts with keepTenant's FOR KEY SHARE: transactions that have stored
	// something for the tenant have ended by now, and later ones will not find the tenant.
	if _, err := tx.Exec(ctx, `SELECT 1 FROM tenants WHERE id = @id FOR UPDATE`, args); err != nil {
		return err
	}
	var jobs, tokens, below, schedules, pools, launches int
	var left bool
	err = tx.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM jobs WHERE tenant = @id),
			(SELECT count(*) FROM tokens WHERE tenant = @id AND revoked_at IS NULL
				AND (expires_at IS NULL OR expires_at > now())),
			(SELECT count(*) FROM tenants WHERE parent = @id),
			(SELECT count(*) FROM schedules WHERE tenant = @id AND deleted_at IS NULL),
			(SELECT count(*) FROM pools WHERE @id = ANY(tenants)),
			(SELECT count(*) FROM launches WHERE tenant = @id AND state NOT IN ('gone', 'failed')),
			EXISTS (SELECT 1 FROM secrets WHERE tenant = @id) OR EXISTS (SELECT 1 FROM uploads WHERE tenant = @id)
				OR EXISTS (SELECT 1 FROM tenant_uids WHERE tenant = @id)
				OR EXISTS (SELECT 1 FROM channels WHERE tenant = @id)`,
		args).Scan(&jobs, &tokens, &below, &schedules, &pools, &launches, &left)
	if err != nil {
		return err
	}
	if jobs+tokens+below+schedules+pools+launches > 0 {
		return errTenantInUse(id, jobs, tokens, below, schedules, pools, launches)
	}
	if left {
		return errStoredMeanwhile
	}
	// The costs stay part of the spend of the tenants above, whose limits they have used.
	_, err = tx.Exec(ctx, `
		INSERT INTO spend (tenant, day, settled)
		SELECT t.parent, s.day, s.settled
		FROM spend s
		JOIN tenants t ON t.id = s.tenant AND t.parent IS NOT NULL
		WHERE s.tenant = @id
		ORDER BY s.day
		ON CONFLICT (tenant, day) DO UPDATE SET settled = spend.settled + excluded.settled`, args)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		DELETE FROM spend
		USING tenants t
		WHERE spend.tenant = @id AND t.id = @id AND t.parent IS NOT NULL`, args)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `DELETE FROM tenants WHERE id = @id`, args)
	return err
}

// errTenantInUse names the reasons for which a tenant cannot be deleted.
func errTenantInUse(id berth.TenantID, jobs, tokens, below, schedules, pools, launches int) error {
	var parts []string
	if jobs > 0 {
		parts = append(parts, plural(jobs, "job")+" not yet archived")
	}
	for _, x := range []struct {
		n    int
		noun string
	}{
		{tokens, "active token"}, {below, "tenant below it"}, {schedules, "schedule"},
		{pools, "pool with a rule for it"}, {launches, "cloud machine"},
	} {
		switch {
		case x.n > 1 && x.noun == "tenant below it":
			parts = append(parts, fmt.Sprintf("%d tenants below it", x.n))
		case x.n > 1 && x.noun == "pool with a rule for it":
			parts = append(parts, fmt.Sprintf("%d pools with rules for it", x.n))
		case x.n > 0:
			parts = append(parts, plural(x.n, x.noun))
		}
	}
	return berth.Errorf(berth.CodeConflict, "tenant %s cannot be deleted: %s", id, strings.Join(parts, ", "))
}

// plural returns a count with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// LaterQuotaSettings is the sorted list of the names of spec.Quota.Later's settings.
var LaterQuotaSettings = slices.Sorted(maps.Keys((&spec.Quota{}).Later()))

// setLaterSettings assigns the columns of LaterQuotaSettings, except for the settings to
// keep.
var setLaterSettings = func() string {
	var b strings.Builder
	for _, name := range LaterQuotaSettings {
		fmt.Fprintf(&b, "%[1]s = CASE WHEN @keep_%[1]s THEN %[1]s ELSE @%[1]s END,\n\t\t\t\t", name)
	}
	return b.String()
}()

// ruleDocument returns the rules as the value of a column, null if there are none.
func ruleDocument(rules []spec.SignatureRule) any {
	if rules == nil {
		return nil
	}
	return rules
}

// SetQuota replaces a tenant's quota. A version other than 0 and the present one is a
// conflict. A budget continues its periods if the length of a period stays the same. keep
// names settings of LaterQuotaSettings that are not changed.
func (d *Tenants) SetQuota(ctx context.Context, q spec.Quota, keep ...string) error {
	if q.Borrow == "" {
		q.Borrow = spec.BorrowAny
	}
	args := namedArgs{
		"id": q.Tenant, "version": q.Version, "borrow": q.Borrow, "max_running": q.MaxRunning,
		"max_queued": q.MaxQueued,
		"hours":      nil, "period_ms": nil,
	}
	later := q.Later()
	later["storage"], later["image_signatures"] = storageDocument(q.Storage), ruleDocument(q.ImageSignatures)
	for name, value := range later {
		args[name], args["keep_"+name] = value, slices.Contains(keep, name)
	}
	amountArgs(args, "guarantee", q.Guarantee)
	amountArgs(args, "limit", q.Limit)
	if b := q.Budget; b != nil {
		args["hours"], args["period_ms"] = b.GPUHours, b.Period.Std().Milliseconds()
	}
	err := d.tx(ctx, func(tx pgx.Tx) error {
		var version int64
		err := tx.QueryRow(ctx, `SELECT version FROM tenants WHERE id = @id FOR NO KEY UPDATE`, args).Scan(&version)
		if err != nil {
			return err
		}
		if q.Version != 0 && q.Version != version {
			return berth.Errorf(berth.CodeConflict, "the quota of tenant %s is at version %d, not %d: it was "+
				"changed meanwhile; read it again", q.Tenant, version, q.Version)
		}
		_, err = tx.Exec(ctx, `
			UPDATE tenants
			SET guarantee_cpu_m = @guarantee_cpus, guarantee_mem_mb = @guarantee_memory,
				guarantee_gpu_milli = @guarantee_gpus,
				limit_cpu_m = @limit_cpus, limit_mem_mb = @limit_memory, limit_gpu_milli = @limit_gpus,
				borrow = @borrow, max_running = @max_running, max_queued = @max_queued,
				`+setLaterSettings+`budget_gpu_hours = @hours, budget_period_ms = @period_ms,
				budget_since = CASE
					WHEN @hours::double precision IS NULL THEN NULL
					WHEN budget_period_ms = @period_ms::bigint THEN budget_since
					ELSE now()
				END,
				version = version + 1
			WHERE id = @id`, args)
		return err
	})
	return d.changed(err, q.Tenant)
}

// amountArgs adds the arguments of one set of amounts; nil means no amounts.
func amountArgs(args namedArgs, name string, a *spec.Amounts) {
	if a == nil {
		a = &spec.Amounts{}
	}
	args[name+"_cpus"], args[name+"_memory"], args[name+"_gpus"] = a.CPUs, a.Memory, a.GPUs
}

// changed notifies the leader of a committed change, or maps the error of a failed one.
func (d *Tenants) changed(err error, id berth.TenantID) error {
	if err != nil {
		return mapError(err, "tenant "+string(id))
	}
	d.hub.Publish(TopicQueue, KeyTenants)
	return nil
}

// KeyTenants is the key of queue hints about changed tenants. It is not an id of anything.
const KeyTenants = "tenants/"

// tenantParents locks all tenants and returns the parent of each one.
func tenantParents(ctx context.Context, tx pgx.Tx) (map[berth.TenantID]berth.TenantID, error) {
	rows, err := tx.Query(ctx, lockTenants)
	if err != nil {
		return nil, err
	}
	parents := map[berth.TenantID]berth.TenantID{}
	var id, parent berth.TenantID
	_, err = pgx.ForEachRow(rows, []any{&id, &parent}, func() error {
		parents[id] = parent
		return nil
	})
	return parents, err
}

// checkParent refuses a parent that does not exist, that would create a cycle, or that
// would make the tree too deep. The tenants below id move together with id.
func checkParent(parents map[berth.TenantID]berth.TenantID, id, parent berth.TenantID) error {
	if parent == "" {
		return nil
	}
	fault := func(detail, allowed string) error {
		return &berth.Error{Code: berth.CodeInvalid, Slug: berth.SlugInvalidSpec, Message: "parent " + detail,
			Fields: []berth.FieldError{{Field: "parent", Detail: detail, Allowed: allowed}}}
	}
	if _, known := parents[parent]; !known {
		return fault(fmt.Sprintf("%s is no tenant", parent), "a tenant that exists")
	}
	above := 0
	for at := parent; at != ""; at = parents[at] {
		if above++; at == id {
			return fault(fmt.Sprintf("%s stands below %s", parent, id), "a tenant that does not stand below it")
		}
	}
	if above+height(parents, id) > spec.MaxTenantDepth {
		return fault("would make too many levels", fmt.Sprintf("at most %d", spec.MaxTenantDepth))
	}
	return nil
}

// height returns the number of levels from the tenant down, 1 for a tenant without others
// below.
func height(parents map[berth.TenantID]berth.TenantID, id berth.TenantID) int {
	most := 0
	for below, parent := range parents {
		if parent == id {
			most = max(most, height(parents, below))
		}
	}
	return most + 1
}
