package scheduler_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"gocloud.dev/blob/s3blob"

	"berth"
	"berth/internal/control/blob"
	"berth/internal/control/scheduler"
	"berth/internal/machine/fetch/s3test"
	"berth/spec"
	"berth/wire"
)

// store is an object store in a folder of the test's.
func store(t *testing.T) *blob.Store {
	t.Helper()
	b, err := blob.Open(t.Context(), "file://"+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// trained makes a job with an attempt that has ended, and a checkpoint of each
// step in the given state. Objects are stored for all of them.
func (r *rig) trained(b *blob.Store, ended time.Duration, steps map[int64]string) (id berth.JobID, key func(step int64) string) {
	r.t.Helper()
	id = r.queued(func(s *spec.Job) { s.Checkpoint = &spec.CheckpointPolicy{Path: "/c", Keep: 2} })
	r.exec(`UPDATE jobs SET state = 'scheduled', version = version + 1, attempt = 1 WHERE id = $1`, id)
	r.exec(`UPDATE jobs SET state = 'retrying', version = version + 1, has_checkpoint = true, held = true WHERE id = $1`, id)
	r.exec(`INSERT INTO attempts (job, attempt, leader_epoch, ended_at) VALUES ($1, 1, 1, now() - $2::interval)`, id, ended)
	r.exec(`INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli, state, forgotten_at)
		VALUES ($1, 1, 0, 'm0', 1, 0, 0, 0, 0, 'released', now())`, id)
	key = func(step int64) string {
		return berth.CheckpointKey("default", id, 1, 0, step) + "/" + berth.ManifestName
	}
	for step, state := range steps {
		if _, err := b.Put(r.t.Context(), key(step), strings.NewReader("{}"), 2); err != nil {
			r.t.Fatal(err)
		}
		if state == "" {
			continue // cut off before it was registered
		}
		r.exec(`INSERT INTO checkpoints (job, step, attempt, ranks, state, created_at) VALUES ($1, $2, 1, 1, $3, now() - interval '1 hour')`, id, step, state)
		r.exec(`INSERT INTO checkpoint_shards (job, step, attempt, rank, manifest, sha256, bytes) VALUES ($1, $2, 1, 0, $3, 'x', 2)`, id, step, key(step))
	}
	return id, key
}

func exists(t *testing.T, b *blob.Store, key string) bool {
	t.Helper()
	ok, err := b.Exists(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

// TestAnObjectOfALateAddressIsSwept uses a signed address after its attempt has ended: the object that it creates has no
// row, and goes with the attempt.
func TestAnObjectOfALateAddressIsSwept(t *testing.T) {
	t.Parallel()
	server := s3test.Start(t)
	b, err := blob.NewS3(t.Context(), server.Client(), server.Bucket, s3blob.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	r := newRig(t)
	r.machine("m0", 4, 0)
	id, key := r.trained(b, 25*time.Hour, map[int64]string{10: "verified"})
	output := berth.OutputKey("default", id, 1, 0, "model")
	r.exec(`UPDATE job_specs SET spec = spec || '{"outputs": [{"name": "model", "path": "/out"}]}' WHERE job = $1`, id)
	late := berth.CheckpointKey("default", id, 1, 0, 20) + "/file-000000"
	for _, object := range []string{late, output} {
		a, err := b.SignPut(t.Context(), object, 4, sha256.Sum256([]byte("late")), blob.AddressLife)
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, string(a.URL), strings.NewReader("late"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = a.Header
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusOK || !exists(t, b, object) {
			t.Fatalf("put %s: %s", object, answer.Status)
		}
	}
	r.lead(func(o *scheduler.Options) { o.Objects, o.TidyEvery = b, 20*time.Millisecond })
	r.await("the objects are swept", func() bool { return !exists(t, b, late) && !exists(t, b, output) })
	if !exists(t, b, key(10)) {
		t.Error("the verified checkpoint is gone, too")
	}
}

func TestObjectsWithoutARowAreRemoved(t *testing.T) {
	t.Parallel()
	r, b := newRig(t), store(t)
	r.machine("m0", 4, 0)
	_, old := r.trained(b, 25*time.Hour, map[int64]string{10: "verified", 20: "", 30: "bad", 40: "pruned"})
	_, young := r.trained(b, time.Hour, map[int64]string{10: "verified", 20: ""})
	r.lead(func(o *scheduler.Options) { o.Objects, o.TidyEvery = b, 20*time.Millisecond })
	r.await("the old attempt is swept", func() bool { return value[int](r, `SELECT count(*) FROM attempts WHERE swept_at IS NOT NULL`) == 1 })
	for step, want := range map[int64]bool{10: true, 20: false, 30: false, 40: false} {
		if got := exists(t, b, old(step)); got != want {
			t.Errorf("step %d is there: %v, want %v", step, got, want)
		}
	}
	if !exists(t, b, young(10)) || !exists(t, b, young(20)) {
		t.Error("objects of an attempt that has just ended are gone: it may still be uploading")
	}
}

// An unfinished line is output of a job, and must not stay in the database after its followers have left.
func TestLeasesOfFormerFollowersAreRemoved(t *testing.T) {
	t.Parallel()
	r, b := newRig(t), store(t)
	r.exec(`INSERT INTO followed_members (alloc, job, attempt, rank, machine_id, until, line)
		SELECT n, gen_random_uuid(), 1, 0, 'm0', now() - make_interval(mins => n), '50%' FROM generate_series(-5, 5, 2) n`)
	r.lead(func(o *scheduler.Options) { o.Objects, o.TidyEvery = b, 20*time.Millisecond })
	r.await("the expired leases are removed", func() bool { return value[int](r, `SELECT count(*) FROM followed_members`) == 3 })
}

// built creates a job with the outputs model and extra, an attempt that has ended, and objects of
// both outputs. Only model was registered before the attempt ended.
func (r *rig) built(b *blob.Store, ended time.Duration) (id berth.JobID, model, extra string) {
	r.t.Helper()
	id = r.queued(func(s *spec.Job) {
		s.Outputs = []spec.Output{{Name: "model", Path: "/m"}, {Name: "extra", Path: "/e"}}
	})
	r.exec(`UPDATE jobs SET state = 'scheduled', version = version + 1, attempt = 1 WHERE id = $1`, id)
	r.exec(`UPDATE jobs SET state = 'retrying', version = version + 1, held = true WHERE id = $1`, id)
	r.exec(`INSERT INTO attempts (job, attempt, leader_epoch, ended_at) VALUES ($1, 1, 1, now() - $2::interval)`, id, ended)
	r.exec(`INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli, state, forgotten_at)
		VALUES ($1, 1, 0, 'm0', 1, 0, 0, 0, 0, 'released', now())`, id)
	model, extra = berth.OutputKey("default", id, 1, 0, "model"), berth.OutputKey("default", id, 1, 0, "extra")
	for _, key := range []string{model, extra} {
		if err := b.Create(r.t.Context(), key, []byte("x")); err != nil {
			r.t.Fatal(err)
		}
	}
	r.exec(`INSERT INTO outputs (job, attempt, rank, name, address, files, bytes, stored_bytes, sha256, object)
		VALUES ($1, 1, 0, 'model', 'sha256:a', 1, 1, 1, 'x', $2)`, id, model)
	return id, model, extra
}

func TestOutputsThatWereNeverRegisteredAreRemoved(t *testing.T) {
	t.Parallel()
	r, b := newRig(t), store(t)
	r.machine("m0", 4, 0)
	_, model, extra := r.built(b, 25*time.Hour)
	_, youngModel, youngExtra := r.built(b, time.Hour)
	late, lateModel, lateExtra := r.built(b, 26*time.Hour)
	// The agent of this attempt may still register: the member is not sealed.
	r.exec(`UPDATE allocations SET state = 'exited', forgotten_at = NULL WHERE job = $1`, late)
	r.lead(func(o *scheduler.Options) { o.Objects, o.TidyEvery = b, 20*time.Millisecond })
	r.await("the old leftover is gone", func() bool { return !exists(t, b, extra) })
	r.await("nothing is left to do", func() bool { return value[int](r, `SELECT count(*) FROM doomed_objects`) == 0 })
	for _, key := range []string{model, youngModel, youngExtra, lateModel, lateExtra} {
		if !exists(t, b, key) {
			t.Errorf("%s is gone", key)
		}
	}
}

func TestOutputsOfArchivedJobsThatWereNeverRegisteredAreRemoved(t *testing.T) {
	t.Parallel()
	r, b := newRig(t), store(t)
	r.machine("m0", 4, 0)
	id, model, extra := r.built(b, time.Hour)
	r.exec(`UPDATE jobs SET state = 'canceled', version = version + 1 WHERE id = $1`, id)
	r.lead(func(o *scheduler.Options) {
		o.Objects, o.TidyEvery, o.Retention = b, 20*time.Millisecond, time.Millisecond
	})
	r.await("the leftover is gone", func() bool { return !exists(t, b, extra) })
	if !exists(t, b, model) {
		t.Error("the registered output is gone")
	}
}

func TestCheckpointsOfArchivedJobsAreRemoved(t *testing.T) {
	t.Parallel()
	r, b := newRig(t), store(t)
	r.machine("m0", 4, 0)
	id, key := r.trained(b, time.Hour, map[int64]string{10: "verified", 20: ""})
	log := berth.LogChunkKey("default", id, 1, 0, 0)
	if err := b.Create(t.Context(), log, []byte("x")); err != nil {
		t.Fatal(err)
	}
	r.exec(`UPDATE jobs SET state = 'canceled', version = version + 1 WHERE id = $1`, id)
	r.lead(func(o *scheduler.Options) {
		o.Objects, o.TidyEvery, o.Retention = b, 20*time.Millisecond, time.Millisecond
	})
	r.await("the objects are gone", func() bool { return !exists(t, b, key(10)) && !exists(t, b, key(20)) })
	if !exists(t, b, log) {
		t.Error("the archived job's log is gone")
	}
	r.await("nothing is left to do", func() bool { return value[int](r, `SELECT count(*) FROM doomed_objects`) == 0 })
}

// stuckStore refuses to delete one folder.
type stuckStore struct {
	*blob.Store
	folder string
}

func (s stuckStore) DeleteFolder(ctx context.Context, key string) error {
	if strings.HasPrefix(key, s.folder) {
		return errors.New("access denied")
	}
	return s.Store.DeleteFolder(ctx, key)
}

func TestAFolderThatCannotBeDeletedDoesNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	r, b := newRig(t), store(t)
	for i, folder := range []string{"locked", "free"} {
		if err := b.Create(t.Context(), folder+"/object", []byte("x")); err != nil {
			t.Fatal(err)
		}
		r.exec(`INSERT INTO doomed_objects (prefix, since) VALUES ($1, now() - $2::interval)`, folder, time.Duration(2-i)*time.Hour)
	}
	r.lead(func(o *scheduler.Options) {
		o.Objects, o.TidyEvery = stuckStore{b, "locked"}, 20*time.Millisecond
	})
	r.await("the other folder is gone", func() bool { return !exists(t, b, "free/object") })
	r.await("only the stuck folder is left, and due later", func() bool {
		return value[string](r, `SELECT string_agg(prefix || ' ' || (since > now())::text, ',') FROM doomed_objects`) == "locked true"
	})
}

func TestOutputsPastTheirRetentionAreRemoved(t *testing.T) {
	t.Parallel()
	r, b := newRig(t), store(t)
	output := func(ended time.Duration) (key string) {
		id := berth.NewJobID(time.Now())
		key = berth.OutputKey("default", id, 1, 0, "model")
		if err := b.Create(t.Context(), key, []byte("x")); err != nil {
			t.Fatal(err)
		}
		r.exec(`INSERT INTO archived_jobs (id, tenant, name, state, labels, submitted_at, finished_at, job, events)
			VALUES ($1, 'default', 'x', 'succeeded', '{}', now(), now() - $2::interval, '{}', '[]')`, id, ended)
		r.exec(`INSERT INTO outputs (job, attempt, rank, name, address, files, bytes, stored_bytes, sha256, object)
			VALUES ($1, 1, 0, 'model', 'sha256:a', 1, 1, 1, 'x', $2)`, id, key)
		return key
	}
	old, young := output(3*time.Hour), output(time.Hour)
	r.lead(func(o *scheduler.Options) {
		o.Objects, o.TidyEvery, o.OutputRetention = b, 20*time.Millisecond, 2*time.Hour
	})
	r.await("the old one is gone", func() bool { return !exists(t, b, old) })
	r.await("nothing is left to do", func() bool { return value[int](r, `SELECT count(*) FROM doomed_objects`) == 0 })
	if n := value[int](r, `SELECT count(*) FROM outputs`); n != 1 || !exists(t, b, young) {
		t.Errorf("%d outputs are on record, want the young one, which is there: %v", n, exists(t, b, young))
	}
}

func TestCheckpointsThatTheStoreHasLostAreMarked(t *testing.T) {
	t.Parallel()
	r, b := newRig(t), store(t)
	r.machine("m0", 4, 0)
	id, key := r.trained(b, time.Hour, map[int64]string{10: "verified", 20: "verified"})
	if err := b.DeleteFolder(t.Context(), strings.TrimSuffix(key(20), "/"+berth.ManifestName)); err != nil {
		t.Fatal(err)
	}
	r.lead(func(o *scheduler.Options) { o.Objects, o.TidyEvery = b, 20*time.Millisecond })
	r.await("the lost one is marked", func() bool {
		return value[string](r, `SELECT state FROM checkpoints WHERE job = $1 AND step = 20`, id) == "bad"
	})
	if s := value[string](r, `SELECT state FROM checkpoints WHERE job = $1 AND step = 10`, id); s != "verified" {
		t.Errorf("the other one is %s", s)
	}
	if n := value[int](r, `SELECT count(*) FROM job_events WHERE job = $1 AND kind = 'checkpoint_rejected'`, id); n != 1 {
		t.Errorf("%d events tell of it", n)
	}
}

// A store without a single checkpoint on record is another store than ours.
func TestAnEmptyStoreProvesNothing(t *testing.T) {
	t.Parallel()
	r, b := newRig(t), store(t)
	r.machine("m0", 4, 0)
	r.trained(b, time.Hour, map[int64]string{10: "verified", 20: "verified"})
	r.lead(func(o *scheduler.Options) { o.Objects, o.TidyEvery = store(t), 20*time.Millisecond })
	r.await("it is told", func() bool { return strings.Contains(r.log.String(), "none of the recorded checkpoints") })
	if n := value[int](r, `SELECT count(*) FROM checkpoints WHERE state = 'verified'`); n != 2 {
		t.Errorf("%d checkpoints are left", n)
	}
}

// Uploads without use for a long time are removed, except uploads of live jobs. Parts
// of unfinished uploads are removed as well.
func TestUploadsThatNobodyUsesAreRemoved(t *testing.T) {
	t.Parallel()
	r, b := newRig(t), store(t)
	upload := func(n byte, idle time.Duration) (a berth.Address, object string) {
		a = berth.AddressOf([]byte(strings.Repeat(string(n), 32)))
		folder, err := r.db.Uploads.Begin(t.Context(), "default", a)
		if err != nil {
			t.Fatal(err)
		}
		object = folder + "/" + berth.ArchiveName
		if _, err := b.Put(t.Context(), object, strings.NewReader("x"), 1); err != nil {
			t.Fatal(err)
		}
		if idle == 0 {
			return a, object
		}
		if _, _, err := r.db.Uploads.End(t.Context(), "default", wire.Upload{Address: a, Files: 1, Bytes: 1}, folder); err != nil {
			t.Fatal(err)
		}
		return a, object
	}
	const month = 30 * 24 * time.Hour
	_, fresh := upload('a', 1)
	needed, held := upload('b', 1)
	_, idle := upload('c', 1)
	_, writing := upload('d', 0)
	_, dead := upload('e', 0)
	r.queued(func(s *spec.Job) { s.Workdir = string(needed) })
	r.exec(`UPDATE uploads SET used_at = now() - $1::interval WHERE folder || '/archive.tar.zst' = ANY($2)`, month+time.Hour, []string{held, idle})
	r.exec(`UPDATE doomed_objects SET since = now() - interval '1 hour' WHERE prefix || '/archive.tar.zst' = $1`, dead)
	r.lead(func(o *scheduler.Options) { o.Objects, o.TidyEvery = b, 20*time.Millisecond })
	r.await("nobody's objects are gone", func() bool { return !exists(t, b, idle) && !exists(t, b, dead) })
	for name, object := range map[string]string{"a fresh one": fresh, "one that a live job needs": held, "one that is being written": writing} {
		if !exists(t, b, object) {
			t.Errorf("%s is gone too", name)
		}
	}
}
