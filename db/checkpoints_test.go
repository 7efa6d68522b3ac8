package db_test

import (
	"strings"
	"testing"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// manifestKey is the key of the manifest of a member's part of a step, of a job of the tenant default.
func manifestKey(id berth.JobID, attempt, rank int, step int64) string {
	return berth.CheckpointKey("default", id, attempt, rank, step) + "/" + berth.ManifestName
}

func TestCheckpointsVerifyPruneAndReject(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(func(j *spec.Job) {
		j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint", Keep: 2}
		*j = j.WithDefaults()
	})
	attempt := s.place(id, "m0")
	a.mustClaim(id, attempt)
	mustExec(t, s.pool, `UPDATE jobs SET losses = 7 WHERE id = $1`, id)
	save := func(step int64, edit func(*wire.CheckpointReport)) ([]db.PrunedShard, error) {
		p := wire.CheckpointReport{AgentBoot: a.boot, Epoch: a.epoch, Alloc: s.alloc(id, attempt), Job: id, Attempt: attempt, OfAttempt: attempt,
			Step: step, Manifest: manifestKey(id, attempt, 0, step), SHA256: "x", Bytes: 10}
		if edit != nil {
			edit(&p)
		}
		return s.db.Objects.RegisterCheckpoint(t.Context(), a.machine, p)
	}
	for step := int64(1); step <= 3; step++ {
		pruned, err := save(step, nil)
		if err != nil {
			t.Fatal(err)
		}
		if want := int(max(0, step-2)); len(pruned) != want {
			t.Errorf("step %d pruned %v", step, pruned)
		}
	}
	if _, err := save(3, nil); err != nil {
		t.Errorf("registering twice: %v", err)
	}
	if j := s.job(id); j.Losses != 0 || len(j.Checkpoints) != 3 || j.Checkpoints[2].State != berth.CheckpointPruned {
		t.Errorf("job has %d losses and checkpoints %+v", j.Losses, j.Checkpoints)
	}
	if e := lastEvent(s, id); e.Kind != wire.EventCheckpoint || e.Detail != "step 3, 10 bytes" ||
		e.Facts == nil || *e.Facts.Step != 3 || *e.Facts.Bytes != 10 {
		t.Errorf("last event is %+v", e)
	}
	c := a.mustClaim(id, attempt)
	if len(c.Restore) != 2 || c.Restore[0].Step != 3 || c.Restore[0].Manifest != manifestKey(id, attempt, 0, 3) || !c.HadCheckpoint {
		t.Errorf("restore points are %+v", c.Restore)
	}
	if _, err := save(3, func(p *wire.CheckpointReport) { p.Bad = "sha256 differs" }); err != nil {
		t.Fatal(err)
	}
	if e := lastEvent(s, id); e.Kind != wire.EventCheckpointRejected || e.Facts == nil || *e.Facts.Step != 3 {
		t.Errorf("last event is %+v", e)
	}
	for range 5 { // a store that fails proves nothing about the content
		if _, err := save(2, func(p *wire.CheckpointReport) {
			p.Bad, p.Failed = "does not arrive whole", true
		}); err != nil {
			t.Fatal(err)
		}
		if c := a.mustClaim(id, attempt); len(c.Restore) != 1 || c.Restore[0].Step != 2 {
			t.Fatalf("after failed restores: %+v", c.Restore)
		}
	}
	if n := one[int](s, `SELECT failed_restores FROM checkpoints WHERE job = $1 AND step = 2`, id); n != 5 {
		t.Errorf("%d failed restores are recorded, want 5", n)
	}
	if _, err := save(2, func(p *wire.CheckpointReport) { p.Bad = "sha256 differs" }); err != nil {
		t.Fatal(err)
	}
	if c := a.mustClaim(id, attempt); len(c.Restore) != 0 || !c.HadCheckpoint {
		t.Errorf("after proven damage of all steps: %+v", c)
	}
	for name, edit := range map[string]func(*wire.CheckpointReport){
		"an old attempt": func(p *wire.CheckpointReport) { p.Attempt = 0 },
		"another rank":   func(p *wire.CheckpointReport) { p.Rank = 1 },
	} {
		if _, err := save(9, edit); !berth.IsSlug(err, berth.SlugStaleAttempt) {
			t.Errorf("%s registers: %v", name, err)
		}
	}
	if _, err := save(9, func(p *wire.CheckpointReport) { p.AgentBoot = "other" }); !berth.IsSlug(err, berth.SlugStaleEpoch) {
		t.Errorf("another agent registers: %v", err)
	}
}

// TestAManifestIsRegisteredOnlyUnderItsComputedKey reports keys that a lying machine may invent. The key is compared in
// the transaction of the registration, also if no address is signed.
func TestAManifestIsRegisteredOnlyUnderItsComputedKey(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(func(j *spec.Job) {
		j.Members = 2
		j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint", Keep: 2}
	})
	attempt := s.place(id, "m0", "m0")
	s.claim(id, attempt, 0, 1)
	s.run(id)
	good := manifestKey(id, attempt, 0, 5)
	register := func(key string) error {
		_, err := s.db.Objects.RegisterCheckpoint(t.Context(), a.machine, wire.CheckpointReport{
			AgentBoot: a.boot, Epoch: a.epoch, Alloc: s.alloc(id, attempt), Job: id, Attempt: attempt,
			OfAttempt: attempt, Step: 5, Manifest: key, SHA256: "x", Bytes: 1,
		})
		return err
	}
	for name, key := range map[string]string{
		"another step":    manifestKey(id, attempt, 0, 6),
		"another member":  manifestKey(id, attempt, 1, 5),
		"another attempt": manifestKey(id, attempt+1, 0, 5),
		"another job":     manifestKey(s.submit(nil), attempt, 0, 5),
		"another tenant":  strings.Replace(good, "/default/", "/other/", 1),
		"another file":    strings.Replace(good, berth.ManifestName, "file-000000", 1),
		"another form":    "x",
	} {
		if err := register(key); berth.CodeOf(err) != berth.CodeInvalid || !strings.Contains(err.Error(), good) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := one[int](s, `SELECT count(*) FROM checkpoint_shards WHERE job = $1`, id); n != 0 {
		t.Errorf("%d shards are recorded", n)
	}
	if err := register(good); err != nil {
		t.Errorf("the computed key: %v", err)
	}
}

func TestLogIsAppendedByCompare(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	a.mustClaim(id, attempt)
	alloc := s.alloc(id, attempt)
	place, err := s.db.Logs.Place(t.Context(), "m0", a.session(), alloc)
	if err != nil || place.End != 0 {
		t.Fatalf("place %+v, %v", place, err)
	}
	for _, c := range []struct{ off, end int64 }{{0, 100}, {0, 100}, {50, 100}, {100, 200}, {300, 200}} {
		end, err := s.db.Logs.Append(t.Context(), alloc, place, db.LogChunk{Offset: c.off, Bytes: 100, Lines: 2, FirstAt: ranAt, LastAt: ranAt})
		if err != nil || end != c.end {
			t.Errorf("append at %d: end %d, %v; want %d", c.off, end, err, c.end)
		}
	}
	log := berth.LogRef{Job: id, Attempt: attempt}
	owner, chunks, stored, err := s.db.Logs.Chunks(t.Context(), log, 100, 10)
	if err != nil || owner != "default" || stored != 200 || len(chunks) != 1 || chunks[0].Offset != 100 {
		t.Errorf("chunks of %s after 100 of %d: %+v, %v", owner, stored, chunks, err)
	}
	log.Tenant = "other"
	if _, chunks, _, _ := s.db.Logs.Chunks(t.Context(), log, 0, 10); len(chunks) != 0 {
		t.Error("another tenant reads the log")
	}
	if _, err := s.db.Logs.Place(t.Context(), "m1", a.session(), alloc); !berth.IsSlug(err, berth.SlugStaleEpoch) {
		t.Errorf("another machine's log: %v", err)
	}
}

func TestObjectsAreReachedByTheirMachineAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	a.mustClaim(id, attempt)
	ok := db.ObjectAccess{Tenant: "default", Job: id, Attempt: attempt, Write: true, Session: a.session()}
	for _, c := range []struct {
		name    string
		machine berth.MachineID
		edit    func(*db.ObjectAccess)
		refused bool
	}{
		{"write under its own attempt", "m0", func(*db.ObjectAccess) {}, false},
		{"read of an earlier attempt", "m0", func(o *db.ObjectAccess) { o.Write, o.Attempt = false, 0 }, false},
		{"write under another attempt", "m0", func(o *db.ObjectAccess) { o.Attempt = 7 }, true},
		{"write under another rank", "m0", func(o *db.ObjectAccess) { o.Rank = 1 }, true},
		{"another machine", "m1", func(*db.ObjectAccess) {}, true},
		{"another tenant's prefix", "m0", func(o *db.ObjectAccess) { o.Tenant = "other" }, true},
		{"another job", "m0", func(o *db.ObjectAccess) { o.Job = s.submit(nil) }, true},
	} {
		o := ok
		c.edit(&o)
		if err := s.db.Objects.Authorize(t.Context(), c.machine, o); (err != nil) != c.refused {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	a.report(id, attempt, berth.PhaseSealed, withExit(0))
	if err := s.db.Objects.Authorize(t.Context(), "m0", ok); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("after the seal: %v", err)
	}
}

// F32: a step of a gang of which one shard is missing is no checkpoint, however
// new it is.
func TestF32StepWithoutEveryShardIsNeverRestored(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(func(j *spec.Job) {
		j.Members = 2
		j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint", Keep: 3}
	})
	attempt := s.place(id, "m0", "m0")
	s.claim(id, attempt, 0, 1)
	s.run(id)
	shard := func(rank int, step int64) {
		t.Helper()
		alloc := one[int64](s, `SELECT id FROM allocations WHERE job = $1 AND attempt = $2 AND rank = $3`, id, attempt, rank)
		_, err := s.db.Objects.RegisterCheckpoint(t.Context(), "m0", wire.CheckpointReport{
			AgentBoot: "agent1", Epoch: a.epoch, Alloc: berth.AllocationID(alloc), Job: id, Attempt: attempt, OfAttempt: attempt,
			Rank: rank, Step: step, Manifest: manifestKey(id, attempt, rank, step), SHA256: "s", Bytes: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	shard(0, 10)
	shard(1, 10)
	shard(0, 20)
	if c := a.mustClaim(id, attempt); len(c.Restore) != 1 || c.Restore[0].Step != 10 {
		t.Errorf("to be restored are %+v, want step 10 alone", c.Restore)
	}
}
