package db_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
)

// archiveAll archives all ended jobs.
func (s *stage) archiveAll() {
	s.t.Helper()
	mustExec(s.t, s.pool, `UPDATE allocations SET forgotten_at = now() WHERE state IN ('exited', 'released')`)
	for n := 1; n > 0; {
		var err error
		if n, err = s.db.Jobs.ArchiveTerminal(s.t.Context(), s.term(), 0, 100); err != nil {
			s.t.Fatal(err)
		}
	}
}

// TestOutputsArePrunedByAge checks that outputs are pruned by the age of their jobs. The rows are deleted
// first; an object is deleted when no row names it, and stays while a job takes it as an input.
func TestOutputsArePrunedByAge(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	source := s.ended()
	s.leaves(source, 1, 0, "model", "5")
	taker := s.submit(takes(source, "model"))
	first, prep, train := s.done("default", cached(nil))
	second := s.submits("default", cached(nil))
	if got := s.job(second).Status; got != berth.Succeeded {
		t.Fatalf("the second pipeline is %s", got)
	}
	age := func(jobs ...berth.JobID) {
		mustExec(t, s.pool, `UPDATE archived_jobs SET finished_at = now() - interval '3 hours' WHERE id = ANY($1::uuid[]) OR parent = ANY($1::uuid[])`, jobs)
	}
	prune := func(limit, want int) {
		t.Helper()
		n, err := s.db.Objects.PruneOutputs(t.Context(), s.term(), 2*time.Hour, limit)
		if err != nil || n != want {
			t.Errorf("pruned %d, %v; want %d", n, err, want)
		}
	}
	doomed := func(want ...string) {
		t.Helper()
		got, err := s.db.Objects.Doomed(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		// Prefixes of checkpoints do not count.
		got = slices.DeleteFunc(got, func(prefix string) bool { return !strings.HasPrefix(prefix, "object-") })
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("doomed are %v, want %v", got, want)
		}
	}
	prune(10, 0) // the jobs are not archived
	s.archiveAll()
	prune(10, 0) // the jobs are archived, but not old
	age(source, first)

	prune(1, 1)
	prune(10, 1)
	prune(10, 0) // the taker or the second pipeline still uses the rest
	doomed()
	if n := one[int](s, `SELECT count(*)::int FROM step_results`); n != 0 {
		t.Errorf("%d results are left whose outputs are gone", n)
	}
	s.wantSteps(s.submits("default", cached(nil)), prepRuns)

	age(second)
	prune(10, 2)
	doomed("object-"+string(prep)+"-1-0-data", "object-"+string(train)+"-1-0-model")

	s.cancel(taker)
	s.archiveAll()
	prune(10, 1)
	doomed("object-"+string(prep)+"-1-0-data", "object-"+string(train)+"-1-0-model", "object-"+string(source)+"-1-0-model")
	prune(10, 0)
}
