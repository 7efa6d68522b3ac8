package db_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db"
	"berth/spec"
)

// setPool sets the rules of a pool.
func (s *stage) setPool(name string, p spec.PoolRules) {
	s.t.Helper()
	if err := s.db.Pools.Set(s.t.Context(), name, p, "operator:test"); err != nil {
		s.t.Fatal(err)
	}
}

// poolOf returns the rules of a pool of tenants.
func poolOf(tenants ...berth.TenantID) spec.PoolRules { return spec.PoolRules{Tenants: tenants} }

func (s *stage) poolNames() (names []string) {
	s.t.Helper()
	list, _, err := s.db.Pools.List(s.t.Context(), db.Paging{})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, p := range list {
		names = append(names, p.Name)
	}
	return names
}

func TestEveryMachineIsInAPoolWithARow(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mustExec(t, s.pool, `UPDATE machines SET pool = 'a' WHERE id = 'm1'`)
	mustExec(t, s.pool, `UPDATE machines SET pool = '' WHERE id = 'm2'`)
	if _, err := s.db.JoinTokens.Create(t.Context(), spec.NewJoinToken{Pool: "b"}, "operator:test"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a", "b", "default"}, s.poolNames()); diff != "" {
		t.Error(diff)
	}
	p, err := s.db.Pools.Get(t.Context(), "default")
	if err != nil || p.Machines != 2 || p.Tenants != nil {
		t.Errorf("pool default is %+v, %v", p, err)
	}
	page, next, err := s.db.Pools.List(t.Context(), db.Paging{Limit: 2})
	if err != nil || len(page) != 2 || next == "" {
		t.Fatalf("first page %+v, %q, %v", page, next, err)
	}
	if page, next, err = s.db.Pools.List(t.Context(), db.Paging{Limit: 2, Cursor: next}); err != nil || len(page) != 1 || next != "" {
		t.Errorf("second page %+v, %q, %v", page, next, err)
	}
}

func TestRulesOfAPoolAreReplaced(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.newTenant("lab", "")
	s.setPool("gpu", spec.PoolRules{Tenants: []berth.TenantID{"lab"}, Description: "new"})
	if rules, err := s.db.Pools.Rules(t.Context()); err != nil || len(rules) != 1 || rules[0].Pool != "gpu" ||
		cmp.Diff([]berth.TenantID{"lab"}, rules[0].Tenants) != "" {
		t.Errorf("rules %+v, %v", rules, err)
	}
	set := func(p spec.PoolRules) error { return s.db.Pools.Set(t.Context(), "gpu", p, "operator:test") }
	unknown := set(poolOf("lab", "nobody"))
	if f := berth.CodeOf(unknown); f != berth.CodeInvalid || !strings.Contains(unknown.Error(), "nobody") {
		t.Errorf("an unknown tenant: %v", unknown)
	}
	if err := set(spec.PoolRules{Version: 7}); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("another version: %v", err)
	}
	if err := s.db.Tenants.Delete(t.Context(), "lab"); berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), "pool") {
		t.Errorf("a tenant that a rule names was deleted: %v", err)
	}
	if err := set(spec.PoolRules{Version: 1}); err != nil {
		t.Error(err)
	}
	p, err := s.db.Pools.Get(t.Context(), "gpu")
	if err != nil || p.Tenants != nil || p.Description != "" || p.Version != 2 {
		t.Errorf("after a change without rules: %+v, %v", p, err)
	}
	if err := s.db.Pools.Set(t.Context(), "none", spec.PoolRules{Version: 1}, "operator:test"); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("a version of a pool that does not exist: %v", err)
	}
}

func TestAPoolInUseIsNotDeleted(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	remove := func(name, why string) {
		t.Helper()
		if err := s.db.Pools.Delete(t.Context(), name); berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), why) {
			t.Errorf("deleted with %v, want a conflict: %s", err, why)
		}
	}
	remove("default", "machines that name no pool")
	if err := s.db.Pools.Delete(t.Context(), "none"); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("an unknown pool: %v", err)
	}
	mustExec(t, s.pool, `UPDATE machines SET pool = 'a' WHERE id = 'm1'`)
	remove("a", "1 machine")
	mustExec(t, s.pool, `UPDATE machines SET state = 'retired' WHERE id = 'm1'`)
	token, err := s.db.JoinTokens.Create(t.Context(), spec.NewJoinToken{Pool: "a"}, "operator:test")
	if err != nil {
		t.Fatal(err)
	}
	remove("a", "1 unused join token")
	if err := s.db.JoinTokens.Revoke(t.Context(), token.ID); err != nil {
		t.Fatal(err)
	}
	other := s.submit(func(j *spec.Job) { j.Placement.Constraint = `machine.id != "a"` })
	named := s.submit(func(j *spec.Job) { j.Placement.Constraint = `machine.pool in ['a', "b"]` })
	remove("a", "1 live job")
	s.cancel(named)
	if err := s.db.Pools.Delete(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	s.cancel(other)
	// A retired machine that comes back gets the pool of its join token, which exists again.
	s.joins("m1", "a")
	if diff := cmp.Diff([]string{"a", "default"}, s.poolNames()); diff != "" {
		t.Error(diff)
	}
}

// committing runs f while the transaction of a statement is open, and commits it after.
func (s *stage) committing(sql string, f func()) {
	s.t.Helper()
	err := pgx.BeginFunc(s.t.Context(), s.beside(), func(tx pgx.Tx) error {
		_, err := tx.Exec(s.t.Context(), sql)
		f()
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// A machine that enters a pool while the pool is deleted keeps it, or creates it again.
func TestADeleteOfAPoolSeesTheMachineItWaitedFor(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.setPool("a", spec.PoolRules{})
	deleted := make(chan error, 1)
	s.committing(`UPDATE machines SET pool = 'a' WHERE id = 'm0'`, func() {
		go func() { deleted <- s.db.Pools.Delete(t.Context(), "a") }()
		s.blocked(1)
	})
	if err := <-deleted; berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("deleted under a machine: %v", err)
	}
	entered := make(chan error, 1)
	s.setPool("b", spec.PoolRules{})
	s.committing(`DELETE FROM pools WHERE id = 'b'`, func() {
		go func() {
			_, err := s.pool.Exec(t.Context(), `UPDATE machines SET pool = 'b' WHERE id = 'm0'`)
			entered <- err
		}()
		s.blocked(1)
	})
	if err := <-entered; err != nil {
		t.Fatal(err)
	}
	if p, err := s.db.Pools.Get(t.Context(), "b"); err != nil || p.Machines != 1 {
		t.Errorf("the pool of m0 is %+v, %v", p, err)
	}
}

// A plan may be made before a change of the rules: the commit itself keeps other tenants out.
func TestCommitKeepsTenantsOutOfPools(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	s.newTenant("lab", "")
	s.newTenant("vision", "lab")
	s.newTenant("speech", "lab")
	mustExec(t, s.pool, `UPDATE machines SET pool = 'p' WHERE id = 'm0'`)
	before := s.queuedOf("speech")
	if c := s.commit(term, s.start(before, on("m0"))); len(c.Started) != 1 {
		t.Fatalf("%+v", c)
	}
	s.setPool("p", poolOf("vision"))
	vision, lab, speech, gang := s.queuedOf("vision"), s.queuedOf("lab"), s.queuedOf("speech"), s.queuedOf("speech")
	const why = "pool p does not take jobs of this tenant"
	c := s.commit(term, s.start(gang, on("m1"), on("m0")), s.start(speech, on("m0")), s.start(vision, on("m0")))
	if len(c.Started) != 1 || c.Started[0].Job != vision || len(c.Refused) != 2 || !strings.Contains(c.Refused[1].Why, why) {
		t.Fatalf("%+v", c)
	}
	s.mustRefuse(term, s.start(lab, on("m0")), why)
	if c := s.commit(term, s.start(gang, on("m1"), on("m2"))); len(c.Started) != 1 {
		t.Errorf("a gang outside of the pool: %+v", c)
	}
	// Whichever process writes: the database refuses the allocation.
	const place = `INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli)
		SELECT job, attempt, 5, 'm0', 1, 0, 0, 0, 0 FROM allocations WHERE job = $1 AND rank = 0`
	refuses(t, s.pool, "BT012", place, gang)
	mustExec(t, s.pool, place, vision)
	// A tenant below one that the pool takes is taken as well.
	s.setPool("p", poolOf("lab"))
	if c := s.commit(term, s.start(speech, on("m0")), s.start(lab, on("m0"))); len(c.Started) != 2 {
		t.Errorf("%+v", c)
	}
	if n := one[int](s, `SELECT count(*) FROM allocations WHERE machine_id = 'm0' AND job = $1 AND state = 'reserved'`, before); n != 1 {
		t.Error("a rule of the pool has moved a job that was placed before")
	}
}

// setOneTenant gives each machine of a pool to one tenant at a time.
func (s *stage) setOneTenant(pool string) {
	s.t.Helper()
	s.setPool(pool, spec.PoolRules{OneTenant: true})
}

// placeOn inserts a further allocation of a job on m0, as a process without the rule would.
const placeOn = `INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli)
	SELECT job, attempt, 5, 'm0', 1, 0, 0, 0, 0 FROM allocations WHERE job = $1 AND rank = 0`

// A plan may be made before a change of the rules, or before another tenant's allocation: the commit itself keeps a
// machine for one tenant.
func TestCommitKeepsMachinesWhole(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	mustExec(t, s.pool, `UPDATE machines SET pool = 'p' WHERE id = 'm0'`)
	s.setOneTenant("p")
	if rules, err := s.db.Pools.Rules(t.Context()); err != nil || len(rules) != 1 || !rules[0].OneTenant || rules[0].Tenants != nil {
		t.Fatalf("rules %+v, %v", rules, err)
	}
	a1, a2, b1, b2 := s.queuedOf("a"), s.queuedOf("a"), s.queuedOf("b"), s.queuedOf("b")
	const why = "another tenant uses the machine"
	// In one batch: a gang that fails leaves no trace, the first one has the machine, and the others follow.
	c := s.commit(term, s.start(b2, on("m0"), on("m9")), s.start(a1, on("m0")), s.start(b1, on("m1"), on("m0")), s.start(a2, on("m0")))
	if len(c.Started) != 2 || c.Started[0].Job != a1 || c.Started[1].Job != a2 || len(c.Refused) != 2 || !strings.Contains(c.Refused[1].Why, why) {
		t.Fatalf("%+v", c)
	}
	s.mustRefuse(term, s.start(b1, on("m0")), why)
	if got := one[string](s, `SELECT string_agg(one_tenant::text, ' ') FROM allocations WHERE machine_id = 'm0'`); got != "true true" {
		t.Errorf("allocations are marked %s", got)
	}
	// Capacity of a lost machine may still be in use.
	mustExec(t, s.pool, `UPDATE allocations SET state = 'orphaned', orphaned_at = now() WHERE job IN ($1, $2)`, a1, a2)
	s.mustRefuse(term, s.start(b1, on("m0")), why)
	// Whichever process writes: the database refuses the allocation.
	if c := s.commit(term, s.start(b1, on("m1"))); len(c.Started) != 1 {
		t.Fatalf("%+v", c)
	}
	refuses(t, s.pool, "BT018", placeOn, b1)
	mustExec(t, s.pool, placeOn, a1)
	s.setPool("p", spec.PoolRules{})
	if c := s.commit(term, s.start(b2, on("m0"))); len(c.Started) != 1 {
		t.Errorf("without the rule: %+v", c)
	}
}

// Two processes place jobs of two tenants on one machine at once: the second sees the allocation of the first.
func TestTwoWritersNeverPutTwoTenantsOnAMachine(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	mustExec(t, s.pool, `UPDATE machines SET pool = 'p' WHERE id = 'm0'`)
	s.setOneTenant("p")
	a, b, c := s.queuedOf("a"), s.queuedOf("b"), s.queuedOf("c")
	if x := s.commit(term, s.start(a, on("m1")), s.start(b, on("m1"))); len(x.Started) != 2 {
		t.Fatalf("%+v", x)
	}
	start := s.start(c, on("m0"))
	first := strings.ReplaceAll(placeOn, "$1", "'"+string(a)+"'")
	placed, committed := make(chan error, 1), make(chan db.Committed, 1)
	s.committing(first, func() {
		go func() {
			_, err := s.pool.Exec(t.Context(), placeOn, b)
			placed <- err
		}()
		s.blocked(1)
		go func() {
			x, err := s.db.Queue.CommitStarts(t.Context(), term, []berth.Start{start})
			if err != nil {
				t.Error(err)
			}
			committed <- x
		}()
		s.blocked(2)
	})
	if err := <-placed; err == nil || !strings.Contains(err.Error(), "BT018") {
		t.Errorf("a second tenant was placed: %v", err)
	}
	if x := <-committed; len(x.Refused) != 1 || !strings.Contains(x.Refused[0].Why, "another tenant uses the machine") {
		t.Errorf("a third tenant: %+v", x)
	}
}

// An agent chooses among the pools without rules only.
func TestAnAgentCannotEnterOrLeaveAPoolWithRules(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.newTenant("lab", "")
	s.setPool("closed", poolOf("lab"))
	s.joins("m8", "")
	a := &agent{stage: s, machine: "m8", host: "h", boot: "a"}
	register := func(pool string) error {
		req := a.request()
		req.Inventory.Pool = pool
		_, _, err := s.db.Agents.Register(t.Context(), a.machine, req)
		return err
	}
	in := func(want string) {
		t.Helper()
		if got := one[string](s, `SELECT pool FROM machines WHERE id = $1`, string(a.machine)); got != want {
			t.Errorf("the machine is in pool %q, want %q", got, want)
		}
	}
	if err := register("closed"); berth.CodeOf(err) != berth.CodeForbidden || !strings.Contains(err.Error(), "--pool closed") {
		t.Errorf("entered at the first registration: %v", err)
	}
	// A machine that names no pool enters default, which may have rules too.
	s.setPool("default", poolOf("lab"))
	if err := register(""); berth.CodeOf(err) != berth.CodeForbidden || !strings.Contains(err.Error(), "--pool default") {
		t.Errorf("entered the default pool at the first registration: %v", err)
	}
	s.setPool("default", spec.PoolRules{})
	for _, x := range []struct{ names, in string }{{"open", "open"}, {"closed", "open"}, {"", "default"}, {"open", "open"}} {
		if err := register(x.names); err != nil {
			t.Fatal(err)
		}
		in(x.in)
	}
	s.setPool("open", poolOf("lab"))
	if err := register("other"); err != nil {
		t.Fatal(err)
	}
	in("open")
	// A new join decides again, also that of a token without a pool.
	mustExec(t, s.pool, `UPDATE machines SET state = 'retired' WHERE id = 'm8'`)
	s.joins("m8", "closed")
	a.host = "h2"
	if err := register("other"); err != nil {
		t.Fatal(err)
	}
	in("closed")
	mustExec(t, s.pool, `UPDATE machines SET state = 'retired' WHERE id = 'm8'`)
	s.joins("m8", "")
	in("default")
}
