package db_test

import (
	"strings"
	"testing"

	"berth"
	"berth/spec"
)

// A job held through its pipeline or array is released only with that parent:
// a pipeline inside would start its steps, whose own parent is all that the leader
// looks at, until somebody had held it again.
func TestWhatIsHeldAroundIsReleasedWithTheOutermostAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pipeline := nesting(spec.FailFast, []string{"plain", "train", "many"}, map[string]spec.Pipeline{
		"train": nesting(spec.FailFast, []string{"a", "b"}, map[string]spec.Pipeline{"b": graph(spec.FailFast, "x")}),
	})
	many := pipeline.Jobs["many"]
	many.Array = &spec.Array{Size: 2}
	pipeline.Jobs["many"] = many
	id := s.stores(pipeline)
	s.tend(id)
	train, array := s.at(id, "train"), s.at(id, "many")
	for _, p := range []berth.JobID{train, s.at(id, "train.b"), array} {
		s.tend(p)
	}
	for _, path := range []string{"train.a", "train.b.x"} {
		s.load(s.at(id, path))
	}
	s.hold(train) // by itself, before all of it
	s.hold(id)
	held := func() int { return one[int](s, `SELECT count(*)::int FROM jobs WHERE held`) }
	if n := held(); n != 9 {
		t.Fatalf("%d rows are held", n)
	}
	inside := []berth.JobID{s.at(id, "plain"), train, s.at(id, "train.a"), s.at(id, "train.b"), s.at(id, "train.b.x"), array, s.element(array, 0)}
	for _, x := range inside {
		err := s.db.Jobs.Release(t.Context(), "default", x, "user:test")
		if berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), "held with pipeline p ("+string(id)+")") {
			t.Errorf("release of %s %s: %v", s.job(x).Kind, s.job(x).Step, err)
		}
	}
	if n := held(); n != 9 {
		t.Errorf("%d rows are held after that", n)
	}
	for _, x := range []berth.JobID{s.at(id, "train.a"), s.at(id, "train.b.x")} {
		s.mustRefuse(s.term(), s.start(x, on("m0")), "held")
	}
	s.release(id)
	if n := held(); n != 0 {
		t.Errorf("%d rows are held after the release of all", n)
	}
	s.release(train) // which is not held: no error

	s.hold(array)
	err := s.db.Jobs.Release(t.Context(), "default", s.element(array, 1), "user:test")
	if berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), "held with array many ("+string(array)+")") {
		t.Errorf("release of an element: %v", err)
	}
	s.hold(s.at(id, "plain"))
	s.release(s.at(id, "plain")) // held by itself alone
	s.release(array)
	if n := held(); n != 0 {
		t.Errorf("%d rows are held in the end", n)
	}
}

// A hold reaches the jobs below a pipeline that was held earlier, whether a request or
// the reconcile of the outer pipeline sets the hold.
func TestAHoldReachesBelowWhatWasHeldBefore(t *testing.T) {
	t.Parallel()
	for what, hold := range map[string]func(s *stage, id berth.JobID){
		"of one that is not held": func(s *stage, id berth.JobID) { s.hold(id) },
		"of one that is held": func(s *stage, id berth.JobID) {
			mustExec(t, s.pool, `UPDATE jobs SET held = true, held_at = now(), version = version + 1 WHERE id = $1`, id)
			s.hold(id)
		},
		"by one look": func(s *stage, id berth.JobID) {
			mustExec(t, s.pool, `UPDATE jobs SET held = true, held_at = now(), version = version + 1 WHERE id = $1`, id)
			if _, err := s.db.Parents.Reconcile(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		},
	} {
		s := newStage(t)
		id := s.nested(spec.FailFast, []string{"train"}, map[string]spec.Pipeline{
			"train": nesting(spec.FailFast, []string{"b"}, map[string]spec.Pipeline{"b": graph(spec.FailFast, "x")}),
		})
		for _, path := range []string{"train.b.x", "train.b", "train"} {
			s.looks(id, path)
		}
		s.tend(s.at(id, "train.b"))
		x := s.at(id, "train.b.x")
		s.load(x)
		mustExec(t, s.pool, `UPDATE jobs SET held = true, held_at = now(), version = version + 1 WHERE id = $1`, s.at(id, "train"))
		hold(s, id)
		if !s.job(s.at(id, "train.b")).Held {
			t.Errorf("%s: what is below is not held", what)
		}
		s.mustRefuse(s.term(), s.start(x, on("m0")), "held")
	}
}
