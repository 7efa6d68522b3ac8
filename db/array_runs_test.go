package db_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/spec"
)

// merged lists the elements of an array and its retries as "index:run status", by pages of two.
func (s *stage) merged(array berth.JobID, f db.JobFilter) string {
	s.t.Helper()
	var list []string
	f.Parent, f.Merged, f.Limit = &array, true, 2
	count, err := f.Count(s.t.Context(), s.db.Jobs)
	if err != nil {
		s.t.Fatal(err)
	}
	for {
		jobs, next, err := s.db.Jobs.List(s.t.Context(), f)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, j := range jobs {
			list = append(list, fmt.Sprintf("%d:%d %s %s", *j.ArrayIndex, j.Run, j.Status, j.Variables["LR"]))
		}
		if f.Cursor = next; next == "" {
			break
		}
	}
	if count != len(list) {
		s.t.Errorf("count %d, listed %v", count, list)
	}
	return strings.Join(list, ", ")
}

// mergedRuns describes the merged results of an array: its run, the results of each run, and the tally.
func (s *stage) mergedRuns(array berth.JobID) string {
	s.t.Helper()
	r, err := s.db.Retries.Runs(s.t.Context(), array)
	if err != nil {
		s.t.Fatal(err)
	}
	if r == nil {
		return "none"
	}
	text := fmt.Sprintf("run %d:", r.Run)
	for _, run := range r.Runs {
		text += fmt.Sprintf(" %d", run.Results)
	}
	return text + fmt.Sprintf("; %d, %d unmade, %d succeeded, %d failed", r.Tally.Total, r.Tally.Unmade,
		r.Tally.ByStatus[berth.Succeeded], r.Tally.ByStatus[berth.Failed])
}

// TestAnArrayAndItsRetriesAreMergedByIndex checks that each index shows its latest element, whichever of the
// arrays is asked for, live or archived, and that an index that is to run again has no result yet.
func TestAnArrayAndItsRetriesAreMergedByIndex(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	first := s.submit(func(j *spec.Job) {
		j.Array = &spec.Array{Each: []map[string]string{{"LR": "a"}, {"LR": "b"}, {"LR": "c"}, {"LR": "d"}, {"LR": "e"}}}
	})
	s.tend(first)
	for i, code := range []int{0, 1, 0, 0, 1} {
		s.finish(s.element(first, i), code)
	}
	s.tend(first)
	if got := s.mergedRuns(first); got != "none" {
		t.Errorf("an array without retries has runs: %s", got)
	}
	if got, want := s.merged(first, db.JobFilter{Status: []berth.State{berth.Failed}}), "1:0 failed b, 4:0 failed e"; got != want {
		t.Errorf("an array without retries: %s", got)
	}
	again, _, err := s.db.Retries.Retry(t.Context(), "default", first, db.RetryOptions{Failed: true},
		"user:test")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.merged(first, db.JobFilter{}), "0:1 succeeded a, 2:1 succeeded c, 3:1 succeeded d"; got != want {
		t.Errorf("before the retry has elements: %s", got)
	}
	if got, want := s.mergedRuns(again.ID), "run 2: 3 0; 5, 2 unmade, 3 succeeded, 0 failed"; got != want {
		t.Errorf("before the retry has elements: %s", got)
	}
	s.tend(again.ID)
	s.finish(s.element(again.ID, 1), 0)
	s.finish(s.element(again.ID, 4), 1)
	s.tend(again.ID)
	third, _, err := s.db.Retries.Retry(t.Context(), "default", again.ID, db.RetryOptions{Failed: true},
		"user:test")
	if err != nil {
		t.Fatal(err)
	}
	s.cancel(third.ID) // it has created no element, so the earlier result stays
	for _, archived := range []bool{false, true} {
		if archived {
			s.archiveAll()
		}
		for i, id := range []berth.JobID{first, again.ID, third.ID} {
			want := "0:1 succeeded a, 1:2 succeeded b, 2:1 succeeded c, 3:1 succeeded d, 4:2 failed e"
			if got := s.merged(id, db.JobFilter{}); got != want {
				t.Errorf("archived %t, run %d: %s", archived, i+1, got)
			}
			if got, want := s.mergedRuns(id), fmt.Sprintf("run %d: 3 2 0; 5, 0 unmade, 4 succeeded, 1 failed", i+1); got != want {
				t.Errorf("archived %t: %s, want %s", archived, got, want)
			}
		}
		if got := s.merged(again.ID, db.JobFilter{Status: []berth.State{berth.Failed}}); got != "4:2 failed e" {
			t.Errorf("archived %t, failed: %s", archived, got)
		}
		if got := s.merged(first, db.JobFilter{Index: []spec.IndexRange{{First: 1, Last: 2}}}); got != "1:2 succeeded b, 2:1 succeeded c" {
			t.Errorf("archived %t, two of them: %s", archived, got)
		}
		if got := s.merged(first, db.JobFilter{Tenant: "other"}); got != "" {
			t.Errorf("archived %t, another tenant: %s", archived, got)
		}
	}
}

// TestAnArrayWithOtherElementsIsNotMerged checks that a retry with a changed file is merged only while its
// elements are the same.
func TestAnArrayWithOtherElementsIsNotMerged(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, same := range []bool{true, false} {
		id := s.submit(func(j *spec.Job) { j.Array = &spec.Array{Each: []map[string]string{{"LR": "1"}, {"LR": "2"}}} })
		s.cancel(id)
		as := *s.job(id).Spec
		as.Command = []string{"fixed"}
		if !same {
			as.Array = &spec.Array{Each: []map[string]string{{"LR": "1"}, {"LR": "3"}}}
		}
		job, _, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{Spec: &as}, "user:test")
		if err != nil {
			t.Fatal(err)
		}
		if got := s.mergedRuns(job.ID); (got != "none") != same {
			t.Errorf("same elements %t: %s", same, got)
		}
	}
}

// TestOutputsOfStepsAreListedAtTheirPipeline checks that a pipeline lists the outputs of all levels by path, from
// live and archived steps, and across pages.
func TestOutputsOfStepsAreListedAtTheirPipeline(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	run := s.studied(0, 0, 0)
	sweep := s.step(run, "sweep")
	mustExec(t, s.pool, `
		INSERT INTO outputs (job, attempt, rank, name, address, files, bytes, stored_bytes, sha256, object)
		SELECT $1, a, 0, 'part', 'x', 1, 1, 1, 'x', 'x' FROM generate_series(1, 2) AS a`, s.element(sweep, 2))
	list := func(id berth.JobID) (all []string) {
		for p := (db.Paging{Limit: 2}); ; {
			page, next, err := s.db.Objects.Outputs(t.Context(), id, p)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range page {
				all = append(all, fmt.Sprintf("%s/%s %d %t", o.Step, o.Name, o.Attempt, o.Job != ""))
			}
			if p.Cursor = next; next == "" {
				return all
			}
		}
	}
	steps := map[berth.JobID][]string{
		run:                  {"prep/data 1 true", "sweep[2]/part 2 true", "sweep[2]/part 1 true", "train.fit/model 1 true"},
		sweep:                {"[2]/part 2 true", "[2]/part 1 true"},
		s.step(run, "prep"):  {"/data 1 false"},
		s.step(run, "train"): {"fit/model 1 true"},
	}
	for _, archived := range []bool{false, true} {
		if archived {
			s.archiveAll()
		}
		for id, want := range steps {
			got := list(id)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("archived %t (-want +got):\n%s", archived, diff)
			}
		}
	}
}
