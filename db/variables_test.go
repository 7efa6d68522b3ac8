package db_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/spec"
)

// below lists the children of a parent in pages of the given length.
func (s *stage) below(parent berth.JobID, limit int) (names []string, vars []map[string]string) {
	s.t.Helper()
	f := db.JobFilter{Parent: &parent, Limit: limit}
	for {
		jobs, next, err := s.db.Jobs.List(s.t.Context(), f)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, j := range jobs {
			name := j.Step
			if j.ArrayIndex != nil {
				name = fmt.Sprint(*j.ArrayIndex)
			}
			names, vars = append(names, name), append(vars, j.Variables)
		}
		if f.Cursor = next; next == "" {
			return names, vars
		}
	}
}

// TestElementsAreListedByIndexWithTheirVariables checks the order of elements with ids in another order, of
// which some are archived, and that each has the variables of its index.
func TestElementsAreListedByIndexWithTheirVariables(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.array(0, func(j *spec.Job) {
		j.Env = map[string]string{"A": "0"}
		j.Array = &spec.Array{Grid: map[string][]string{"A": {"1", "2"}, "B": {"x", "y"}}}
		*j = j.WithDefaults()
	})
	s.tend(id)
	want := []map[string]string{{"A": "1", "B": "x"}, {"A": "1", "B": "y"}, {"A": "2", "B": "x"}, {"A": "2", "B": "y"}}
	for i := range want {
		s.finish(s.element(id, i), i%2)
	}
	s.tend(id)
	again, _, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{Failed: true}, "user:test")
	if err != nil {
		t.Fatal(err)
	}
	s.tend(again.ID)
	check := func(parent berth.JobID, indexes []string, vars []map[string]string) {
		t.Helper()
		for _, limit := range []int{1, 2, 100} {
			gotNames, gotVars := s.below(parent, limit)
			if diff := cmp.Diff(indexes, gotNames); diff != "" {
				t.Errorf("pages of %d (-want +got):\n%s", limit, diff)
			}
			if diff := cmp.Diff(vars, gotVars); diff != "" {
				t.Errorf("pages of %d: variables (-want +got):\n%s", limit, diff)
			}
		}
	}
	check(id, []string{"0", "1", "2", "3"}, want)
	check(again.ID, []string{"1", "3"}, []map[string]string{want[1], want[3]})
	if diff := cmp.Diff(want[3], s.job(s.element(again.ID, 3)).Variables); diff != "" {
		t.Errorf("the element itself (-want +got):\n%s", diff)
	}

	mustExec(t, s.pool, `UPDATE allocations SET forgotten_at = now()`)
	third := s.element(id, 3)
	for _, limit := range []int{1, 2} { // the array, and then two of its elements
		if n, err := s.db.Jobs.ArchiveTerminal(t.Context(), s.term(), 0, limit); err != nil || n != limit {
			t.Fatal(n, err)
		}
	}
	if n := one[int](s, `SELECT count(*)::int FROM jobs WHERE parent = $1`, id); n != 2 {
		t.Fatalf("%d elements are left", n)
	}
	check(id, []string{"0", "1", "2", "3"}, want)
	s.archive(2)
	check(id, []string{"0", "1", "2", "3"}, want)
	if diff := cmp.Diff(want[3], s.job(third).Variables); diff != "" {
		t.Errorf("an archived element (-want +got):\n%s", diff)
	}
}

func TestStepsAreListedInTheOrderOfTheirGraph(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.pipeline(spec.FailFast, "c", "b:c", "a:b")
	for _, limit := range []int{1, 2, 100} {
		if names, _ := s.below(id, limit); !cmp.Equal(names, []string{"c", "b", "a"}) {
			t.Errorf("pages of %d: %v", limit, names)
		}
	}
}

func TestACursorOfAnotherOrderIsRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.array(3, nil)
	s.submit(nil)
	s.tend(id)
	_, newest, err := s.db.Jobs.List(t.Context(), db.JobFilter{Limit: 1})
	if err != nil || newest == "" {
		t.Fatal(newest, err)
	}
	_, ascending, err := s.db.Jobs.List(t.Context(), db.JobFilter{Parent: &id, Limit: 1})
	if err != nil || ascending == "" {
		t.Fatal(ascending, err)
	}
	for _, f := range []db.JobFilter{{Cursor: ascending}, {Parent: &id, Cursor: newest}} {
		if _, _, err := s.db.Jobs.List(t.Context(), f); berth.CodeOf(err) != berth.CodeInvalid {
			t.Errorf("%+v: %v", f, err)
		}
	}
}
