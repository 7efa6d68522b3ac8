package db_test

import (
	"fmt"
	"slices"
	"testing"

	"berth"
	"berth/db"
	"berth/spec"
)

// listed stores a pipeline of plan, whose output items becomes the array work, and report after it.
func (s *stage) listed() berth.JobID {
	s.t.Helper()
	p := graph(spec.FailFast, "plan", "work: plan", "report: work")
	editStep("plan", func(j *spec.Job) { j.Outputs = []spec.Output{{Name: "items", Path: "/out/items.json"}} })(&p)
	editStep("work", func(j *spec.Job) { j.Array = &spec.Array{From: "job:plan/items"} })(&p)
	id := s.stores(p.WithDefaults())
	s.tend(id)
	return id
}

func (s *stage) planned(id berth.JobID) db.ListWanted {
	s.t.Helper()
	s.leaves(s.step(id, "plan"), 1, 0, "items", "1")
	s.finish(s.step(id, "plan"), 0)
	s.tend(id)
	list, err := s.db.Parents.ListsWanted(s.t.Context(), "", 10)
	if err != nil || len(list) != 1 || list[0].Array != s.step(id, "work") || list[0].From != "job:plan/items" || list[0].Bytes != 1 ||
		list[0].Object != fmt.Sprintf("object-%s-1-0-items", s.step(id, "plan")) {
		s.t.Fatalf("lists to read: %+v, %v", list, err)
	}
	return list[0]
}

func entries(n int) (each []map[string]string) {
	for i := range n {
		each = append(each, map[string]string{"SHARD": fmt.Sprint(i)})
	}
	return each
}

func TestAnOutputOf500EntriesBecomesAnArrayOf500(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.listed()
	work := s.step(id, "work")
	if list, err := s.db.Parents.ListsWanted(t.Context(), "", 10); err != nil || len(list) != 0 {
		t.Errorf("before the plan: %+v, %v", list, err)
	}
	w := s.planned(id)
	// No pass starts the array before its elements are known, and the version before leaves it alone.
	s.wants(id, berth.Running, "plan succeeded, report submitted, work submitted")
	for what, sql := range map[string]string{"cancel": oldHopeless, "start": oldUnblockable} {
		if n := oldText(s, sql, id); n != "0" {
			t.Errorf("the version before would %s %s", what, n)
		}
	}
	if tally := s.job(work).Tally; tally.Total != 0 || tally.Unmade != 0 {
		t.Errorf("its tally is %+v", tally)
	}
	poke := s.db.Hub().Subscribe(db.TopicPoke, string(id))
	for range 2 { // a second leader finds nothing to do
		if err := s.db.Parents.FillArray(t.Context(), w.Array, entries(500), ""); err != nil {
			t.Fatal(err)
		}
	}
	if !hears(t, poke) {
		t.Error("the coordinator was not told")
	}
	s.wants(id, berth.Running, "plan succeeded, report submitted, work submitted*")
	s.tend(work)
	if got := s.tally(work); got != "500, 500 submitted" {
		t.Errorf("the array is %s", got)
	}
	last := s.job(s.element(work, 499))
	if last.Spec.Env["SHARD"] != "499" || last.Spec.Env[spec.EnvArraySize] != "500" || last.Spec.Env[spec.EnvArrayIndex] != "499" {
		t.Errorf("its last element has %v", last.Spec.Env)
	}
	mustExec(t, s.pool, `UPDATE jobs SET state = 'canceled', version = version + 1 WHERE parent = $1`, work)
	s.tend(work)
	s.tend(id)
	again, _, err := s.db.Retries.Retry(t.Context(), "default", work, db.RetryOptions{}, "user:test")
	if err != nil || again.Tally.Total != 500 {
		t.Errorf("the array alone: %+v, %v", again.Tally, err)
	}
	// The list of a step that is not repeated is read from its job.
	whole, _, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{Failed: true}, "user:test")
	if err != nil {
		t.Fatal(err)
	}
	s.wants(whole.ID, berth.Queued, "report submitted, work submitted")
	list, err := s.db.Parents.ListsWanted(t.Context(), "", 10)
	if err != nil || len(list) != 1 || list[0].Array != s.step(whole.ID, "work") || list[0].Object != w.Object {
		t.Errorf("lists of the retry: %+v, %v", list, err)
	}
}

func TestABadListFailsItsArray(t *testing.T) {
	t.Parallel()
	for what, row := range map[string]struct {
		each  []map[string]string
		fault string
		ends  string
		says  string
	}{
		"a fault":         {nil, "it is not a JSON list", "plan succeeded, report canceled, work failed", "list_invalid: array.from: job:plan/items cannot be used: it is not a JSON list"},
		"a wrong element": {[]map[string]string{{"A=B": "1"}}, "", "plan succeeded, report canceled, work failed", "list_invalid: array.from: job:plan/items cannot be used: entry 0: \"A=B\" is not a valid variable"},
		"a NUL":           {[]map[string]string{{spec.EnvArrayValue: "a\x00"}}, "", "plan succeeded, report canceled, work failed", "list_invalid: array.from: job:plan/items cannot be used: entry 0: it is not a valid variable"},
		"a NUL in words":  {nil, "no file \x00", "plan succeeded, report canceled, work failed", "list_invalid: array.from: job:plan/items cannot be used: no file ?"},
		"no element":      {nil, "", "plan succeeded, report canceled, work canceled", "skipped: the list job:plan/items is empty"},
	} {
		s := newStage(t)
		id := s.listed()
		w := s.planned(id)
		if err := s.db.Parents.FillArray(t.Context(), w.Array, row.each, row.fault); err != nil {
			t.Fatal(err)
		}
		s.tend(id)
		if got := s.steps(id); got != row.ends {
			t.Errorf("%s: steps are %s", what, got)
		}
		if got := s.reasonOf(id, "work"); got != row.says {
			t.Errorf("%s: %s", what, got)
		}
		if row.fault == "" {
			continue
		}
		if _, _, err := s.db.Retries.Retry(t.Context(), "default", w.Array, db.RetryOptions{}, "user:test"); berth.CodeOf(err) != berth.CodeConflict {
			t.Errorf("%s: a retry of the array alone: %v", what, err)
		}
	}
}

// TestListsAreReadInTurn checks that a pass can begin after the list at which the pass before ended.
func TestListsAreReadInTurn(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var want []berth.JobID
	for range 3 {
		id := s.listed()
		s.leaves(s.step(id, "plan"), 1, 0, "items", "1")
		s.finish(s.step(id, "plan"), 0)
		s.tend(id)
		want = append(want, s.step(id, "work"))
	}
	slices.Sort(want)
	for after, turn := range map[berth.JobID][]int{"": {0, 1, 2}, want[0]: {1, 2, 0}, want[1]: {2, 0, 1}, want[2]: {0, 1, 2}} {
		list, err := s.db.Parents.ListsWanted(t.Context(), after, 10)
		if err != nil || len(list) != 3 {
			t.Fatal(list, err)
		}
		for i, n := range turn {
			if list[i].Array != want[n] {
				t.Errorf("after %q, list %d is of array %s, want %s", after, i, list[i].Array, want[n])
			}
		}
	}
}
