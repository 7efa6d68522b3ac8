package e2e_test

import (
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	workflowpb "go.temporal.io/api/workflow/v1"

	"berth"
	"berth/wire"
)

// pending is the activity that waits for the job's only member; nil while there is
// none.
func (s *stack) pending(t *testing.T, id berth.JobID) *workflowpb.PendingActivityInfo {
	t.Helper()
	x, err := s.temporal.DescribeWorkflowExecution(t.Context(), berth.JobWorkflowID(id), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range x.GetPendingActivities() {
		if a.GetActivityType().GetName() == wire.ActivityRun.Name() {
			return a
		}
	}
	return nil
}

// metric reads one figure of the control plane.
func (s *stack) metric(t *testing.T, name string) float64 {
	t.Helper()
	r, err := http.Get(s.url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("no figure %s in:\n%s", name, text)
	}
	v, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// A running member costs its workflow's history nothing, however long it runs:
// neither heartbeats nor the loss of the replica that waits write an event. Its
// waiter comes again under the limit of calls to Temporal.
func TestTheHistoryOfARunningJobDoesNotGrow(t *testing.T) {
	t.Parallel()
	s := start(t, quick, "m1")
	const reattached = `berth_dependency_calls_total{class="reattach",dependency="temporal"}`
	if n := s.metric(t, reattached); n != 0 {
		t.Fatalf("%v waiters have come again before the first", n)
	}
	s.bouncy.Store(true)
	id := s.submit(t, jobSpec("lasts", "trap-term", "0"))
	s.becomes(t, id, berth.Running)
	var first time.Time
	until(t, "another try of its waiter sends heartbeats", func() bool {
		a := s.pending(t, id)
		if a.GetAttempt() < 2 || a.GetLastHeartbeatTime() == nil {
			return false
		}
		first = a.GetLastHeartbeatTime().AsTime()
		return true
	})
	if n := s.metric(t, reattached); n < 1 {
		t.Errorf("%v waiters have come again under the limit", n)
	}
	if n := s.metric(t, `berth_waiters{state="waiting"}`); n != 1 {
		t.Errorf("%v waiters wait", n)
	}
	before := s.history(t, id)
	until(t, "it sends another heartbeat", func() bool {
		return s.pending(t, id).GetLastHeartbeatTime().AsTime().After(first)
	})
	if after := s.history(t, id); len(after.GetEvents()) != len(before.GetEvents()) {
		t.Errorf("events between two heartbeats: %v", kinds(after)[len(before.GetEvents()):])
	}
	s.finish(t, id)
	job := s.ends(t, id, berth.Succeeded)
	h := s.history(t, id)
	waiters := slices.DeleteFunc(steps(h), func(step string) bool { return !strings.HasPrefix(step, wire.ActivityRun.Name()+" on ") })
	// Twice the usual length: a crowded machine delays pokes, which adds events.
	if len(job.Attempts) != 1 || len(waiters) != 1 || len(h.GetEvents()) > 2*mostEvents {
		t.Errorf("attempts %+v, waiters %v, %d events: %v", job.Attempts, waiters, len(h.GetEvents()), kinds(h))
	}
}

// Temporal marks a task as started before a worker has it, and may lose it between the
// two. The leader finds the member for which no replica waits, long before Temporal
// misses the first heartbeat.
func TestALostWaiterComesAgainWithoutAnEvent(t *testing.T) {
	t.Parallel()
	ages := quick
	ages.Unwaited = time.Second
	s := start(t, ages, "m1")
	s.lossy.Store(true)
	id := s.submit(t, jobSpec("lasts", "trap-term", "0"))
	s.becomes(t, id, berth.Running)
	until(t, "the task of its waiter is lost", func() bool { return s.pending(t, id).GetLastStartedTime() != nil })
	before := s.history(t, id)
	s.lossy.Store(false)
	until(t, "it has a waiter", func() bool { return s.metric(t, `berth_waiters{state="waiting"}`) == 1 })
	if after := s.history(t, id); len(after.GetEvents()) != len(before.GetEvents()) {
		t.Errorf("events of the repair: %v", kinds(after)[len(before.GetEvents()):])
	}
	s.finish(t, id)
	if job := s.ends(t, id, berth.Succeeded); len(job.Attempts) != 1 {
		t.Errorf("attempts %+v", job.Attempts)
	}
}
