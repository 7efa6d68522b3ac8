package db_test

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

func (s *stage) tenant(id berth.TenantID) db.TenantRow {
	s.t.Helper()
	list, err := s.db.Tenants.List(s.t.Context(), id)
	if err != nil || len(list) != 1 {
		s.t.Fatalf("tenant %s: %+v, %v", id, list, err)
	}
	return list[0]
}

func (s *stage) newTenant(id, parent berth.TenantID) {
	s.t.Helper()
	if err := s.db.Tenants.Create(s.t.Context(), spec.NewTenant{ID: id, Parent: parent}); err != nil {
		s.t.Fatal(err)
	}
}

func TestTenantsAreATree(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.newTenant("lab", "")
	s.newTenant("vision", "lab")
	s.newTenant("speech", "lab")
	move := func(id, parent berth.TenantID) error {
		return s.db.Tenants.Update(t.Context(), id, spec.TenantPatch{Parent: &parent})
	}
	for _, c := range []struct {
		what string
		err  error
		code berth.Code
	}{
		{"twice", s.db.Tenants.Create(t.Context(), spec.NewTenant{ID: "lab"}), berth.CodeConflict},
		{"below nobody", s.db.Tenants.Create(t.Context(), spec.NewTenant{ID: "x", Parent: "nobody"}), berth.CodeInvalid},
		{"a ring", move("lab", "vision"), berth.CodeInvalid},
		{"itself", move("lab", "lab"), berth.CodeInvalid},
		{"unknown", move("nobody", ""), berth.CodeNotFound},
		{"in use", s.db.Tenants.Delete(t.Context(), "lab"), berth.CodeConflict},
		{"the default one", s.db.Tenants.Delete(t.Context(), "default"), berth.CodeConflict},
		{"quota of nobody", s.db.Tenants.SetQuota(t.Context(), spec.Quota{Tenant: "nobody"}), berth.CodeNotFound},
	} {
		if berth.CodeOf(c.err) != c.code {
			t.Errorf("%s: %v, want %s", c.what, c.err, c.code)
		}
	}
	if err := move("speech", "vision"); err != nil {
		t.Error(err)
	}
	if got := s.tenant("speech"); got.Parent != "vision" || got.Weight != 1 {
		t.Errorf("speech is %+v", got.Tenant)
	}
	at := berth.TenantID("speech")
	for i := range spec.MaxTenantDepth - 3 {
		next := berth.TenantID(fmt.Sprintf("level-%d", i))
		s.newTenant(next, at)
		at = next
	}
	if err := s.db.Tenants.Create(t.Context(), spec.NewTenant{ID: "deep", Parent: at}); berth.CodeOf(err) != berth.CodeInvalid {
		t.Errorf("a level too many: %v", err)
	}
	for _, id := range []berth.TenantID{"vision", "speech", "level-0"} {
		if err := s.db.Tenants.Delete(t.Context(), id); berth.CodeOf(err) != berth.CodeConflict {
			t.Errorf("deleted %s with tenants below it: %v", id, err)
		}
	}
	if err := s.db.Tenants.Delete(t.Context(), at); err != nil {
		t.Error(err)
	}
}

func TestQuotasAreReplacedAsAWhole(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	gpus, memory, most := spec.MilliGPU(8000), spec.MiB(1024), 7
	q := spec.Quota{
		Tenant: "default", Guarantee: &spec.Amounts{GPUs: &gpus}, Limit: &spec.Amounts{GPUs: &gpus, Memory: &memory},
		Borrow: spec.BorrowNone, MaxRunning: &most, Budget: &spec.GPUBudget{GPUHours: 12, Period: spec.Duration(time.Hour)},
	}
	if err := s.db.Tenants.SetQuota(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	got := s.tenant("default").Quota
	if *got.Guarantee.GPUs != gpus || got.Guarantee.CPUs != nil || *got.Limit.Memory != memory || got.Borrow != spec.BorrowNone || *got.MaxRunning != 7 || got.MaxQueued != nil ||
		got.Budget.GPUHours != 12 || got.Budget.Since == nil || got.Version != 2 {
		t.Errorf("quota %+v", got)
	}
	q.Version = 1
	if err := s.db.Tenants.SetQuota(t.Context(), q); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("an old version: %v", err)
	}
	if err := s.db.Tenants.SetQuota(t.Context(), spec.Quota{Tenant: "default"}); err != nil {
		t.Fatal(err)
	}
	if got := s.tenant("default").Quota; got.Limit != nil || got.Guarantee != nil || got.Budget != nil || got.Borrow != spec.BorrowAny || got.Version != 3 {
		t.Errorf("no quota is %+v", got)
	}
}

// TestADeletedTenantLeavesNothingToTheNext checks that the delete of a tenant removes its secrets, uploads,
// cached results and notices. Archived jobs stay, so the tenant's name cannot be used again.
func TestADeletedTenantLeavesNothingToTheNext(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	address := berth.Address("sha256:" + strings.Repeat("a", 64))
	for _, id := range []berth.TenantID{"lab", "other"} {
		s.newTenant(id, "")
		if _, _, err := s.db.Secrets.Set(ctx, db.SealedSecret{Tenant: id, Name: "TOKEN", Key: "k", Sealed: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		folder, err := s.db.Uploads.Begin(ctx, id, address)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.db.Uploads.End(ctx, id, wire.Upload{Address: address}, folder); err != nil {
			t.Fatal(err)
		}
		mustExec(t, s.pool, `INSERT INTO step_results (job, tenant, key, image, attempt) VALUES (gen_random_uuid(), $1, 'key', '', 1)`, id)
		mustExec(t, s.pool, `INSERT INTO notices (job, seq, hook, tenant, url, status, body) VALUES (gen_random_uuid(), 1, 0, $1, 'https://x', 'failed', '{}')`, id)
	}
	mustExec(t, s.pool, `INSERT INTO schedules (id, tenant, name, spec, paused, revision, created_by) VALUES (gen_random_uuid(), 'other', 'x', '{}', false, 'r', 'user:test')`)
	if err := s.db.Tenants.Delete(ctx, "other"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("deleted with a schedule: %v", err)
	}
	if err := s.db.Tenants.Delete(ctx, "lab"); err != nil {
		t.Fatal(err)
	}
	s.newTenant("lab", "")
	for tenant, want := range map[berth.TenantID]int{"lab": 0, "other": 1} {
		for _, table := range []string{"secrets", "uploads", "step_results", "notices"} {
			if n := one[int](s, `SELECT count(*)::int FROM `+table+` WHERE tenant = $1`, tenant); n != want {
				t.Errorf("%s has %d %s, want %d", tenant, n, table, want)
			}
		}
	}
	if doomed, err := s.db.Objects.Doomed(ctx, 10); err != nil || len(doomed) != 1 || !strings.HasPrefix(doomed[0], berth.UploadFolder("lab", address, "")) {
		t.Errorf("doomed are %v, %v", doomed, err)
	}

	if err := s.db.Tenants.Delete(ctx, "lab"); err != nil {
		t.Fatal(err)
	}
	mustExec(t, s.pool, `INSERT INTO archived_jobs (id, tenant, name, state, labels, submitted_at, finished_at, job, events)
		SELECT gen_random_uuid(), t, 'x', 'succeeded', '{}', now(), now(), '{}', '[]' FROM unnest(ARRAY['lab', 'other']) AS t`)
	token := func(id berth.TenantID) error {
		_, err := s.db.Tokens.Create(ctx, spec.NewToken{Tenant: id, Name: "n", Role: spec.RoleUser}, "operator:test")
		return err
	}
	if err := s.db.Tenants.Create(ctx, spec.NewTenant{ID: "lab"}); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("made again beside its archived jobs: %v", err)
	}
	if err := token("lab"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("made again by a token: %v", err)
	}
	if n := one[int](s, `SELECT count(*)::int FROM tenants WHERE id = 'lab'`) + one[int](s, `SELECT count(*)::int FROM tokens WHERE tenant = 'lab'`); n != 0 {
		t.Errorf("%d rows were made all the same", n)
	}
	s.newTenant("gone", "")
	if _, _, err := s.db.Jobs.Submit(ctx, db.Submission{Tenant: "gone", Spec: s.spec(nil), Actor: "user:test"}); err != nil {
		t.Fatal(err)
	}
	mustExec(t, s.pool, `DELETE FROM tenants WHERE id = 'gone'`) // as if the delete had not seen a concurrent submit
	if err := s.db.Tenants.Create(ctx, spec.NewTenant{ID: "gone"}); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("made again beside a job: %v", err)
	}
	if err := token("gone"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("made again by a token beside a job: %v", err)
	}
	for _, id := range []berth.TenantID{"other", "new"} {
		if err := token(id); err != nil {
			t.Errorf("a token for %s: %v", id, err)
		}
	}
}

// TestADeletedTenantIsLeftNothingMeanwhile checks that a write that is concurrent with the delete of its
// tenant is either refused or removed with the tenant.
func TestADeletedTenantIsLeftNothingMeanwhile(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx := t.Context()
	address := berth.Address("sha256:" + strings.Repeat("a", 64))
	secret := func() error {
		_, _, err := s.db.Secrets.Set(ctx, db.SealedSecret{Tenant: "lab", Name: "TOKEN", Key: "k", Sealed: []byte("x")})
		return err
	}
	upload := func() func() error {
		folder, err := s.db.Uploads.Begin(ctx, "lab", address)
		if err != nil {
			t.Fatal(err)
		}
		return func() error {
			_, _, err := s.db.Uploads.End(ctx, "lab", wire.Upload{Address: address}, folder)
			return err
		}
	}
	schedule := func() error {
		_, _, err := s.db.Schedules.Create(ctx, db.NewSchedule{Tenant: "lab", Spec: nightly(nil).Spec, Actor: "user:test"})
		return err
	}
	left := func(why string, want int) {
		t.Helper()
		if n := one[int](s, `SELECT (SELECT count(*) FROM secrets) + (SELECT count(*) FROM uploads) + (SELECT count(*) FROM schedules)::int`); n != want {
			t.Errorf("%s: %d rows are left, want %d", why, n, want)
		}
	}
	done := make(chan error, 1)

	s.newTenant("lab", "")
	late := upload()
	s.holding(`SELECT 1 FROM doomed_objects FOR UPDATE`, func() {
		go func() { done <- late() }()
		s.blocked(1)
		if err := s.db.Tenants.Delete(ctx, "lab"); err != nil {
			t.Errorf("beside an upload under way: %v", err)
		}
	})
	if err := <-done; berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("an upload that was under way ends with %v", err)
	}
	for what, store := range map[string]func() error{"a secret": secret, "an upload": upload(), "a schedule": schedule} {
		if err := store(); berth.CodeOf(err) != berth.CodeNotFound || !strings.Contains(err.Error(), "tenant lab") {
			t.Errorf("%s of nobody: %v", what, err)
		}
	}
	left("the tenant went first", 0)

	s.newTenant("lab", "")
	for what, store := range map[string]func() error{"a secret": secret, "an upload": upload()} {
		// The lock of a delete that is rolled back.
		s.holding(`SELECT 1 FROM tenants WHERE id = 'lab' FOR UPDATE`, func() {
			go func() { done <- store() }()
			s.blocked(1)
		})
		if err := <-done; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	left("nothing was deleted", 2)
	if err := s.db.Tenants.Delete(ctx, "lab"); err != nil {
		t.Fatal(err)
	}

	s.newTenant("lab", "")
	if err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { // Secrets.Set and Uploads.End before their commit
		for _, sql := range []string{
			`INSERT INTO secrets (tenant, name, key_id, sealed) VALUES ('lab', 'TOKEN', 'k', 'x')`,
			`INSERT INTO uploads (tenant, address, folder, files, bytes) VALUES ('lab', '` + string(address) + `', 'folder', 1, 1)`,
			`SELECT 1 FROM tenants WHERE id = 'lab' FOR KEY SHARE`,
		} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		go func() { done <- s.db.Tenants.Delete(ctx, "lab") }()
		s.blocked(1)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("after something was stored: %v", err)
	}
	left("what was stored went first", 0)

	token := func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO tokens (id, tenant, name, role, sha256) VALUES ('late', 'lab', 'n', 'user', 'x')`)
		return err
	}
	s.newTenant("lab", "")
	if err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { // Tokens.Create before its commit
		if _, err := tx.Exec(ctx, `SELECT 1 FROM tenants WHERE id = 'lab' FOR KEY SHARE`); err != nil {
			return err
		}
		go func() { done <- s.db.Tenants.Delete(ctx, "lab") }()
		s.blocked(1)
		return token(tx)
	}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), "1 active token") {
		t.Errorf("deleted beside a token that is being made: %v", err)
	}
	mustExec(t, s.pool, `DELETE FROM tokens WHERE tenant = 'lab'`)
	s.holding(`SELECT 1 FROM tenants WHERE id = 'lab' FOR UPDATE`, func() { // the lock of a delete
		go func() {
			_, err := s.db.Tokens.Create(ctx, spec.NewToken{Tenant: "lab", Name: "n", Role: spec.RoleUser},
				"operator:test")
			done <- err
		}()
		s.blocked(1)
	})
	if err := <-done; err != nil {
		t.Errorf("a token, and the tenant stays after all: %v", err)
	}
	if n := one[int](s, `SELECT count(*)::int FROM doomed_objects WHERE prefix = 'folder'`); n != 1 {
		t.Error("the upload's folder is not given up")
	}
}

// TestADeletedTenantsUploadsAreLockedFirst checks that the delete of a tenant locks uploads before secrets,
// the order of all other writers.
func TestADeletedTenantsUploadsAreLockedFirst(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.newTenant("lab", "")
	mustExec(t, s.pool, `INSERT INTO secrets (tenant, name, key_id, sealed) VALUES ('lab', 'TOKEN', 'k', 'x')`)
	mustExec(t, s.pool, `INSERT INTO uploads (tenant, address, folder, files, bytes) SELECT 'lab', 'sha256:' || n, 'folder' || n, 1, 1 FROM unnest(ARRAY[2, 1]) AS n`)
	done := make(chan error, 1)
	s.holding(`SELECT 1 FROM uploads WHERE address = 'sha256:1' FOR UPDATE`, func() {
		go func() { done <- s.db.Tenants.Delete(t.Context(), "lab") }()
		s.blocked(1)
		for _, sql := range []string{`SELECT 1 FROM uploads WHERE address = 'sha256:2' FOR UPDATE NOWAIT`, `SELECT 1 FROM secrets FOR UPDATE NOWAIT`} {
			if _, err := s.pool.Exec(t.Context(), sql); err != nil {
				t.Errorf("taken before the first upload: %v", err)
			}
		}
	})
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := one[int](s, `SELECT (SELECT count(*) FROM secrets) + (SELECT count(*) FROM uploads)::int`); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

func TestMaxQueuedHoldsWhoeverSubmits(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	most := 5
	if err := s.db.Tenants.SetQuota(t.Context(), spec.Quota{Tenant: "default", MaxQueued: &most}); err != nil {
		t.Fatal(err)
	}
	submit := func(tenant berth.TenantID, key string) (wire.Job, bool, error) {
		return s.db.Jobs.Submit(t.Context(), db.Submission{Tenant: tenant, Spec: s.spec(nil), Actor: "user:test", IdemKey: key})
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var made []berth.JobID
	for i := range 4 * most {
		all.Go(func() {
			job, created, err := submit("default", fmt.Sprintf("key-%d", i))
			mu.Lock()
			defer mu.Unlock()
			if err == nil && created {
				made = append(made, job.ID)
			} else if !berth.IsSlug(err, berth.SlugQuota) {
				t.Errorf("created %t, %v", created, err)
			}
		})
	}
	all.Wait()
	if len(made) != most {
		t.Fatalf("%d jobs wait, allowed are %d", len(made), most)
	}
	if _, _, err := submit("other", ""); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	var key string
	if err := s.pool.QueryRow(t.Context(), `SELECT idem_key FROM jobs WHERE id = $1`, made[0]).Scan(&key); err != nil {
		t.Fatal(err)
	}
	if job, created, err := submit("default", key); err != nil || created || job.ID != made[0] {
		t.Errorf("a repeat while the quota is full: %s, created %t, %v", job.ID, created, err)
	}
	if _, err := s.db.Jobs.RequestCancel(t.Context(), "", made[0], "user:test", nil); err != nil {
		t.Fatal(err)
	}
	if _, created, err := s.db.Retries.Retry(t.Context(), "", made[0], db.RetryOptions{}, "user:test"); err != nil || !created {
		t.Errorf("a retry into the free place: %v", err)
	}
	if _, _, err := submit("default", ""); !berth.IsSlug(err, berth.SlugQuota) {
		t.Errorf("one more: %v", err)
	}
}

func TestDecayIsTheIntegral(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		begun, ended, seconds time.Duration // before at; expected
	}{
		{0, 0, 0},
		{-time.Second, 0, time.Second},
		{-time.Hour - time.Second, -time.Hour, time.Second / 2},
		{-1000 * time.Hour, -999 * time.Hour, 0},
		{-1e6 * time.Hour, 0, time.Duration(math.Round(3600 / math.Ln2 * 1e9))},
	} {
		got := one[float64](s, `SELECT decayed_seconds($1, $2, $3, '1 hour')`, at.Add(c.begun), at.Add(c.ended), at)
		if math.Abs(got-c.seconds.Seconds()) > 1e-3*max(1, c.seconds.Seconds()) {
			t.Errorf("from %s to %s before: %g, want %g", c.begun, c.ended, got, c.seconds.Seconds())
		}
	}
	if got := one[float64](s, `SELECT decayed(8, $1::timestamptz, $1::timestamptz + interval '3 hours', '1 hour')`, at); math.Abs(got-1) > 1e-9 {
		t.Errorf("8 after three half-lives is %g", got)
	}
	mustExec(t, s.pool, `SELECT decayed(8, $1, now(), '1 ms')`, at)
}

// TestLaterSettingsOfAQuotaAreStored fails for a quota setting without a column, and for one whose column
// stores another value.
func TestLaterSettingsOfAQuotaAreStored(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	q := spec.Quota{Tenant: "default"}
	for name, setting := range q.Later() {
		fill(t, name, reflect.ValueOf(setting).Elem())
	}
	if err := s.db.Tenants.SetQuota(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	got := s.tenant("default").Quota
	if diff := cmp.Diff(q.Later(), got.Later()); diff != "" {
		t.Errorf("(-set +stored):\n%s", diff)
	}
	none := spec.Quota{Tenant: "default"}
	if err := s.db.Tenants.SetQuota(t.Context(), none, db.LaterQuotaSettings...); err != nil {
		t.Fatal(err)
	}
	got = s.tenant("default").Quota
	if diff := cmp.Diff(q.Later(), got.Later()); diff != "" {
		t.Errorf("kept by a change that leaves them out (-set +stored):\n%s", diff)
	}
	if err := s.db.Tenants.SetQuota(t.Context(), none); err != nil {
		t.Fatal(err)
	}
	got = s.tenant("default").Quota
	if diff := cmp.Diff(none.Later(), got.Later()); diff != "" {
		t.Errorf("lifted (-none +stored):\n%s", diff)
	}
}

// fill sets a value, and all fields of a structure, to nonzero values.
func fill(t *testing.T, name string, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, name, v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, name+"."+v.Type().Field(i).Name, v.Field(i))
		}
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Float64:
		v.SetFloat(2.5)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("text of " + name)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Struct {
			v.Set(reflect.MakeSlice(v.Type(), 2, 2))
			for i := range v.Len() {
				fill(t, name, v.Index(i))
			}
			return
		}
		v.Set(reflect.ValueOf([]string{"ghcr.io", "docker.io/library"}))
	default:
		t.Fatalf("%s is a %s: say here which value it may have", name, v.Kind())
	}
}
