package lifecycle_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/lifecycle"
	"berth/wire"
)

// counts are children by state.
type counts map[berth.State]int

// parent returns a parent that has created all the counted children, and all its children
// are counted.
func parent(kind berth.Kind, state berth.State, by counts, changes ...func(*lifecycle.Parent)) lifecycle.Parent {
	n := 0
	for _, k := range by {
		n += k
	}
	p := lifecycle.Parent{ID: "p1", Kind: kind, State: state, Expanded: n,
		Tally: wire.Tally{Total: n, ByStatus: by}}
	for _, change := range changes {
		change(&p)
	}
	return p
}

func array(state berth.State, by counts, changes ...func(*lifecycle.Parent)) lifecycle.Parent {
	return parent(berth.KindArray, state, by, changes...)
}

func pipeline(state berth.State, by counts, changes ...func(*lifecycle.Parent)) lifecycle.Parent {
	return parent(berth.KindPipeline, state, by, changes...)
}

// unmade adds children that are not created yet.
func unmade(n int) func(*lifecycle.Parent) {
	return func(p *lifecycle.Parent) { p.Tally.Total += n; p.Tally.Unmade += n }
}

func tolerates(failures int) func(*lifecycle.Parent) {
	return func(p *lifecycle.Parent) { p.MaxFailures = &failures }
}

var (
	canceledBy = &berth.Reason{Code: berth.ReasonCanceledByUser, Message: "canceled by user:ann"}

	held     = func(p *lifecycle.Parent) { p.Held = true }
	blocked  = func(p *lifecycle.Parent) { p.Blocked = true }
	inside   = func(p *lifecycle.Parent) { p.HasParent = true }
	asked    = func(p *lifecycle.Parent) { p.CancelAsked, p.Reason = true, canceledBy }
	overdraw = tolerates(0)
)

func TestAPassDoesWhatIsDueInOrder(t *testing.T) {
	t.Parallel()
	tooMany := func(failed, total string) *berth.Reason {
		return &berth.Reason{Code: berth.ReasonElementsFailed,
			Message: failed + " of " + total + " elements failed, more than max_failures (0) allows",
			Hint:    "run only what failed again: berth retry --failed p1"}
	}
	stepFailed := &berth.Reason{Code: berth.ReasonStepsFailed, Message: "1 of 2 steps failed",
		Hint: "run only what failed again: berth retry --failed p1"}
	for _, c := range []struct {
		claim string
		p     lifecycle.Parent
		want  lifecycle.Pass
	}{
		{"a new array is queued and creates elements", array(berth.Submitted, nil, unmade(3)),
			lifecycle.Pass{Queue: true, Then: lifecycle.ActExpand}},
		{"a new pipeline is queued and starts steps", pipeline(berth.Submitted, counts{berth.Submitted: 2}),
			lifecycle.Pass{Queue: true, Then: lifecycle.ActAdvance, Unblock: true}},
		{"a blocked step is left alone", pipeline(berth.Submitted, counts{berth.Submitted: 2}, blocked),
			lifecycle.Pass{Then: lifecycle.ActRest}},
		{"a blocked step is held with its parent", pipeline(berth.Submitted, counts{berth.Submitted: 2}, blocked, held),
			lifecycle.Pass{Hold: true, Then: lifecycle.ActRest}},
		{"a blocked array is left alone", array(berth.Submitted, nil, unmade(3), blocked),
			lifecycle.Pass{Then: lifecycle.ActRest}},
		{"an array with room creates more", array(berth.Running, counts{berth.Running: 1}, unmade(2)),
			lifecycle.Pass{Then: lifecycle.ActExpand}},
		{"an array without live elements creates more", array(berth.Running, counts{berth.Succeeded: 1}, unmade(2)),
			lifecycle.Pass{Then: lifecycle.ActExpand}},
		{"a whole array rests while elements live", array(berth.Running, counts{berth.Running: 1, berth.Failed: 1}),
			lifecycle.Pass{Then: lifecycle.ActRest}},
		{"a held array holds its elements and creates more",
			array(berth.Running, counts{berth.Queued: 1}, unmade(2), held),
			lifecycle.Pass{Hold: true, Then: lifecycle.ActExpand}},
		{"a whole held array holds its elements", array(berth.Queued, counts{berth.Queued: 1}, held),
			lifecycle.Pass{Hold: true, Then: lifecycle.ActRest}},
		{"a held pipeline holds its steps and starts none", pipeline(berth.Running, counts{berth.Submitted: 2}, held),
			lifecycle.Pass{Hold: true, Then: lifecycle.ActAdvance}},
		{"a pipeline goes on after a failed step that it tolerates",
			pipeline(berth.Running, counts{berth.Failed: 1, berth.Submitted: 1}),
			lifecycle.Pass{Then: lifecycle.ActAdvance, Unblock: true}},
		{"an array whose elements have all ended ends",
			array(berth.Running, counts{berth.Succeeded: 2, berth.Failed: 1}),
			lifecycle.Pass{Then: lifecycle.ActEnd}},
		{"a held array ends as well", array(berth.Running, counts{berth.Succeeded: 2}, held),
			lifecycle.Pass{Then: lifecycle.ActEnd}},
		{"an array whose elements were canceled one by one ends from submitted",
			array(berth.Submitted, counts{berth.Canceled: 2}),
			lifecycle.Pass{Queue: true, Then: lifecycle.ActEnd}},
		{"a pipeline whose steps have all ended ends", pipeline(berth.Running, counts{berth.Succeeded: 2}),
			lifecycle.Pass{Then: lifecycle.ActEnd}},
		{"as many failures as allowed change nothing",
			array(berth.Running, counts{berth.Failed: 2, berth.Running: 1}, tolerates(2)),
			lifecycle.Pass{Then: lifecycle.ActRest}},
		{"one more failure stops the live elements",
			array(berth.Running, counts{berth.Failed: 1, berth.Running: 1}, overdraw),
			lifecycle.Pass{Fail: tooMany("1", "2"), Then: lifecycle.ActStop}},
		{"one more failure ends an array that has no live element",
			array(berth.Running, counts{berth.Failed: 1}, unmade(2), overdraw),
			lifecycle.Pass{Fail: tooMany("1", "3"), Then: lifecycle.ActEnd}},
		{"too many failures of a whole array that has ended are no cancellation",
			array(berth.Running, counts{berth.Failed: 2}, overdraw), lifecycle.Pass{Then: lifecycle.ActEnd}},
		{"a canceling array does not fail a second time",
			array(berth.Canceling, counts{berth.Failed: 1, berth.Canceling: 1}, overdraw),
			lifecycle.Pass{Then: lifecycle.ActStop}},
		{"a failing pipeline cancels hopeless steps before the others",
			pipeline(berth.Running, counts{berth.Failed: 1, berth.Running: 1}, overdraw),
			lifecycle.Pass{Fail: stepFailed, CancelHopeless: true, Then: lifecycle.ActStop}},
		{"a canceling array stops and holds nothing",
			array(berth.Canceling, counts{berth.Queued: 1}, unmade(2), asked, held),
			lifecycle.Pass{Then: lifecycle.ActStop}},
		{"a canceling array creates no more elements",
			array(berth.Canceling, counts{berth.Canceled: 1}, unmade(2), asked),
			lifecycle.Pass{Then: lifecycle.ActEnd}},
		{"a canceling pipeline stops", pipeline(berth.Canceling, counts{berth.Running: 1, berth.Submitted: 1}, asked),
			lifecycle.Pass{CancelHopeless: true, Then: lifecycle.ActStop}},
		{"a canceling pipeline ends", pipeline(berth.Canceling, counts{berth.Canceled: 2}, asked),
			lifecycle.Pass{CancelHopeless: true, Then: lifecycle.ActEnd}},
	} {
		got := lifecycle.Reconcile(c.p)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.claim, diff)
		}
		if act := got.Last(false); act != c.want.Then {
			t.Errorf("%s: without hopeless steps the pass ends with %q", c.claim, act)
		}
		if act := got.Last(true); act != lifecycle.ActStop {
			t.Errorf("%s: after hopeless steps the pass ends with %q, want the stop of the others", c.claim, act)
		}
	}
}

func TestElementsAreCreatedWithinTheWindowAndTheQuota(t *testing.T) {
	t.Parallel()
	next := func(n int) []int {
		list := make([]int, n)
		for i := range list {
			list[i] = 100 + i
		}
		return list
	}
	full := lifecycle.ExpandBatch
	quota := func(n int) *int { return &n }
	for _, c := range []struct {
		claim string
		live  int
		next  []int
		quota *int
		want  int
		more  bool
	}{
		{"all that are left", 0, next(3), nil, 3, false},
		{"a full batch", 0, next(full), nil, full, true},
		{"none is left", 0, nil, nil, 0, false},
		{"a quota bounds them", 0, next(5), quota(2), 2, false},
		{"a used quota allows none", 0, next(5), quota(0), 0, false},
		{"a large quota bounds nothing", 0, next(full), quota(full + 1), full, true},
		{"the window bounds them", lifecycle.ArrayWindow - 2, next(5), nil, 2, false},
		{"a full window allows none", lifecycle.ArrayWindow, next(5), nil, 0, false},
		{"more live elements than the window allow none", lifecycle.ArrayWindow + 1, next(5), nil, 0, false},
		{"the smaller bound counts", lifecycle.ArrayWindow - 4, next(5), quota(3), 3, false},
	} {
		p := array(berth.Running, counts{berth.Queued: c.live}, unmade(len(c.next)))
		p.Next = c.next
		got, more := p.Elements(c.quota)
		if len(got) != c.want || more != c.more || len(got) > 0 && got[0] != 100 {
			t.Errorf("%s: %d elements, more %v, want %d and %v", c.claim, len(got), more, c.want, c.more)
		}
	}
}

func TestOnlyEndedChildrenAreNotLive(t *testing.T) {
	t.Parallel()
	by := counts{}
	for _, s := range berth.States {
		by[s] = 1
	}
	if got, want := array(berth.Running, by, unmade(5)).Live(), len(berth.States)-3; got != want {
		t.Errorf("%d are live, want %d", got, want)
	}
}

func TestAQueuedPipelineMayHaveBegunOnceAStepIsNotReady(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		claim string
		state berth.State
		ready int
		want  bool
	}{
		{"all steps are ready", berth.Queued, 3, false},
		{"a step has gone on", berth.Queued, 2, true},
		{"it runs already", berth.Running, 2, false},
	} {
		if got := pipeline(c.state, counts{berth.Submitted: 3}).MayHaveBegun(c.ready); got != c.want {
			t.Errorf("%s: may have begun is %v", c.claim, got)
		}
	}
}

func TestAParentInsideAnotherReportsItsStartAndItsEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		claim  string
		before berth.State
		p      lifecycle.Parent
		want   bool
	}{
		{"a start", berth.Queued, array(berth.Running, nil, inside), true},
		{"an end", berth.Running, array(berth.Failed, nil, inside), true},
		{"no change", berth.Running, array(berth.Running, nil, inside), false},
		{"a queued one has not started", berth.Submitted, array(berth.Queued, nil, inside), false},
		{"a canceling one has not ended", berth.Running, array(berth.Canceling, nil, inside), false},
		{"a parent of its own has none around it", berth.Running, array(berth.Succeeded, nil), false},
	} {
		if got := c.p.News(c.before); got != c.want {
			t.Errorf("%s: news is %v", c.claim, got)
		}
	}
}

func TestACancelEndsOnlyAParentWithoutLiveChildren(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		claim string
		p     lifecycle.Parent
		want  berth.State
	}{
		{"an array without elements", array(berth.Submitted, nil, unmade(3)), berth.Canceled},
		{"an array whose created elements were canceled", array(berth.Submitted, counts{berth.Canceled: 1}, unmade(2)),
			berth.Canceled},
		{"a pipeline, which has its steps from the first", pipeline(berth.Submitted, counts{berth.Submitted: 2}),
			berth.Canceling},
		{"an array whose workflow knows it", array(berth.Queued, nil, unmade(3)), berth.Canceling},
		{"a running array", array(berth.Running, counts{berth.Running: 1}), berth.Canceling},
	} {
		if got := c.p.AfterCancel(); got != c.want {
			t.Errorf("%s becomes %s, want %s", c.claim, got, c.want)
		}
		if !mayBecome(c.p.State, c.p.AfterCancel()) {
			t.Errorf("%s: the state machine of parents forbids %s", c.claim, c.p.AfterCancel())
		}
	}
}

// mayBecome reports whether the state machine of parents allows a change.
func mayBecome(from, to berth.State) bool {
	for _, tr := range berth.ParentTransitions {
		if tr.From == from && tr.To == to {
			return true
		}
	}
	return false
}

func TestTheEndOfAParentFollowsFromItsChildren(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		claim  string
		p      lifecycle.Parent
		want   berth.State
		reason *berth.Reason
	}{
		{"all succeeded", array(berth.Running, counts{berth.Succeeded: 2}), berth.Succeeded, nil},
		{"all had succeeded before the cancel", array(berth.Canceling, counts{berth.Succeeded: 2}, asked),
			berth.Succeeded, nil},
		{"a cancel is kept with its reason",
			array(berth.Canceling, counts{berth.Succeeded: 1, berth.Canceled: 1}, asked),
			berth.Canceled, canceledBy},
		{"a cancel counts more than a failure",
			array(berth.Canceling, counts{berth.Failed: 1, berth.Canceled: 1}, asked),
			berth.Canceled, canceledBy},
		{"a failure", array(berth.Running, counts{berth.Succeeded: 1, berth.Failed: 1}), berth.Failed, nil},
		{"an element that was canceled by itself", array(berth.Running, counts{berth.Succeeded: 1, berth.Canceled: 1}),
			berth.Failed, nil},
		{"elements that were never created", array(berth.Canceling, counts{berth.Succeeded: 1}, unmade(1), overdraw),
			berth.Failed, nil},
	} {
		state, reason := c.p.End()
		if diff := cmp.Diff(c.reason, reason); state != c.want || diff != "" {
			t.Errorf("%s: ends %s, want %s, reason (-want +got):\n%s", c.claim, state, c.want, diff)
		}
		if !mayBecome(c.p.State, state) {
			t.Errorf("%s: the state machine of parents forbids %s to %s", c.claim, c.p.State, state)
		}
	}
}

func TestAFailureNamesItsChildren(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		p       lifecycle.Parent
		indexes []int
		steps   string
		want    string
		code    berth.ReasonCode
		retry   string // the job that the hint names; "": no hint
	}{
		{p: array(berth.Running, counts{berth.Failed: 3, berth.Succeeded: 7}), indexes: []int{1, 4, 5},
			want: "3 of 10 elements failed: indexes 1,4-5", code: berth.ReasonElementsFailed, retry: "p1"},
		{p: array(berth.Running, counts{berth.Failed: 3, berth.Succeeded: 7}), indexes: []int{1, 4},
			want: "3 of 10 elements failed: indexes 1,4, …", code: berth.ReasonElementsFailed, retry: "p1"},
		{p: array(berth.Running, counts{berth.Failed: 3}, unmade(7), overdraw),
			want: "3 of 10 elements failed, more than max_failures (0) allows", code: berth.ReasonElementsFailed,
			retry: "p1"},
		{p: array(berth.Running, counts{berth.Canceled: 2, berth.Succeeded: 1}),
			want: "2 of 3 elements were canceled", code: berth.ReasonElementsFailed},
		{p: array(berth.Running, counts{berth.Failed: 1}, inside), want: "1 of 1 elements failed",
			code: berth.ReasonElementsFailed, retry: "p1"},
		{p: pipeline(berth.Running, counts{berth.Failed: 2, berth.Canceled: 1}), steps: "train, eval",
			want: "2 of 3 steps failed: train, eval", code: berth.ReasonStepsFailed, retry: "p1"},
		{p: pipeline(berth.Running, counts{berth.Canceled: 2, berth.Succeeded: 1}),
			want: "2 of 3 steps were canceled", code: berth.ReasonStepsFailed, retry: "p1"},
	} {
		hint := "run only what failed again: berth retry --failed " + c.retry
		if c.retry == "" {
			hint = ""
		}
		want := berth.Reason{Code: c.code, Message: c.want, Hint: hint}
		if diff := cmp.Diff(want, c.p.Failure(c.indexes, c.steps)); diff != "" {
			t.Errorf("reason (-want +got):\n%s", diff)
		}
	}
}

func TestChildrenStopForTheUserOrForTheirSiblings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		p    lifecycle.Parent
		want *berth.Reason
	}{
		{array(berth.Canceling, nil, asked), canceledBy},
		{pipeline(berth.Canceling, nil, asked), canceledBy},
		{array(berth.Canceling, nil), &berth.Reason{Code: berth.ReasonElementsFailed,
			Message: "more elements of the array failed than max_failures allows"}},
		{pipeline(berth.Canceling, nil), &berth.Reason{Code: berth.ReasonStepsFailed,
			Message: "another step of the pipeline failed"}},
	} {
		if diff := cmp.Diff(c.want, c.p.StopReason()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.p.Kind, diff)
		}
	}
}
