package db_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/spec"
)

func TestAPinnedStepIsKeptUntilItIsUnpinned(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(saves(1))
	a.mustClaim(id, s.place(id, "m0"))
	s.registered(a, id, 1)
	for range 2 {
		if err := s.db.Objects.Pin(t.Context(), "default", id, 1); err != nil {
			t.Fatal(err)
		}
	}
	s.registered(a, id, 2)
	s.registered(a, id, 3)
	if got := s.verifiedSteps(id); got != "3 1" || !s.job(id).Checkpoints[2].Pinned {
		t.Errorf("verified are %s, checkpoints %+v", got, s.job(id).Checkpoints)
	}
	for range 2 {
		if err := s.db.Objects.Unpin(t.Context(), "default", id, 1); err != nil {
			t.Fatal(err)
		}
	}
	s.registered(a, id, 4)
	if got := s.verifiedSteps(id); got != "4" {
		t.Errorf("verified are %s after the unpin", got)
	}
	for what, err := range map[string]error{
		"a pruned step":  s.db.Objects.Pin(t.Context(), "default", id, 1),
		"no step":        s.db.Objects.Pin(t.Context(), "default", id, 99),
		"another tenant": s.db.Objects.Pin(t.Context(), "other", id, 4),
	} {
		if berth.CodeOf(err) != berth.CodeNotFound {
			t.Errorf("%s is pinned: %v", what, err)
		}
	}
}

func TestOnlyAStepThatNothingNeedsIsRemoved(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	live := s.submit(saves(2))
	s.saved(live, 1, 5)
	ended := s.fails(s.submit(func(j *spec.Job) { saves(9)(j) }), 5, 9, 17)
	user := s.submit(from(ended, 9))
	if err := s.db.Objects.Pin(t.Context(), "", ended, 17); err != nil {
		t.Fatal(err)
	}
	remove := func(tenant berth.TenantID, job berth.JobID, step int64) error {
		return s.db.Objects.Remove(t.Context(), tenant, job, step)
	}
	for what, c := range map[string]struct {
		err  error
		code berth.Code
		says string
	}{
		"of a live job":     {remove("", live, 5), berth.CodeConflict, "may resume from step 5"},
		"in use":            {remove("", ended, 9), berth.CodeConflict, string(user)},
		"pinned":            {remove("", ended, 17), berth.CodeConflict, "berth checkpoints unpin"},
		"of another tenant": {remove("other", ended, 5), berth.CodeNotFound, "no verified checkpoint"},
		"unknown":           {remove("", ended, 6), berth.CodeNotFound, "no verified checkpoint"},
	} {
		if berth.CodeOf(c.err) != c.code || !strings.Contains(c.err.Error(), c.says) {
			t.Errorf("a step %s: %v", what, c.err)
		}
	}
	if got := s.verifiedSteps(ended); got != "17 9 5" {
		t.Errorf("verified are %s", got)
	}
	s.cancel(user)
	if err := s.db.Objects.Unpin(t.Context(), "", ended, 17); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second call finds the step pruned
		for _, step := range []int64{9, 17} {
			if err := s.db.Objects.Remove(t.Context(), "default", ended, step); err != nil {
				t.Fatal(err)
			}
		}
	}
	doomed, err := s.db.Objects.Doomed(t.Context(), 10)
	want := []string{berth.CheckpointKey("default", ended, 1, 0, 9), berth.CheckpointKey("default", ended, 1, 0, 17)}
	if d := cmp.Diff(want, doomed); d != "" || err != nil {
		t.Errorf("marked for removal (-want +got):\n%s%v", d, err)
	}
	s.wantSource("a retry", s.retry(ended, db.RetryOptions{}), at(ended, 5, 1))
}

// Two attempts have saved a step of the same number, and restores pass over the newer one: the number means the other
// one.
func TestOfTwoAttemptsTheStepThatRestoresTakeFirstIsMeant(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(saves(9))
	s.saved(id, 1, 5)
	s.saved(id, 2, 5)
	mustExec(t, s.pool, `UPDATE checkpoints SET passed_over = true WHERE job = $1 AND attempt = 2`, id)
	if got, err := s.db.Objects.Saved(t.Context(), "default", id, 5, 0); err != nil || got.Attempt != 1 {
		t.Errorf("step 5 is read of attempt %d: %v", got.Attempt, err)
	}
	if err := s.db.Objects.Pin(t.Context(), "default", id, 5); err != nil {
		t.Fatal(err)
	}
	if got := one[int](s, `SELECT attempt FROM checkpoints WHERE job = $1 AND pinned_at IS NOT NULL`, id); got != 1 {
		t.Errorf("the step of attempt %d is pinned", got)
	}
}

func TestASavedStepIsReadByItsTenantAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(func(j *spec.Job) { saves(9)(j); j.Members = 2 })
	s.saved(id, 1, 5)
	s.saved(id, 2, 5)
	mustExec(t, s.pool, `
		INSERT INTO checkpoints (job, step, attempt, ranks, state)
		VALUES ($1, 6, 2, 2, 'partial')`, id)
	got, err := s.db.Objects.Saved(t.Context(), "default", id, 5, 1)
	want := db.SavedShard{Tenant: "default", Job: id, Attempt: 2, Step: 5, Member: 1, Members: 2,
		Manifest: "m5-1", SHA256: "x"}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("shard (-want +got):\n%s%v", d, err)
	}
	for what, f := range map[string]func() (db.SavedShard, error){
		"another tenant": func() (db.SavedShard, error) { return s.db.Objects.Saved(t.Context(), "other", id, 5, 1) },
		"another step":   func() (db.SavedShard, error) { return s.db.Objects.Saved(t.Context(), "default", id, 6, 0) },
		"another member": func() (db.SavedShard, error) { return s.db.Objects.Saved(t.Context(), "default", id, 5, 2) },
	} {
		if _, err := f(); berth.CodeOf(err) != berth.CodeNotFound {
			t.Errorf("%s: %v", what, err)
		}
	}
}
