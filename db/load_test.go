package db_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

func TestLoadQueuesASubmittedJobOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(nil)
	queue, job := s.db.Hub().Subscribe(db.TopicQueue, "*"), s.db.Hub().Subscribe(db.TopicJob, string(id))
	if diff := cmp.Diff(wire.JobView{State: berth.Queued, Placeable: true, Slots: []berth.Slot{}}, s.load(id)); diff != "" {
		t.Errorf("first load (-want +got):\n%s", diff)
	}
	if !hears(t, queue) || !hears(t, job) {
		t.Error("nobody was told that the job is queued")
	}
	if s.load(id); hears(t, queue) || hears(t, job) {
		t.Error("a load that changed nothing was told")
	}
	if e := lastEvent(s, id); e.Seq != 2 || e.To != berth.Queued || e.Actor != "workflow" {
		t.Errorf("last event is %+v", e)
	}
}

func TestLoadShowsTheGrant(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(func(j *spec.Job) { j.TimeLimit = spec.Duration(time.Hour) })
	attempt := s.place(id, "m0", "m1")
	s.claim(id, attempt, 0)
	s.exit(id, attempt, 0, exited(0))
	got := s.load(id)
	for i := range got.Slots {
		if got.Slots[i].Alloc == 0 {
			t.Error("a slot has no allocation")
		}
		got.Slots[i].Alloc = 0
	}
	want := wire.JobView{
		State: berth.Scheduled, Attempt: 1, RunLimit: spec.Duration(time.Hour + spec.DefaultStopGrace),
		Slots: []berth.Slot{
			{Rank: 0, Machine: "m0", GPUs: []int{0}, State: berth.AllocExited, Sealed: true},
			{Rank: 1, Machine: "m1", GPUs: []int{0}, State: berth.AllocReserved},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("view (-want +got):\n%s", diff)
	}
}

func TestLoadOfAWaitingJobShowsNoOldRanks(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.started(nil)
	s.orphan(id, attempt, 0)
	s.settle(id, attempt)
	if v := s.load(id); v.State != berth.Retrying || len(v.Slots) != 0 || !v.Placeable {
		t.Errorf("view is %+v", v)
	}
	mustExec(t, s.pool, `UPDATE jobs SET eligible_at = now() + interval '1 minute' WHERE id = $1`, id)
	if s.load(id).Placeable {
		t.Error("a job in backoff is placeable")
	}
	mustExec(t, s.pool, `UPDATE jobs SET eligible_at = now(), held = true WHERE id = $1`, id)
	if s.load(id).Placeable {
		t.Error("a held job is placeable")
	}
}

func TestLoadOfAMissingJobIsNotFound(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	if _, err := s.db.Jobs.Load(t.Context(), jobA); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("got %v", err)
	}
}

func TestViewOnlyReads(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(nil)
	before, err := s.db.Jobs.View(t.Context(), id)
	if err != nil || before.State != berth.Submitted {
		t.Errorf("a submitted job is %+v, %v", before, err)
	}
	loaded := s.load(id)
	after, err := s.db.Jobs.View(t.Context(), id)
	if diff := cmp.Diff(loaded, after); err != nil || diff != "" {
		t.Errorf("%v (-load +view):\n%s", err, diff)
	}
}
