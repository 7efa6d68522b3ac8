package db_test

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/spec"
	"berth/wire"
)

func (s *stage) users(tenant berth.TenantID) spec.UserRange {
	s.t.Helper()
	r, err := s.db.Tenants.Users(s.t.Context(), tenant)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func TestTenantsHaveUsersOfTheirOwn(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const tenants, callers = 5, 4
	for i := range tenants {
		s.newTenant(berth.TenantID(fmt.Sprintf("t%d", i)), "")
	}
	var got [tenants][callers]spec.UserRange
	var all sync.WaitGroup
	for i := range tenants {
		for k := range callers {
			all.Go(func() {
				var err error
				got[i][k], err = s.db.Tenants.Users(t.Context(), berth.TenantID(fmt.Sprintf("t%d", i)))
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	seen := map[spec.UserRange]bool{}
	for _, calls := range got {
		for _, r := range calls {
			if r != calls[0] || r.Last-r.First != 999 || r.First < 2_010_000_000 || r.Last >= 2_110_000_000 {
				t.Errorf("one tenant has %v", calls)
			}
		}
		if seen[calls[0]] {
			t.Errorf("two tenants have %v", calls[0])
		}
		seen[calls[0]] = true
	}
	if row := s.tenant("t0"); row.Users != got[0][0] {
		t.Errorf("the list of tenants has %v, want %v", row.Users, got[0][0])
	}
	if row := s.tenant("default"); !row.Users.IsZero() {
		t.Errorf("a tenant without jobs has %v", row.Users)
	}
	if _, err := s.db.Tenants.Users(t.Context(), "nobody"); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("a tenant that does not exist: %v", err)
	}
}

// Neither a deleted tenant nor a lost row gives its users to another tenant.
func TestUsersAreNeverGivenAgain(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.newTenant("old", "")
	old := s.users("old")
	if err := s.db.Tenants.Delete(t.Context(), "old"); err != nil {
		t.Fatal(err)
	}
	s.newTenant("old", "") // another tenant of the same name
	again := s.users("old")
	if again.First <= old.Last {
		t.Errorf("a new tenant has %v, the deleted one had %v", again, old)
	}
	id := one[string](s, `SELECT id FROM cluster`)
	proof := db.Outside{StoredWatermark: wire.StoredWatermark{Cluster: id, Watermark: wire.Watermark{Number: 1 << 40,
		Branch: "lost"}}}
	if done, err := s.db.Leader.Leap(t.Context(), proof); err != nil || !done {
		t.Fatal(done, err)
	}
	s.newTenant("new", "")
	if r := s.users("new"); r.First < again.Last+100*1000 {
		t.Errorf("after a restore a new tenant has %v; the lost rows may have given it after %v", r, again)
	}
	for _, sql := range []string{
		`DELETE FROM tenant_uids`, `UPDATE tenant_uids SET tenant = 'new' WHERE tenant IS NULL`,
		`UPDATE tenant_uids SET uids = '[5000,5001)' WHERE tenant = 'new'`,
	} {
		refuses(t, s.pool, "23001", sql)
	}
	refuses(t, s.pool, "23P01", `INSERT INTO tenant_uids (uids) VALUES (int8range($1, $2))`, old.Last, old.Last+1)
}

// A range that is taken during the deletion of its tenant loses its owner, too.
func TestADeletedTenantOwnsNoUsers(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for i := range 20 {
		id := berth.TenantID(fmt.Sprintf("t%d", i))
		s.newTenant(id, "")
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := s.db.Tenants.Users(t.Context(), id); err != nil && berth.CodeOf(err) != berth.CodeNotFound {
				t.Error(err)
			}
		})
		all.Go(func() {
			if err := s.db.Tenants.Delete(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
	}
	if n := one[int](s, `SELECT count(*)::int FROM tenant_uids x WHERE tenant IS NOT NULL AND NOT EXISTS (SELECT FROM tenants WHERE id = x.tenant)`); n > 0 {
		t.Errorf("%d ranges have an owner that does not exist", n)
	}
}

func TestThePoolOfUsersIsTheOperators(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	first := s.users("default")
	set := func(text string) bool {
		t.Helper()
		p, err := spec.ParseUserPool(text)
		if err != nil {
			t.Fatal(err)
		}
		changed, err := s.db.Cluster.SetUserPool(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if now, err := s.db.Cluster.UserPool(t.Context()); err != nil || now != p {
			t.Errorf("the pool is %v, %v; want %v", now, err, p)
		}
		return changed
	}
	if !set("60000-60019/10") || set("60000-60019/10") {
		t.Error("only the first call changes the pool")
	}
	s.newTenant("a", "")
	s.newTenant("b", "")
	s.newTenant("c", "")
	if a, b := s.users("a"), s.users("b"); a != (spec.UserRange{First: 60000, Last: 60009}) || b.First != 60010 ||
		s.users("default") != first {
		t.Errorf("ranges are %v and %v, and default has %v", a, b, s.users("default"))
	}
	_, err := s.db.Tenants.Users(t.Context(), "c")
	if berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), "--container-uids") {
		t.Errorf("an empty pool: %v", err)
	}
	// A pool that overlaps ranges of tenants begins after them.
	set("60005-70000/100")
	if c := s.users("c"); c != (spec.UserRange{First: 60020, Last: 60119}) {
		t.Errorf("the range is %v", c)
	}
}

// An upgrade changes the user of no container; a new database has the safer default.
func TestOnlyNewDatabasesRunContainersAsTenants(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ before, want string }{
		"new":     {"", spec.UserTenant},
		"used":    {`INSERT INTO tokens (id, tenant, name, role, sha256) VALUES ('t', 'default', 'admin', 'admin', 'x')`, spec.UserImage},
		"machine": {`INSERT INTO machines (id, pool, state, cpu_m, mem_mb) VALUES ('m1', 'default', 'ready', 4000, 8192)`, spec.UserImage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := dbtest.EmptyURL(t)
			files := migrationFiles(t)
			maps.DeleteFunc(files, func(name string, _ *fstest.MapFile) bool { return name >= "0074" })
			if err := db.MigrateWith(t.Context(), url, files, time.Minute); err != nil {
				t.Fatal(err)
			}
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			_, err = conn.Exec(t.Context(), c.before)
			if err := conn.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := db.Migrate(t.Context(), url); err != nil {
				t.Fatal(err)
			}
			d := dbtest.Open(t, url, db.Options{})
			if user, err := d.Cluster.ContainerUser(t.Context()); err != nil || user != c.want {
				t.Errorf("containers run as %q, want %q; %v", user, c.want, err)
			}
		})
	}
}
