package db_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// countsAgree compares the counters with the sums of the rows, and returns the sums.
func (s *stage) countsAgree(when string) []db.StoredAmount {
	s.t.Helper()
	counted, err := s.db.Storage.Amounts(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	counted = slices.DeleteFunc(counted, func(a db.StoredAmount) bool { return a.Amount == 0 })
	rows := []db.StoredAmount{}
	list, err := s.pool.Query(s.t.Context(), `SELECT tenant, kind, amount FROM stored_rows WHERE amount <> 0 ORDER BY tenant, kind`)
	if err != nil {
		s.t.Fatal(err)
	}
	defer list.Close()
	for list.Next() {
		var a db.StoredAmount
		if err := list.Scan(&a.Tenant, &a.Kind, &a.Amount); err != nil {
			s.t.Fatal(err)
		}
		rows = append(rows, a)
	}
	if diff := cmp.Diff(rows, counted); diff != "" {
		s.t.Fatalf("%s: rows (-) and counters (+) differ:\n%s", when, diff)
	}
	return rows
}

// address returns an address that encodes n.
func address(n int) berth.Address { return berth.Address(fmt.Sprintf("sha256:%064x", n)) }

// uploads stores an upload of the given size in bytes.
func (s *stage) uploads(tenant berth.TenantID, n int, bytes int64) error {
	s.t.Helper()
	limits, err := s.limits(tenant)
	if err != nil {
		return err
	}
	folder, err := s.db.Uploads.Begin(s.t.Context(), tenant, address(n))
	if err != nil {
		return err
	}
	_, _, err = s.db.Uploads.End(s.t.Context(), tenant, wire.Upload{Address: address(n), Files: 1, Bytes: 3 * bytes, Stored: bytes}, folder, limits...)
	return err
}

// limits reads the limits that bind a tenant, as the API caches them.
func (s *stage) limits(tenant berth.TenantID) (list []db.StorageLimit, err error) {
	rows, err := s.db.Tenants.Rows(s.t.Context())
	byID := map[berth.TenantID]db.TenantRow{}
	for _, r := range rows {
		byID[r.ID] = r
	}
	for at, ok := byID[tenant]; ok; at, ok = byID[at.Parent] {
		list = append(list, db.LimitsOf(at.Quota)...)
	}
	return list, err
}

func (s *stage) storageQuota(tenant berth.TenantID, l spec.StorageLimits) {
	s.t.Helper()
	if err := s.db.Tenants.SetQuota(s.t.Context(), spec.Quota{Tenant: tenant, Storage: &l}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) secret(tenant berth.TenantID, name string) error {
	s.t.Helper()
	limits, err := s.limits(tenant)
	if err != nil {
		return err
	}
	_, _, err = s.db.Secrets.Set(s.t.Context(), db.SealedSecret{Tenant: tenant, Name: name, Key: "k", Sealed: []byte("x")}, limits...)
	return err
}

// roomy gives the machine capacity for a dozen jobs.
func (s *stage) roomy() {
	s.t.Helper()
	mustExec(s.t, s.pool, `UPDATE machines SET cpu_m = 1000000, mem_mb = 1000000, gpu_milli = 1000000`)
	mustExec(s.t, s.pool, `INSERT INTO gpu_devices (machine_id, idx, uuid, model, mem_mb)
		SELECT 'm0', 100 + i, 'more-' || i, 'H100', 81920 FROM generate_series(1, 12) i`)
}

// storer is a running member that stores checkpoints, outputs and its log.
type storer struct {
	*stage
	a       *agent
	id      berth.JobID
	attempt int
}

func (s *stage) storer(a *agent) *storer {
	s.t.Helper()
	id := s.submit(func(j *spec.Job) {
		j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint", Keep: 2}
		for i := range 8 {
			j.Outputs = append(j.Outputs, spec.Output{Name: fmt.Sprintf("o%d", i), Path: fmt.Sprintf("/out/%d", i)})
		}
		*j = j.WithDefaults()
	})
	x := &storer{stage: s, a: a, id: id, attempt: s.place(id, "m0")}
	a.mustClaim(id, x.attempt)
	return x
}

func (x *storer) checkpoint(step, bytes int64) ([]db.PrunedShard, error) {
	return x.db.Objects.RegisterCheckpoint(x.t.Context(), x.a.machine, wire.CheckpointReport{
		AgentBoot: x.a.boot, Epoch: x.a.epoch, Alloc: x.alloc(x.id, x.attempt), Job: x.id, Attempt: x.attempt, OfAttempt: x.attempt,
		Step: step, Manifest: manifestKey(x.id, x.attempt, 0, step), SHA256: "x", Bytes: bytes,
	})
}

func (x *storer) output(name string, bytes int64) error {
	return x.db.Objects.RegisterOutput(x.t.Context(), x.a.machine, wire.OutputReport{
		AgentBoot: x.a.boot, Epoch: x.a.epoch, Alloc: x.alloc(x.id, x.attempt), Job: x.id, Attempt: x.attempt,
		Output: wire.StoredOutput{Name: name, Address: address(1), Files: 1, Bytes: bytes, Stored: bytes, SHA256: "x"},
	})
}

func (x *storer) log(bytes int) error {
	alloc := x.alloc(x.id, x.attempt)
	place, err := x.db.Logs.Place(x.t.Context(), x.a.machine, db.Session{AgentBoot: x.a.boot, Epoch: x.a.epoch}, alloc)
	if err != nil {
		return err
	}
	limits, err := x.limits(place.Tenant)
	if err != nil {
		return err
	}
	chunk := db.LogChunk{Offset: place.End, Bytes: bytes, Lines: 1}
	if _, err := x.db.Storage.Room(x.t.Context(), limits, db.StoredLogs, int64(bytes), int64(bytes)); err != nil {
		if _, cut := x.db.Logs.Cut(x.t.Context(), alloc, place, db.LogChunk{Offset: place.End, Bytes: 1, Lines: 1}, err); cut != nil {
			return cut
		}
		return err
	}
	_, err = x.db.Logs.Append(x.t.Context(), alloc, place, chunk)
	return err
}

// fails ends the job.
func (x *storer) fails() {
	x.t.Helper()
	x.run(x.id)
	x.exit(x.id, x.attempt, 0, exited(1))
	x.settle(x.id, x.attempt)
}

// TestStorageCountersAreTheSumOfRows checks that counters and rows agree after any order of stores, deletes,
// prunes, archive passes and folds.
func TestStorageCountersAreTheSumOfRows(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	s.roomy()
	s.newTenant("lab", "")
	s.newTenant("vision", "lab")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	tenants := []berth.TenantID{"default", "lab", "vision"}
	var live []*storer
	var step int64
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	acts := []func(){
		func() { check(s.uploads(tenants[random.IntN(3)], random.IntN(20), 1+random.Int64N(1000))) },
		func() { check(s.secret(tenants[random.IntN(3)], fmt.Sprintf("S%d", random.IntN(9)))) },
		func() {
			_ = s.db.Secrets.Delete(t.Context(), tenants[random.IntN(3)], fmt.Sprintf("S%d", random.IntN(9)))
		},
		func() {
			mustExec(t, s.pool, `UPDATE uploads SET used_at = now() - interval '2 days' WHERE random() < 0.3`)
			_, err := s.db.Uploads.Doom(t.Context(), s.term(), 24*time.Hour, 3)
			check(err)
		},
		func() {
			if len(live) < 5 {
				live = append(live, s.storer(a))
			}
		},
		func() {
			if len(live) > 0 {
				step++
				_, err := live[random.IntN(len(live))].checkpoint(step, 1+random.Int64N(1000))
				check(err)
			}
		},
		func() {
			if len(live) > 0 {
				check(live[random.IntN(len(live))].output(fmt.Sprintf("o%d", random.IntN(8)), 1+random.Int64N(1000)))
			}
		},
		func() {
			if len(live) > 0 {
				check(live[random.IntN(len(live))].log(1 + random.IntN(1000)))
			}
		},
		func() { // a cached step shares an object
			mustExec(t, s.pool, `INSERT INTO outputs (job, attempt, rank, name, address, files, bytes, stored_bytes, sha256, object)
				SELECT j.id, 0, 0, o.name, o.address, o.files, o.bytes, o.stored_bytes, o.sha256, o.object
				FROM outputs o, jobs j WHERE o.attempt > 0 LIMIT 2 ON CONFLICT DO NOTHING`)
		},
		func() {
			if len(live) > 0 && random.IntN(3) == 0 {
				i := random.IntN(len(live))
				live[i].fails()
				live = slices.Delete(live, i, i+1)
				s.archiveAll()
			}
		},
		func() {
			mustExec(t, s.pool, `UPDATE archived_jobs SET finished_at = now() - interval '3 hours' WHERE random() < 0.5`)
			_, err := s.db.Objects.PruneOutputs(t.Context(), s.term(), 2*time.Hour, 2)
			check(err)
		},
		func() {
			_, err := s.db.Logs.Prune(t.Context(), s.term(), 2*time.Hour, 2)
			check(err)
		},
		func() {
			_, err := s.db.Storage.Fold(t.Context(), s.term(), 1+random.IntN(10))
			check(err)
		},
	}
	for i := range 300 {
		n := random.IntN(len(acts))
		acts[n]()
		if i%10 == 0 {
			s.countsAgree(fmt.Sprintf("after %d acts, the last %d", i+1, n))
		}
	}
	seen := map[string]bool{}
	for _, r := range s.countsAgree("at the end") {
		seen[r.Kind] = true
	}
	t.Logf("stored at the end: %v", seen)
	if n := one[int](s, `SELECT count(*)::int FROM tenant_storage`); n == 0 {
		t.Error("nothing was folded")
	}
}

// TestEachKindHasItsLimit checks that each kind of data is refused beyond its limit, with an error that names
// tenant, use and limit, and is accepted again after a deletion.
func TestEachKindHasItsLimit(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	mib := new(spec.MiB(1))
	s.storageQuota("default", spec.StorageLimits{Uploads: mib, Logs: mib, Outputs: mib, Checkpoints: new(spec.MiB(2)), Secrets: new(1)})
	refused := func(what string, err error, slug string) {
		t.Helper()
		if !berth.IsSlug(err, slug) {
			t.Errorf("%s: %v, want %s", what, err, slug)
		}
	}
	accepted := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	const half = 1 << 19
	accepted("an upload", s.uploads("default", 1, half))
	refused("an upload too many", s.uploads("default", 2, half+1), berth.SlugStorageQuota)
	accepted("the first again", s.uploads("default", 1, half))
	mustExec(t, s.pool, `UPDATE uploads SET used_at = now() - interval '2 days'`)
	if n, err := s.db.Uploads.Doom(t.Context(), s.term(), 24*time.Hour, 10); n != 1 || err != nil {
		t.Fatalf("doomed %d uploads, %v", n, err)
	}
	accepted("an upload after another is gone", s.uploads("default", 2, half+1))

	accepted("a secret", s.secret("default", "A"))
	accepted("another value", s.secret("default", "A"))
	err := s.secret("default", "B")
	refused("a secret too many", err, berth.SlugQuota)
	if berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("code %s", berth.CodeOf(err))
	}
	accepted("delete", s.db.Secrets.Delete(t.Context(), "default", "A"))
	accepted("a secret after another is gone", s.secret("default", "B"))

	x := s.storer(a)
	accepted("an output", x.output("o1", half))
	refused("an output too many", x.output("o2", half+1), berth.SlugStorageQuota)
	accepted("the first again", x.output("o1", half))
	accepted("a piece of a log", x.log(half))
	refused("a piece too many", x.log(half+1), berth.SlugStorageQuota)
	if p, err := s.db.Logs.Place(t.Context(), a.machine, db.Session{AgentBoot: a.boot, Epoch: a.epoch}, x.alloc(x.id, x.attempt)); err != nil || !p.Cut {
		t.Errorf("the log is at %+v, %v", p, err)
	}
	for step := range int64(2) {
		_, err := x.checkpoint(step, half)
		accepted("a checkpoint", err)
	}
	for step := int64(2); step < 4; step++ {
		shards, err := x.checkpoint(step, 2<<20)
		refused("a checkpoint too many", err, berth.SlugStorageQuota)
		if len(shards) != 1 || shards[0].Step != step {
			t.Errorf("to delete: %v", shards)
		}
		if shards, err := x.checkpoint(step, half); err != nil || len(shards) != 1 {
			t.Errorf("a step that was refused: %v, %v", shards, err)
		}
	}
	if n := one[int](s, `SELECT count(*)::int FROM job_events WHERE kind = 'checkpoint_refused'`); n != 1 {
		t.Errorf("%d events of refused checkpoints", n)
	}
	if n := one[int](s, `SELECT count(*)::int FROM checkpoints WHERE state = 'verified'`); n != 2 {
		t.Errorf("%d checkpoints are left", n)
	}
	_, err = x.checkpoint(9, half)
	accepted("a checkpoint that fits", err)
	s.countsAgree("with refusals")

	x.fails()
	y := s.storer(a)
	refused("an output while the first is there", y.output("o2", half+1), berth.SlugStorageQuota)
	s.archiveAll()
	mustExec(t, s.pool, `UPDATE archived_jobs SET finished_at = now() - interval '3 hours'`)
	if n, err := s.db.Objects.PruneOutputs(t.Context(), s.term(), 2*time.Hour, 10); n != 1 || err != nil {
		t.Fatalf("pruned %d outputs, %v", n, err)
	}
	if n, err := s.db.Logs.Prune(t.Context(), s.term(), 2*time.Hour, 10); n != 1 || err != nil {
		t.Fatalf("pruned %d logs, %v", n, err)
	}
	accepted("an output after the first is gone", y.output("o2", half+1))
	accepted("a log after the first is gone", y.log(half+1))
	_, err = y.checkpoint(1, 2<<20)
	accepted("a checkpoint after the others are gone", err)
	if n := one[int](s, `SELECT count(*)::int FROM doomed_objects WHERE prefix LIKE '%/o2.tar.zst'`); n != 1 {
		t.Errorf("%d refused outputs are to be deleted: that of the first job, and not what fits now", n)
	}
	s.countsAgree("at the end")
}

// TestStorageLimitsBindTheTenantsBelow checks that data of child tenants counts for their parents, and that
// data of all kinds counts for the total.
func TestStorageLimitsBindTheTenantsBelow(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.newTenant("lab", "")
	s.newTenant("vision", "lab")
	s.newTenant("speech", "lab")
	s.newTenant("other", "")
	s.storageQuota("lab", spec.StorageLimits{Total: new(spec.MiB(1)), Secrets: new(2)})
	s.storageQuota("vision", spec.StorageLimits{Uploads: new(spec.MiB(8))})
	if err := s.uploads("vision", 1, 600<<10); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.Storage.Fold(t.Context(), s.term(), 100); err != nil {
		t.Fatal(err)
	}
	err := s.uploads("speech", 2, 600<<10)
	if !berth.IsSlug(err, berth.SlugStorageQuota) {
		t.Fatalf("the second child: %v", err)
	}
	if want := "no room for 600.0 KiB more: tenant lab stores 600.0 KiB of data in total, and its quota is 1.0 MiB (storage.total of its quota)"; err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
	if err := s.uploads("other", 2, 600<<10); err != nil {
		t.Errorf("a tenant beside: %v", err)
	}
	for i, want := range []string{"", "", berth.SlugQuota} {
		err := s.secret([]berth.TenantID{"vision", "speech", "lab"}[i], "A")
		if want == "" && err != nil || want != "" && !berth.IsSlug(err, want) {
			t.Errorf("secret %d: %v", i, err)
		}
	}
	got := s.tenant("lab").Quota
	if got.Stored == nil || got.Stored.Uploads != 600<<10 || got.Stored.Total != 600<<10 || got.Stored.Secrets != 2 || *got.Storage.Total != 1 {
		t.Errorf("quota of lab is %+v, stored %+v", got.Storage, got.Stored)
	}
}

// TestManyAtOnceStayWithinTheLimit checks that concurrent uploads, secrets, outputs and checkpoints never
// exceed a limit.
func TestManyAtOnceStayWithinTheLimit(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	s.roomy()
	s.newTenant("lab", "")
	s.newTenant("vision", "lab")
	s.newTenant("speech", "lab")
	limits := spec.StorageLimits{Total: new(spec.MiB(1)), Secrets: new(3)}
	s.storageQuota("lab", limits)
	s.storageQuota("default", limits)
	var storers []*storer
	for range 4 {
		storers = append(storers, s.storer(a))
	}
	var all sync.WaitGroup
	for i := range 12 {
		tenant := []berth.TenantID{"vision", "speech", "default"}[i%3]
		all.Go(func() { _ = s.uploads(tenant, 100+i, 300<<10) })
		all.Go(func() { _ = s.secret(tenant, fmt.Sprintf("S%d", i)) })
		all.Go(func() { _, _ = storers[i%4].checkpoint(int64(i), 200<<10) })
		all.Go(func() { _ = storers[i%4].output(fmt.Sprintf("o%d", i%8), 200<<10) })
	}
	all.Wait()
	s.countsAgree("after all")
	for _, tenant := range []berth.TenantID{"lab", "default"} {
		stored := s.tenant(tenant).Quota.Stored
		if stored.Total > 1<<20 || stored.Total < 600<<10 || stored.Secrets != 3 {
			t.Errorf("tenant %s stores %+v", tenant, *stored)
		}
	}
}

// TestWithoutALimitNothingIsLookedUp checks that a write without a limit does not read the counters: it does
// not wait while they are locked.
func TestWithoutALimitNothingIsLookedUp(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	s.newTenant("lab", "")
	s.storageQuota("lab", spec.StorageLimits{Total: new(spec.MiB(1)), Secrets: new(9)})
	x := s.storer(a)
	tx, err := s.beside().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `LOCK TABLE tenant_storage IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func() error{
		"upload":     func() error { return s.uploads("default", 1, 1) },
		"secret":     func() error { return s.secret("default", "A") },
		"output":     func() error { return x.output("o1", 1) },
		"checkpoint": func() error { _, err := x.checkpoint(1, 1); return err },
		"log":        func() error { return x.log(1) },
	} {
		if err := do(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	waits := make(chan error, 1)
	go func() { waits <- s.uploads("lab", 1, 1) }()
	s.blocked(1) // a tenant with a limit waits
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-waits; err != nil {
		t.Error(err)
	}
}

// TestAnOutputThatIsAcceptedMeanwhileKeepsItsObject checks that an output keeps its object when a report of
// it is refused, a repeat is accepted because there is room by then, and only then the first call marks the
// object for deletion.
func TestAnOutputThatIsAcceptedMeanwhileKeepsItsObject(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	s.storageQuota("default", spec.StorageLimits{Outputs: new(spec.MiB(1))})
	x := s.storer(a)
	object := func(name string) string { return berth.OutputKey("default", x.id, x.attempt, 0, name) }
	doomed := func(name string) bool {
		return one[bool](s, `SELECT EXISTS (SELECT 1 FROM doomed_objects WHERE prefix = $1)`, object(name))
	}
	doom := func(name string) {
		t.Helper()
		if err := s.db.Objects.DoomOutput(t.Context(), x.id, object(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.output("o1", 1<<20); err != nil {
		t.Fatal(err)
	}
	doom("o1")
	if doomed("o1") {
		t.Error("the object of a registered output is to be deleted")
	}
	if err := x.output("o2", 1); !berth.IsSlug(err, berth.SlugStorageQuota) || !doomed("o2") {
		t.Errorf("an output that was refused: %v, to be deleted: %v", err, doomed("o2"))
	}

	// The first call waits until the repeat's transaction ends.
	s.storageQuota("default", spec.StorageLimits{Outputs: new(spec.MiB(2))})
	mustExec(t, s.pool, `DELETE FROM doomed_objects`)
	done := make(chan error, 2)
	s.holding(accessExclusive("outputs"), func() {
		go func() { done <- x.output("o2", 1) }()
		s.blocked(1)
		go func() { done <- s.db.Objects.DoomOutput(t.Context(), x.id, object("o2")) }()
		s.blocked(2)
	})
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if doomed("o2") {
		t.Error("the object of an output that was accepted meanwhile is to be deleted")
	}
}

// TestAVerifiedStepIsNotReportedAsRefused checks that a repeated shard of a verified step does not count as a
// refused checkpoint.
func TestAVerifiedStepIsNotReportedAsRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	x := s.storer(a)
	if _, err := x.checkpoint(7, 10); err != nil {
		t.Fatal(err)
	}
	shards, err := s.db.Objects.RefuseCheckpoint(t.Context(), a.machine, wire.CheckpointReport{
		AgentBoot: a.boot, Epoch: a.epoch, Job: x.id, Attempt: x.attempt, OfAttempt: x.attempt, Step: 7,
	}, errors.New("too much"))
	if err != nil || len(shards) > 0 {
		t.Errorf("to delete: %v, %v", shards, err)
	}
	if n := one[int](s, `SELECT count(*)::int FROM job_events WHERE kind = 'checkpoint_refused'`); n != 0 {
		t.Errorf("%d events of refused checkpoints", n)
	}
}
