package db_test

import (
	"maps"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/db/history"
	"berth/internal/check"
	"berth/spec"
)

// The history of a database has the launches with their money, and the costs of deleted launches too.
func TestDeletedLaunchesKeepTheirCosts(t *testing.T) {
	t.Parallel()
	d, ctx := budgeted(t, 10), t.Context()
	for m, tenant := range map[berth.MachineID]berth.TenantID{"v": "vision", "h": ""} {
		if err := launchFor(ctx, d, tenant, cheap, m, ""); err != nil {
			t.Fatal(err)
		}
		run(t, d.Pool(), string(m), "90 minutes")
	}
	if _, err := d.Spend.Settle(ctx); err != nil {
		t.Fatal(err)
	}
	mustExec(t, d.Pool(), `INSERT INTO breakers (scope, key, until, reason) VALUES ('pool', 'lab/p', '-infinity', 'none yet'),
		('provider', 'lab', NULL, 'no rights')`)
	read := func() (c history.Cluster, launched []history.Launched) {
		t.Helper()
		h, err := db.OpenHistory(ctx, d.Pool().Config().ConnString())
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		if c, err = h.Cluster(ctx); err != nil {
			t.Fatal(err)
		}
		if err := h.Launches(ctx, time.Time{}, func(l history.Launched) error {
			launched = append(launched, l)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return c, launched
	}
	c, launched := read()
	if len(launched) != 2 || len(launched[1].Launches) != 1 {
		t.Fatalf("launches %+v", launched)
	}
	if l := launched[1].Launches[0]; l.Machine != "v" || l.N != 1 || l.Tenant != "vision" || l.Price != 2 || l.Settled == 0 || l.SettledTo == nil || l.Sends != 1 {
		t.Errorf("launch %+v", l)
	}
	if c.Incarnation != 1 || len(c.Limits) != 1 || c.Limits[0].Tenant != "org" || c.Limits[0].Admits != 10_000_000 || c.Limits[0].UpdatedAt.IsZero() {
		t.Errorf("incarnation %d, limits %+v", c.Incarnation, c.Limits)
	}
	if b := c.Breakers; len(b) != 2 || !b[0].Unset || b[0].Until != nil || b[1].Unset || b[1].Until != nil {
		t.Errorf("breakers %+v", b)
	}
	mustExec(t, d.Pool(), `DELETE FROM launches`)
	c, launched = read()
	if len(launched) != 0 || len(c.Spent) != 2 {
		t.Fatalf("launches %+v, costs %+v", launched, c.Spent)
	}
	for _, s := range c.Spent {
		if s.Days == 0 || s.Days != s.Launches {
			t.Errorf("tenant %q: days cost %d, launches %d", s.Tenant, s.Days, s.Launches)
		}
	}
}

// readCluster returns the records of a database that belong to no single job or machine.
func readCluster(t *testing.T, pool *pgxpool.Pool) history.Cluster {
	t.Helper()
	h, err := db.OpenHistory(t.Context(), pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	c, err := h.Cluster(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// wantSum reports the breaches of a cluster, and costs of launches that differ from those wanted.
func wantSum(t *testing.T, c history.Cluster, when string, least int64) {
	t.Helper()
	for _, b := range check.Verify(check.History{Cluster: c}, check.Options{}) {
		t.Errorf("%s: %s", when, b)
	}
	var sum int64
	for _, s := range c.Spent {
		sum += s.Launches
	}
	if sum < least {
		t.Errorf("%s: launches cost %d, want at least %d: %+v", when, sum, least, c.Spent)
	}
}

// A deleted tenant's days are added to the days of its parent. Its launches keep its name, also once they are deleted.
func TestCostsOfADeletedTenantAddUp(t *testing.T) {
	t.Parallel()
	d, ctx := budgeted(t, 100), t.Context()
	for m, tenant := range map[berth.MachineID]berth.TenantID{"v": "vision", "o": "org"} {
		if err := launchFor(ctx, d, tenant, cheap, m, ""); err != nil {
			t.Fatal(err)
		}
		run(t, d.Pool(), string(m), "1 hour")
	}
	mustExec(t, d.Pool(), `UPDATE launches SET state = 'terminating'`)
	mustExec(t, d.Pool(), `UPDATE launches SET state = 'failed', due_at = NULL`) // confirmed absent
	if err := d.Tenants.Delete(ctx, "vision"); err != nil {
		t.Fatal(err)
	}
	wantSum(t, readCluster(t, d.Pool()), "the tenant is deleted", 4_000_000)
	if err := d.Tenants.Create(ctx, spec.NewTenant{ID: "vision"}); err != nil {
		t.Fatal(err)
	}
	wantSum(t, readCluster(t, d.Pool()), "its name is used again", 4_000_000)
	mustExec(t, d.Pool(), `DELETE FROM launches`)
	wantSum(t, readCluster(t, d.Pool()), "its launches are deleted", 4_000_000)
	mustExec(t, d.Pool(), `UPDATE spend SET settled = settled - 1 WHERE tenant = 'org' AND day = (SELECT max(day) FROM spend)`)
	if b := check.Verify(check.History{Cluster: readCluster(t, d.Pool())}, check.Options{}); len(b) != 1 || b[0].Invariant != 12 {
		t.Errorf("a micro-dollar less: %v", b)
	}
}

// The table of deleted launches starts with the launches deleted before, and with the ones of deleted tenants.
func TestCostsFromBeforePrunedSpendAddUp(t *testing.T) {
	t.Parallel()
	url := dbtest.EmptyURL(t)
	files := migrationFiles(t)
	maps.DeleteFunc(files, func(name string, _ *fstest.MapFile) bool { return name >= "0063" })
	if err := db.MigrateWith(t.Context(), url, files, time.Minute); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	// Org has paid 100 for a launch that was deleted, 30 for one that it still has, and 40 for one of vision.
	mustExec(t, pool, `ALTER TABLE launches DISABLE TRIGGER USER`)
	mustExec(t, pool, `INSERT INTO tenants (id, parent) VALUES ('org', NULL), ('vision', 'org')`)
	mustExec(t, pool, `DELETE FROM tenants WHERE id = 'vision'`)
	mustExec(t, pool, `INSERT INTO launches (machine, n, pool, provider, region, type, market, incarnation, token, actor, state,
			tenant, settled, due_at)
		SELECT x.tenant, 1, 'p', 'lab', 'eu', 'x', 'spot', 1, x.tenant, 'leader', 'failed', x.tenant, x.settled, NULL
		FROM (VALUES ('org', 30), ('vision', 40)) x (tenant, settled)`)
	mustExec(t, pool, `INSERT INTO spend (tenant, day, settled) VALUES ('org', '2026-01-01', 170)`)
	mustExec(t, pool, `ALTER TABLE launches ENABLE TRIGGER USER`)
	if err := db.Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	wantSum(t, readCluster(t, pool), "after the migration", 170)
	mustExec(t, pool, `DELETE FROM launches`)
	wantSum(t, readCluster(t, pool), "without launches", 170)
}
