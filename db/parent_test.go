package db_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/lifecycle"
	"berth/spec"
	"berth/wire"
)

// array submits an array of the given size; edit may change its spec.
func (s *stage) array(size int, edit func(*spec.Job)) berth.JobID {
	s.t.Helper()
	return s.submit(func(j *spec.Job) {
		j.Array = &spec.Array{Size: size}
		if edit != nil {
			edit(j)
		}
	})
}

func (s *stage) tend(id berth.JobID) berth.State {
	s.t.Helper()
	state, err := s.db.Parents.ReconcileThrough(s.t.Context(), id, new(math.MaxInt))
	if err != nil {
		s.t.Fatal(err)
	}
	return state
}

func (s *stage) element(parent berth.JobID, index int) berth.JobID {
	s.t.Helper()
	return berth.JobID(one[string](s, `SELECT id::text FROM jobs WHERE parent = $1 AND array_index = $2`, parent, index))
}

// finish runs an element or step to its end with the given exit code.
func (s *stage) finish(id berth.JobID, code int) {
	s.t.Helper()
	attempt := s.place(id, "m0")
	s.claim(id, attempt, 0)
	s.run(id)
	s.exit(id, attempt, 0, exited(code))
	s.settle(id, attempt)
}

func (s *stage) tally(id berth.JobID) string {
	s.t.Helper()
	t := s.job(id).Tally
	parts := []string{fmt.Sprint(t.Total)}
	for _, state := range berth.States {
		if n := t.ByStatus[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	if t.Unmade > 0 {
		parts = append(parts, fmt.Sprintf("%d unmade", t.Unmade))
	}
	return strings.Join(parts, ", ")
}

func TestAnArraysElementsHaveItsSpecAndTheirOwnVariables(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	high := spec.PriorityHigh
	id := s.array(0, func(j *spec.Job) {
		j.Env = map[string]string{"LR": "1", "SEED": "7"}
		j.Labels, j.Priority = map[string]string{"project": "vision"}, &high
		j.Array = &spec.Array{Each: []map[string]string{{"LR": "0.1"}, {"EXTRA": "yes"}}, Parallel: 1}
	})
	if p := s.job(id); p.Kind != berth.KindArray || p.Status != berth.Submitted || p.Tally.Unmade != 2 {
		t.Fatalf("array is %+v", p)
	}
	if got := s.tend(id); got != berth.Queued {
		t.Errorf("it is %s", got)
	}
	s.tend(id) // a repeat changes nothing
	if got := s.tally(id); got != "2, 2 submitted" {
		t.Errorf("tally is %s", got)
	}
	for i, want := range []map[string]string{
		{"LR": "0.1", "SEED": "7", "BERTH_ARRAY_INDEX": "0", "BERTH_ARRAY_SIZE": "2"},
		{"LR": "1", "SEED": "7", "EXTRA": "yes", "BERTH_ARRAY_INDEX": "1", "BERTH_ARRAY_SIZE": "2"},
	} {
		e := s.job(s.element(id, i))
		if diff := cmp.Diff(want, e.Spec.Env); diff != "" {
			t.Errorf("element %d (-want +got):\n%s", i, diff)
		}
		if *e.Parent != id || *e.ArrayIndex != i || e.Spec.Array != nil || e.Kind != "" || e.Priority != high || e.Labels["project"] != "vision" || !e.SubmittedAt.Equal(s.job(id).SubmittedAt) {
			t.Errorf("element %d is %+v", i, e)
		}
	}
	if first, second := s.element(id, 0), s.element(id, 1); first > second {
		t.Error("the ids of elements are not in their order")
	}
}

// TestElementsNeedTheUploadsOfTheirArray checks that every element needs its array's uploads, because a
// machine asks for the uploads of the element.
func TestElementsNeedTheUploadsOfTheirArray(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a := berth.Address("sha256:" + strings.Repeat("ab", 32))
	folder, err := s.db.Uploads.Begin(t.Context(), "default", a)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.db.Uploads.End(t.Context(), "default", wire.Upload{Address: a, Files: 1, Bytes: 1}, folder); err != nil {
		t.Fatal(err)
	}
	id := s.array(3, func(j *spec.Job) { j.Workdir = string(a) })
	s.tend(id)
	needs := func(parent berth.JobID) int {
		return one[int](s, `SELECT count(*) FROM job_uploads n JOIN jobs j ON j.id = n.job WHERE j.parent = $1 AND n.address = $2`, parent, a)
	}
	if n := needs(id); n != 3 {
		t.Errorf("%d of 3 elements need the upload", n)
	}
	s.finish(s.element(id, 0), 1)
	for i := range 2 {
		s.finish(s.element(id, i+1), 0)
	}
	s.tend(id)
	again, _, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{Failed: true}, "user:test")
	if err != nil {
		t.Fatal(err)
	}
	s.tend(again.ID)
	if n := needs(again.ID); n != 1 {
		t.Errorf("%d of 1 repeated element needs the upload", n)
	}
}

func TestAnArrayEndsOnceAsItsElementsDid(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		codes []int
		want  berth.State
		says  string
	}{
		"all well": {[]int{0, 0, 0}, berth.Succeeded, ""},
		"one bad":  {[]int{0, 3, 0}, berth.Failed, "1 of 3 elements failed: index 1"},
		"all bad":  {[]int{1, 1, 1}, berth.Failed, "3 of 3 elements failed: indexes 0-2"},
	} {
		s := newStage(t)
		id := s.array(3, nil)
		s.tend(id)
		poke := s.db.Hub().Subscribe(db.TopicPoke, string(id))
		for i, code := range row.codes {
			if s.job(id).Status.Terminal() || hears(t, poke) {
				t.Fatalf("%s: it ended, or was told, before element %d", name, i)
			}
			s.finish(s.element(id, i), code)
		}
		if !hears(t, poke) {
			t.Errorf("%s: nobody was told of the last end", name)
		}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { _, _ = s.db.Parents.ReconcileThrough(t.Context(), id, new(math.MaxInt)) })
		}
		all.Wait()
		j := s.job(id)
		if j.Status != row.want || j.Tally.Total != 3 || j.Tally.Ended() != 3 || row.says != "" && j.Reason.Message != row.says {
			t.Errorf("%s: it is %s because of %+v, %+v", name, j.Status, j.Reason, j.Tally)
		}
		ends := one[int](s, `SELECT count(*)::int FROM job_events WHERE job = $1 AND to_state IN ('succeeded', 'failed', 'canceled')`, id)
		if ends != 1 {
			t.Errorf("%s: it ended %d times", name, ends)
		}
	}
}

// TestTheLastOfTwoEndsTells checks that at least one of the last two elements notifies the coordinator when
// both end at the same time.
func TestTheLastOfTwoEndsTells(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for range 10 {
		id := s.array(2, nil)
		s.tend(id)
		var all sync.WaitGroup
		poke := s.db.Hub().Subscribe(db.TopicPoke, string(id))
		var attempts [2]int
		for i := range 2 {
			e := s.element(id, i)
			attempts[i] = s.place(e, "m"+fmt.Sprint(i))
			s.claim(e, attempts[i], 0)
			s.run(e)
			s.exit(e, attempts[i], 0, exited(0))
		}
		for i := range 2 {
			e := s.element(id, i)
			all.Go(func() { _, _ = s.db.Attempts.Settle(t.Context(), e, attempts[i]) })
		}
		all.Wait()
		if !hears(t, poke) {
			t.Fatal("both ended, and nobody told")
		}
		poke.Close()
		if got := s.tend(id); got != berth.Succeeded {
			t.Fatalf("it is %s", got)
		}
	}
}

func TestAnArrayIsMadeInAWindow(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const size = lifecycle.ArrayWindow + 2500
	id := s.array(size, nil)
	s.tend(id)
	if got := s.tally(id); got != "7500, 5000 submitted, 2500 unmade" {
		t.Fatalf("tally is %s", got)
	}
	mustExec(t, s.pool, `UPDATE jobs SET state = 'queued', version = version + 1, actor = 'workflow' WHERE parent = $1 AND array_index < 1999`, id)
	mustExec(t, s.pool, `UPDATE jobs SET state = 'canceled', version = version + 1, actor = 'user:x' WHERE parent = $1 AND array_index < 1999`, id)
	untended := func() int {
		list, err := s.db.Parents.Untended(t.Context(), 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	if n := untended(); n != 1 {
		t.Errorf("the reconciler finds %d", n)
	}
	poke := s.db.Hub().Subscribe(db.TopicPoke, string(id))
	if s.cancel(s.element(id, 1999)); !hears(t, poke) { // the element at a milestone of the array
		t.Error("its coordinator was not told")
	}
	if s.cancel(s.element(id, 2000)); hears(t, poke) {
		t.Error("its coordinator was told of one of many")
	}
	s.tend(id)
	if got := s.tally(id); got != "7500, 5000 submitted, 2001 canceled, 499 unmade" {
		t.Errorf("tally is %s", got)
	}
	if n := untended(); n != 0 {
		t.Errorf("with nothing to do the reconciler finds %d", n)
	}
	// A canceled array never creates the remaining elements.
	if got := s.cancel(id); got != berth.Canceled {
		t.Errorf("canceled, it is %s", got)
	}
	if got := s.tally(id); got != "7500, 7001 canceled, 499 unmade" {
		t.Errorf("tally is %s", got)
	}
}

func TestCancelOfAnArrayEndsWhatWaitsAndStopsWhatRuns(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.array(4, nil)
	s.tend(id)
	s.finish(s.element(id, 0), 0)
	attempt := s.place(s.element(id, 1), "m0")
	s.claim(s.element(id, 1), attempt, 0)
	s.run(s.element(id, 1))
	machine := s.db.Hub().Subscribe(db.TopicMachine, "m0")
	poke := s.db.Hub().Subscribe(db.TopicPoke, string(s.element(id, 2)))
	if got := s.cancel(id); got != berth.Canceling {
		t.Errorf("it is %s", got)
	}
	if !hears(t, machine) || !hears(t, poke) {
		t.Error("the machine and the workflows of what waited were not told")
	}
	if got := s.tally(id); got != "4, 1 canceling, 1 succeeded, 2 canceled" {
		t.Errorf("tally is %s", got)
	}
	s.cancel(id) // a repeated cancel changes nothing
	s.exit(s.element(id, 1), attempt, 0, failure.Exit{Cause: failure.CauseOrdered, Code: 143, StartedAt: ranAt, FinishedAt: ranAt})
	s.settle(s.element(id, 1), attempt)
	if got := s.tend(id); got != berth.Canceled || s.job(id).Reason.Code != berth.ReasonCanceledByUser {
		t.Errorf("it is %s because of %+v", got, s.job(id).Reason)
	}
	early := s.array(3, nil) // canceled before the first reconcile
	if _, err := s.db.Parents.CancelElements(t.Context(), "", early, []spec.IndexRange{{First: 1, Last: 1}}, "user:test", nil); err != nil {
		t.Error(err)
	}
	if got := s.cancel(early); got != berth.Canceled || s.tally(early) != "3, 1 canceled, 2 unmade" {
		t.Errorf("it is %s: %s", got, s.tally(early))
	}
	s.freed()
}

func TestCancelOfARangeLeavesTheOthers(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.array(10, nil)
	cancel := func(text string) (int, error) {
		which, err := spec.ParseIndexes(text)
		if err != nil {
			t.Fatal(err)
		}
		return s.db.Parents.CancelElements(t.Context(), "default", id, which, "user:test", &berth.Reason{Code: berth.ReasonCanceledByUser})
	}
	if n, err := cancel("3-5"); n != 3 || err != nil { // before the elements are created
		t.Fatalf("canceled %d, %v", n, err)
	}
	s.tend(id)
	if got := s.tally(id); got != "10, 7 submitted, 3 canceled" {
		t.Errorf("tally is %s", got)
	}
	attempt := s.place(s.element(id, 7), "m0")
	s.claim(s.element(id, 7), attempt, 0)
	s.run(s.element(id, 7))
	for range 2 {
		if _, err := cancel("5-7,9"); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.tally(id); got != "10, 4 submitted, 1 canceling, 5 canceled" {
		t.Errorf("tally is %s", got)
	}
	if _, err := cancel("10-20"); berth.CodeOf(err) != berth.CodeInvalid {
		t.Errorf("indexes it does not have: %v", err)
	}
	if e := lastEvent(s, id); e.Kind != wire.EventCancelRequested || e.Actor != "user:test" {
		t.Errorf("last event is %+v", e)
	}
	s.exit(s.element(id, 7), attempt, 0, failure.Exit{Cause: failure.CauseOrdered, Code: 143, StartedAt: ranAt, FinishedAt: ranAt})
	s.settle(s.element(id, 7), attempt)
	for _, i := range []int{0, 1, 2, 8} {
		s.finish(s.element(id, i), 0)
	}
	if got := s.tend(id); got != berth.Failed || s.job(id).Reason.Message != "6 of 10 elements were canceled" {
		t.Errorf("it is %s because of %+v", got, s.job(id).Reason)
	}
	if _, _, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{Failed: true}, "user:test"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("what was canceled on purpose is run again: %v", err)
	}
}

func TestTooManyFailuresCancelTheRest(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	most := 1
	id := s.array(6, func(j *spec.Job) { j.Array.MaxFailures = &most })
	s.tend(id)
	poke := s.db.Hub().Subscribe(db.TopicPoke, string(id))
	s.finish(s.element(id, 0), 0)
	s.finish(s.element(id, 1), 1)
	if s.tend(id); hears(t, poke) || s.job(id).Status.Terminal() {
		t.Error("one failure, as many as may, ended it")
	}
	if s.finish(s.element(id, 2), 1); !hears(t, poke) {
		t.Error("its coordinator was not told")
	}
	if got := s.tend(id); got != berth.Failed || s.tally(id) != "6, 1 succeeded, 2 failed, 3 canceled" {
		t.Errorf("it is %s: %s", got, s.tally(id))
	}
	if r := s.job(id).Reason; r.Code != berth.ReasonElementsFailed || !strings.HasPrefix(r.Message, "2 of 6 elements failed, more than max_failures (1) allows: indexes 1-2") {
		t.Errorf("reason is %+v", r)
	} else if want := "run only what failed again: berth retry --failed " + string(id); r.Hint != want {
		t.Errorf("hint is %q, want %q: a newer array may have the same name", r.Hint, want)
	}
	again, created, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{Failed: true}, "user:test")
	if err != nil || !created || again.Indexes != "1-5" {
		t.Errorf("what failed, and what was given up for it, is %q, %v", again.Indexes, err)
	}
}

func TestRetryFailedRunsExactlyWhatFailed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.array(6, func(j *spec.Job) { j.Array.Parallel = 2 })
	if _, _, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{Failed: true}, "user:test"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a live one is retried: %v", err)
	}
	s.tend(id)
	for i, code := range []int{0, 1, 0, 0, 1, 1} {
		s.finish(s.element(id, i), code)
	}
	s.tend(id)
	for _, archived := range []bool{false, true} {
		if archived {
			mustExec(t, s.pool, `UPDATE allocations SET forgotten_at = now()`)
			s.archive(3) // the array and its two retries, and then the elements
			s.archive(9)
		}
		again, created, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{Failed: true}, "user:test")
		if err != nil || created == archived || again.Indexes != "1,4-5" || *again.RetryOf != id || again.Tally.Total != 3 {
			t.Fatalf("archived %t: created %t, %+v, %v", archived, created, again, err)
		}
		if archived {
			break
		}
		s.tend(again.ID)
		for _, i := range []int{1, 4, 5} {
			e := s.job(s.element(again.ID, i))
			if e.Spec.Env["BERTH_ARRAY_INDEX"] != fmt.Sprint(i) || e.Spec.Env["BERTH_ARRAY_SIZE"] != "6" {
				t.Errorf("element %d has %v", i, e.Spec.Env)
			}
			s.finish(e.ID, min(1, max(0, i-4))) // the last fails again
		}
		s.tend(again.ID)
		third, _, err := s.db.Retries.Retry(t.Context(), "default", again.ID, db.RetryOptions{Failed: true}, "user:test")
		if err != nil || third.Indexes != "5" {
			t.Errorf("the third is %+v, %v", third, err)
		}
		s.cancel(third.ID)
	}
	if j := s.job(id); j.Status != berth.Failed || j.Tally.ByStatus[berth.Failed] != 3 {
		t.Errorf("the archived one is %s, %+v", j.Status, j.Tally)
	}
}

func TestHoldPriorityAndReleaseReachTheElements(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.array(3, nil)
	s.tend(id)
	if err := s.db.Jobs.Hold(t.Context(), "default", id, "user:test"); err != nil {
		t.Fatal(err)
	}
	held := func() int {
		return one[int](s, `SELECT count(*)::int FROM jobs WHERE parent = $1 AND held AND held_at IS NOT NULL`, id)
	}
	if n := held(); n != 3 || !s.job(id).Held {
		t.Errorf("%d elements are held", n)
	}
	if e := lastEvent(s, s.element(id, 0)); e.Kind != wire.EventUpdated || e.Detail != "held with its parent" {
		t.Errorf("event is %+v", e)
	}
	high, limit := spec.PriorityHigh, spec.Duration(time.Minute)
	blue := "blue"
	if err := s.db.Jobs.Update(t.Context(), "default", id, spec.JobPatch{Priority: &high, TimeLimit: &limit, Labels: map[string]*string{"team": &blue}}, "user:test"); err != nil {
		t.Fatal(err)
	}
	if e := s.job(s.element(id, 2)); e.Priority != high || e.Labels["team"] != "blue" || *e.Spec.Priority != high || e.Spec.TimeLimit != limit {
		t.Errorf("element is %+v with %+v", e, e.Spec)
	}
	if err := s.db.Jobs.Release(t.Context(), "default", id, "user:test"); err != nil {
		t.Fatal(err)
	}
	if n := held(); n != 0 || s.job(id).Held {
		t.Errorf("%d elements are held after the release", n)
	}
}

func TestListsShowArraysAndNotTheirElements(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, plain := s.array(5, nil), s.submit(nil)
	s.tend(id)
	list := func(f db.JobFilter) []string {
		var got []string
		for {
			f.Limit = 2
			jobs, next, err := s.db.Jobs.List(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range jobs {
				text := string(j.ID)
				if j.ArrayIndex != nil {
					text = fmt.Sprint(*j.ArrayIndex)
				}
				got = append(got, text)
			}
			if f.Cursor = next; next == "" {
				return got
			}
		}
	}
	if diff := cmp.Diff([]string{string(plain), string(id)}, list(db.JobFilter{Tenant: "default"})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"0", "1", "2", "3", "4"}, list(db.JobFilter{Parent: &id})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"1", "2", "4"}, list(db.JobFilter{Parent: &id,
		Index: []spec.IndexRange{{First: 1, Last: 2}, {First: 4, Last: 9}}})); diff != "" {
		t.Error(diff)
	}
}

// TestElementsAndNotTheirArrayCountAgainstMaxQueued checks that max_queued counts elements and not their
// array, and that the array waits for room in the quota.
func TestElementsAndNotTheirArrayCountAgainstMaxQueued(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mustExec(t, s.pool, `UPDATE tenants SET max_queued = 3 WHERE id = 'default'`)
	id := s.array(5, nil)
	s.tend(id)
	if got := s.tally(id); got != "5, 3 submitted, 2 unmade" {
		t.Errorf("tally is %s", got)
	}
	_, _, err := s.db.Jobs.Submit(t.Context(), db.Submission{Tenant: "default", Spec: s.spec(nil), Actor: "user:test"})
	if !berth.IsSlug(err, berth.SlugQuota) {
		t.Errorf("one more: %v", err)
	}
	s.finish(s.element(id, 0), 0)
	s.tend(id)
	if got := s.tally(id); got != "5, 3 submitted, 1 succeeded, 1 unmade" {
		t.Errorf("tally is %s", got)
	}
}

func TestParentsHaveAStateMachineOfTheirOwn(t *testing.T) {
	t.Parallel()
	pool := open(t)
	var got []string
	if err := pool.QueryRow(t.Context(), `SELECT parent_transitions()`).Scan(&got); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, tr := range berth.ParentTransitions {
		if tr.From != "" {
			want = append(want, string(tr.From)+">"+string(tr.To))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("berth.ParentTransitions and parent_transitions() differ (-code +database):\n%s", diff)
	}
	s := newStage(t)
	id := s.array(2, nil)
	refuses(t, s.pool, "BT004", `UPDATE jobs SET state = 'running', version = version + 1 WHERE id = $1`, id)
	refuses(t, s.pool, "BT002", `UPDATE jobs SET attempt = 1 WHERE id = $1`, id)
	refuses(t, s.pool, "BT010", `UPDATE jobs SET kind = 'job' WHERE id = $1`, id)
	refuses(t, s.pool, "23514", `UPDATE jobs SET expanded = 3 WHERE id = $1`, id)
	s.tend(id)
	refuses(t, s.pool, "BT010", `UPDATE jobs SET array_index = 7 WHERE parent = $1 AND array_index = 0`, id)
}

// TestArraysOfAFullTenantStarveNobody checks that arrays whose tenant has reached max_queued do not delay
// other parents, even if they fill a whole batch of the reconciler.
func TestArraysOfAFullTenantStarveNobody(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	quota := func(most int) {
		t.Helper()
		if err := s.db.Tenants.SetQuota(t.Context(), spec.Quota{Tenant: "default", MaxQueued: &most}); err != nil {
			t.Fatal(err)
		}
	}
	var full []berth.JobID
	for range 3 {
		full = append(full, s.array(2, nil))
	}
	quota(1)
	for _, id := range full {
		s.tend(id)
	}
	s.newTenant("lab", "")
	jobSpec := s.spec(nil)
	jobSpec.Array = &spec.Array{Size: 1}
	job, _, err := s.db.Jobs.Submit(t.Context(), db.Submission{Tenant: "lab", Spec: jobSpec.WithDefaults(), Actor: "user:test"})
	if err != nil {
		t.Fatal(err)
	}
	s.tend(job.ID)
	s.finish(s.element(job.ID, 0), 0)
	s.untended(job.ID)
	s.tend(job.ID)
	s.untended()
	quota(5)
	s.untended(full...)
	for _, id := range full {
		s.tend(id)
	}
	s.untended()
}

// TestAChangeOfACancelingArrayTellsSoManyToStop checks that one update or reconcile of a canceling array
// stops a bounded number of elements, because the caller of an API request waits for the answer.
func TestAChangeOfACancelingArrayTellsSoManyToStop(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const size = 2 * db.FollowUp
	id := s.array(size, nil)
	s.tend(id)
	for _, state := range []berth.State{berth.Queued, berth.Scheduled, berth.Running} {
		mustExec(t, s.pool, `UPDATE jobs SET state = $2, version = version + 1 WHERE parent = $1`, id, state)
	}
	for _, state := range []berth.State{berth.Running, berth.Canceling} {
		mustExec(t, s.pool, `UPDATE jobs SET state = $2, version = version + 1 WHERE id = $1`, id, state)
	}
	told := func() int {
		return one[int](s, `SELECT count(*)::int FROM jobs WHERE parent = $1 AND state = 'canceling'`, id)
	}
	left := 30
	if state, err := s.db.Parents.ReconcileThrough(t.Context(), id, &left); err != nil || state != berth.Canceling || left != 0 || told() != 30 {
		t.Errorf("with 30 left %d elements were told, %d are left, it is %s: %v", told(), left, state, err)
	}
	if _, err := s.db.Parents.ReconcileThrough(t.Context(), id, &left); err != nil || told() != 30 {
		t.Errorf("with none left %d elements were told: %v", told()-30, err)
	}
	value := "x"
	if err := s.db.Jobs.Update(t.Context(), "default", id, spec.JobPatch{Labels: map[string]*string{"a": &value}}, "user:test"); err != nil {
		t.Fatal(err)
	}
	if n := told() - 30; n != db.FollowUp {
		t.Errorf("a change told %d elements, want %d", n, db.FollowUp)
	}
	s.tend(id)
	if n := told(); n != size {
		t.Errorf("%d of %d elements were told in the end", n, size)
	}
}
