package agent_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/activities/node/runtimetest/prog"
	"berth/db"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

func checkpointed(keep int) func(*spec.Job) {
	return func(j *spec.Job) {
		j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint", Keep: keep, Signal: "SIGUSR1"}
		j.Retry.MaxAttempts = 5
		j.Retry.Backoff = spec.Backoff{Initial: spec.Duration(time.Nanosecond), Factor: 1, Max: spec.Duration(time.Nanosecond)}
	}
}

// train runs a training that is killed in its first attempt when it has stored
// a few checkpoints, and settles that attempt.
func train(m *machine) berth.JobID {
	s := m.s
	s.t.Helper()
	id := s.submit(checkpointed(3), "train", "/checkpoint", "100000", "5ms", "5")
	_, w := m.run(id)
	s.until("three checkpoints are stored", func() bool { return len(s.job(id).Checkpoints) >= 3 })
	m.runtime.Exit(berth.ContainerName(id, 0, 1), 1)
	w.exit()
	if j := s.settle(id); j.Status != berth.Retrying {
		s.t.Fatalf("job is %s, %+v", j.Status, j.Reason)
	}
	return id
}

// trainsFor sets the number of steps of a training's next attempt. Until a test calls trainsFor,
// a training runs without end, however busy the machine is.
func (s *site) trainsFor(id berth.JobID, steps int) {
	s.t.Helper()
	if _, err := s.db.Pool().Exec(s.t.Context(), `UPDATE job_specs SET spec = jsonb_set(spec, '{command,2}', to_jsonb($2::text)) WHERE job = $1`, id, fmt.Sprint(steps)); err != nil {
		s.t.Fatal(err)
	}
}

// verified lists the steps that a restore may use, newest first.
func (s *site) verified(id berth.JobID) []int64 {
	var steps []int64
	for _, c := range s.job(id).Checkpoints {
		if c.State == berth.CheckpointVerified {
			steps = append(steps, c.Step)
		}
	}
	return steps
}

func TestTrainingGoesOnFromItsNewestCheckpoint(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := train(m)
	newest := s.verified(id)[0]
	steps := int(newest) + 100
	s.trainsFor(id, steps)
	_, w := m.run(id)
	if x := w.exit(); x.Code != 0 || !x.Complete {
		t.Fatalf("exit is %+v", x)
	}
	log := s.log(id, 2)
	if log[0] != fmt.Sprintf("restored step %d", newest) || log[len(log)-1] != prog.TrainResult(steps) {
		t.Errorf("the second attempt begins with %q and ends with %q", log[0], log[len(log)-1])
	}
	j := s.settle(id)
	if j.Status != berth.Succeeded || *j.Attempts[1].ResumeFrom != newest {
		t.Errorf("job is %s, attempts %+v", j.Status, j.Attempts)
	}
	if !s.hasEvent(id, wire.EventRestored, fmt.Sprint(newest)) {
		t.Errorf("events: %+v", s.events(id))
	}
	if got := s.verified(id); len(got) != 3 || got[0] != int64(steps) {
		t.Errorf("verified checkpoints are %v", got)
	}
	for _, c := range j.Checkpoints {
		_, err := os.Stat(filepath.Join(s.blobDir, filepath.FromSlash(berth.CheckpointKey("default", id, c.Attempt, 0, c.Step)), berth.ManifestName))
		if kept := c.State == berth.CheckpointVerified; kept != (err == nil) {
			t.Errorf("checkpoint %+v: %v", c, err)
		}
	}
}

// A retry is a new job, with the checkpoint of the job before in its folder: another machine reads it from the store.
func TestARetryGoesOnFromTheCheckpointOfTheJobBefore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	source := train(s.machine("m1"))
	if _, err := s.db.Jobs.RequestCancel(t.Context(), "", source, "user:test", nil); err != nil {
		t.Fatal(err)
	}
	newest := s.verified(source)[0]
	retry, _, err := s.db.Retries.Retry(t.Context(), "", source, db.RetryOptions{}, "user:test")
	if err != nil || retry.StartedFrom == nil || retry.StartedFrom.Step != newest {
		t.Fatalf("the retry is %+v, %v", retry, err)
	}
	id, steps := retry.ID, int(newest)+100
	s.trainsFor(id, steps)
	_, w := s.machine("m2").run(id)
	if x := w.exit(); x.Code != 0 || !x.Complete {
		t.Fatalf("exit is %+v", x)
	}
	log := s.log(id, 1)
	if log[0] != fmt.Sprintf("restored step %d", newest) || log[len(log)-1] != prog.TrainResult(steps) {
		t.Errorf("the retry begins with %q and ends with %q", log[0], log[len(log)-1])
	}
	j := s.settle(id)
	if j.Status != berth.Succeeded || j.Attempts[0].ResumeFrom == nil || *j.Attempts[0].ResumeFrom != newest {
		t.Errorf("job is %s, attempts %+v", j.Status, j.Attempts)
	}
	if !s.hasEvent(id, wire.EventRestored, "of job "+string(source)) {
		t.Errorf("events: %+v", s.events(id))
	}
	if got := s.verified(id); len(got) != 3 || got[0] != int64(steps) {
		t.Errorf("verified checkpoints of the retry are %v", got)
	}
	if got := s.verified(source); got[0] != newest {
		t.Errorf("verified checkpoints of the source are %v", got)
	}
}

// A retry whose source is damaged in the store fails, and the retry after it takes the step before.
func TestADamagedCheckpointOfTheJobBeforeIsPassedOver(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	source := train(m)
	if _, err := s.db.Jobs.RequestCancel(t.Context(), "", source, "user:test", nil); err != nil {
		t.Fatal(err)
	}
	steps := s.verified(source)
	_, files := s.objects(source, steps[0])
	if err := os.Truncate(files[0], 1); err != nil {
		t.Fatal(err)
	}
	first, _, err := s.db.Retries.Retry(t.Context(), "", source, db.RetryOptions{}, "user:test")
	if err != nil {
		t.Fatal(err)
	}
	_, w := m.run(first.ID)
	w.exit()
	if j := s.settle(first.ID); j.Status != berth.Failed || j.Reason.Code != berth.ReasonCheckpointCorrupt {
		t.Fatalf("the retry is %s, %+v", j.Status, j.Reason)
	}
	second, _, err := s.db.Retries.Retry(t.Context(), "", first.ID, db.RetryOptions{}, "user:test")
	if err != nil || second.StartedFrom == nil || second.StartedFrom.Step != steps[1] {
		t.Errorf("the second retry starts from %+v, want step %d, %v", second.StartedFrom, steps[1], err)
	}
}

// objects lists the files of a stored checkpoint, the manifest apart.
func (s *site) objects(id berth.JobID, step int64) (dir string, files []string) {
	s.t.Helper()
	dir = filepath.Join(s.blobDir, filepath.FromSlash(berth.CheckpointKey("default", id, 1, 0, step)))
	all, err := filepath.Glob(dir + "/file-*")
	if err != nil || len(all) == 0 {
		s.t.Fatalf("objects of step %d: %v, %v", step, all, err)
	}
	return dir, all
}

func TestF32DamagedCheckpointsArePassedOver(t *testing.T) {
	t.Parallel()
	first := func(dir string, files []string) string { return files[0] }
	manifest := func(dir string, files []string) string { return filepath.Join(dir, berth.ManifestName) }
	for _, c := range []struct {
		name   string
		of     func(string, []string) string
		damage func(path string) error
		says   string
	}{
		{"flipped", first, func(p string) error {
			b, err := os.ReadFile(p)
			b[0] ^= 1
			return errorsJoin(err, os.WriteFile(p, b, 0o644))
		}, "sha256"},
		{"truncated", first, func(p string) error { return os.Truncate(p, 1) }, "instead of"},
		{"empty", first, func(p string) error { return os.Truncate(p, 0) }, "instead of"},
		{"missing", first, os.Remove, "missing"},
		{"manifest flipped", manifest, func(p string) error {
			b, err := os.ReadFile(p)
			return errorsJoin(err, os.WriteFile(p, append(b, ' '), 0o644))
		}, "sha256"},
		{"manifest missing", manifest, os.Remove, "missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			m := s.machine("m1")
			id := train(m)
			steps := s.verified(id)
			dir, files := s.objects(id, steps[0])
			if err := c.damage(c.of(dir, files)); err != nil {
				t.Fatal(err)
			}
			m.run(id)
			s.until("the second attempt is restored", func() bool { return len(s.log(id, 2)) > 0 })
			if got := s.log(id, 2)[0]; got != fmt.Sprintf("restored step %d", steps[1]) {
				t.Errorf("the second attempt begins with %q; checkpoints were %v", got, steps)
			}
			if !s.hasEvent(id, wire.EventCheckpointRejected, c.says) {
				t.Errorf("events: %+v", s.events(id))
			}
		})
	}
}

func errorsJoin(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

func TestF32JobWithoutOneGoodCheckpointDoesNotStartAnew(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := train(m)
	for _, step := range s.verified(id) {
		_, files := s.objects(id, step)
		if err := os.Truncate(files[0], 0); err != nil {
			t.Fatal(err)
		}
	}
	req, w := m.run(id)
	if x := w.exit(); x.Cause != failure.CauseCheckpointCorrupt || x.Started() {
		t.Errorf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Failed || j.Reason.Code != berth.ReasonCheckpointCorrupt {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
	m.cleared(req)
}

func TestF33StoreThatDoesNotAnswerIsNoDamage(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	m.impatient()
	id := train(m)
	before := s.verified(id)
	refuse := func(r *http.Request) int {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/objects/") {
			return http.StatusServiceUnavailable
		}
		return 0
	}
	s.gate.refuse.Store(&refuse)
	_, w := m.run(id)
	if x := w.exit(); x.Cause != failure.CauseRestoreFailed {
		t.Errorf("exit is %+v", x)
	}
	j := s.settle(id)
	if j.Status != berth.Retrying || j.Losses != 1 {
		t.Errorf("job is %s with %d losses", j.Status, j.Losses)
	}
	if after := s.verified(id); !slices.Equal(before, after) {
		t.Errorf("checkpoints were %v and are %v", before, after)
	}
	s.gate.refuse.Store(nil)
	m.run(id)
	s.until("the third attempt is restored", func() bool { return len(s.log(id, 3)) > 0 })
}

func TestF33StoreThatIsBackInTimeIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := train(m)
	left := make(chan struct{}, 3)
	for range 3 {
		left <- struct{}{}
	}
	refuse := func(r *http.Request) int {
		if r.Method != http.MethodGet {
			return 0
		}
		select {
		case <-left:
			return http.StatusServiceUnavailable
		default:
			return 0
		}
	}
	s.gate.refuse.Store(&refuse)
	m.run(id)
	s.until("the second attempt is restored", func() bool { return len(s.log(id, 2)) > 0 })
}

// A checkpoint order makes the job save, then end; the checkpoint is stored
// before the rank is sealed.
func TestPreemptedTrainingSavesFirst(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(checkpointed(2), "train", "/checkpoint", "100000", "5ms")
	req, w := m.run(id)
	s.until("it trains", func() bool { return len(s.log(id, 1)) > 3 })
	for _, sql := range []string{
		`UPDATE jobs SET state = 'preempting', version = version + 1, preempted_for = gen_random_uuid()`,
		`UPDATE allocations SET orders = orders || '{"checkpoint": true, "grace_ms": 120000}'`,
	} {
		if _, err := s.db.Pool().Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	s.db.Hub().Publish("machine", "m1")
	if x := w.exit(); x.Cause != failure.CauseOrdered || x.Code != 0 || x.Complete {
		t.Errorf("exit is %+v", x)
	}
	log := s.log(id, 1)
	last := log[len(log)-1]
	if !strings.HasPrefix(last, "saved step ") {
		t.Fatalf("the log ends with %q", last)
	}
	if steps := s.verified(id); len(steps) == 0 || fmt.Sprintf("saved step %d", steps[0]) != last && !slices.Contains(log, fmt.Sprintf("saved step %d", steps[0])) {
		t.Errorf("stored are %v, the log ends with %q", steps, last)
	}
	if j := s.settle(id); j.Status != berth.Retrying || j.Preemptions != 1 {
		t.Errorf("job is %s with %d preemptions", j.Status, j.Preemptions)
	}
	m.cleared(req)
}

func TestIntervalMakesTheJobSave(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(func(j *spec.Job) {
		checkpointed(2)(j)
		j.Checkpoint.Interval = spec.Duration(50 * time.Millisecond)
	}, "train", "/checkpoint", "100000", "5ms")
	m.run(id)
	s.until("a few checkpoints", func() bool { return len(s.job(id).Checkpoints) >= 3 })
}

func TestRestartedAgentStoresNoCheckpointTwice(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(checkpointed(10), "train", "/checkpoint", "100000", "5ms", "10")
	m.run(id)
	s.until("two checkpoints", func() bool { return len(s.job(id).Checkpoints) >= 2 })
	m.restart()
	n := len(s.job(id).Checkpoints)
	s.until("another checkpoint", func() bool { return len(s.job(id).Checkpoints) > n })
	for _, c := range s.job(id).Checkpoints {
		if c.State != berth.CheckpointVerified {
			t.Errorf("checkpoint %+v", c)
		}
	}
}

// A container is a stranger: links in its checkpoint lead nowhere.
func TestCheckpointWithALinkIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("token"), 0o600); err != nil {
		t.Fatal(err)
	}
	id := s.submit(checkpointed(2), "trap-term", "0")
	req, w := m.run(id)
	m.running(req)
	dir := filepath.Join(m.scratch(req), "checkpoint")
	if err := os.MkdirAll(filepath.Join(dir, "step-1"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(dir, "step-1", "state")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "step-1", "DONE"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s.until("it is refused", func() bool { return s.hasEvent(id, wire.EventWarning, "step 1 was rejected") })
	for _, step := range []string{"step-2", "step-3"} {
		if err := os.MkdirAll(filepath.Join(dir, step), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "step-3", "DONE"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s.until("the next one is stored", func() bool { return slices.Equal(s.verified(id), []int64{3}) })
	s.cancel(id)
	w.exit()
}
