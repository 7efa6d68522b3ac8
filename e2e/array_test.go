package e2e_test

import (
	"flag"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"berth"
	apiclient "berth/api/client"
	"berth/spec"
	"berth/wire"
)

// A run of 5,000 takes minutes: -elements 5000 -parallel-elements 50.
var (
	elements = flag.Int("elements", 150, "of the large array")
	atOnce   = flag.Int("parallel-elements", 20, "of them that may hold capacity at once")
)

// mostArrayEvents bounds the history of an array's coordinator, for any number of elements.
const mostArrayEvents = 300

// The claims share one stack, as those about jobs do.
func TestArrays(t *testing.T) {
	t.Parallel()
	s := start(t, quick, "m0", "m1")
	for _, claim := range []struct {
		says string
		test func(*testing.T, *stack)
	}{
		{"no more elements than may hold capacity at once, and a retry runs exactly those that failed", sweeps},
		{"a coordinator that is terminated is rebuilt from the rows", rebuildsCoordinator},
		{"elements, and a whole array, are canceled", cancelsArrays},
	} {
		t.Run(claim.says, func(t *testing.T) { claim.test(t, s) })
	}
}

func sweeps(t *testing.T, s *stack) {
	n, parallel := *elements, *atOnce
	bad := []int{0, 3, n / 4, n / 2, n/2 + 1, n - 20, n - 1}
	command := []string{"exit-at", spec.EnvArrayIndex, "3"}
	for _, i := range bad {
		command = append(command, strconv.Itoa(i))
	}
	j := jobSpec("sweep", command...)
	j.Array = &spec.Array{Size: n, Parallel: parallel}
	began := time.Now()
	id := s.startTogether(t, parallel, func() berth.JobID { return s.submit(t, j) })
	for some := 500; some < n; some += 500 { // each of which has the time of one wait
		until(t, fmt.Sprintf("%d elements have ended", some), func() bool {
			a := s.job(t, id)
			return a.Tally != nil && a.Tally.Ended() >= some
		})
	}
	array := s.ends(t, id, berth.Failed)
	t.Logf("%d elements ended %s after the submit, %.0f a second", n, time.Since(began).Round(100*time.Millisecond), float64(n)/time.Since(began).Seconds())
	want := wire.Tally{Total: n, ByStatus: map[berth.State]int{berth.Succeeded: n - len(bad), berth.Failed: len(bad)}}
	if diff := cmp.Diff(&want, array.Tally); diff != "" {
		t.Errorf("tally (-want +got):\n%s", diff)
	}
	if most := s.mostAtOnce(t, id); most != parallel {
		t.Errorf("at most %d elements held capacity at once, want %d", most, parallel)
	}
	h := s.history(t, id)
	if events := len(h.GetEvents()); events > mostArrayEvents {
		t.Errorf("the coordinator's history has %d events", events)
	} else {
		t.Logf("the coordinator's history has %d events", events)
	}
	record(t, "array", h)

	page, err := s.api.Jobs(t.Context(), apiclient.JobsQuery{Name: "sweep"})
	if err != nil || len(page.Items) != 1 || page.Items[0].Tally.Total != n {
		t.Errorf("the list has %d jobs, %v", len(page.Items), err)
	}
	again, err := s.api.Retry(t.Context(), id, apiclient.RetryOptions{Failed: true})
	if err != nil {
		t.Fatal(err)
	}
	if twice, err := s.api.Retry(t.Context(), id, apiclient.RetryOptions{Failed: true}); err != nil || twice.ID != again.ID {
		t.Errorf("retried twice it is %s and %s, %v", again.ID, twice.ID, err)
	}
	s.ends(t, again.ID, berth.Failed)
	page, err = s.api.Jobs(t.Context(), apiclient.JobsQuery{Parent: again.ID})
	if err != nil {
		t.Fatal(err)
	}
	var ran []int
	for _, e := range page.Items {
		ran = append(ran, *e.ArrayIndex)
		if e.Attempt != 1 || e.ExitCode == nil || *e.ExitCode != 3 {
			t.Errorf("element %d is %+v", *e.ArrayIndex, e)
		}
	}
	slices.Sort(ran)
	if diff := cmp.Diff(bad, ran); diff != "" {
		t.Errorf("what ran again (-want +got):\n%s", diff)
	}
}

// startTogether submits an array while all machines are drained, and undrains them
// once the whole window is queued. One plan then places the window, so the array
// reaches its limit however fast its elements end.
func (s *stack) startTogether(t *testing.T, parallel int, submit func() berth.JobID) berth.JobID {
	t.Helper()
	for m := range s.engines {
		if _, err := s.api.Drain(t.Context(), m, wire.DrainRequest{Reason: "a test"}); err != nil {
			t.Fatal(err)
		}
	}
	id := submit()
	until(t, "as many elements wait as may hold capacity", func() bool {
		a := s.job(t, id)
		return a.Tally != nil && a.Tally.ByStatus[berth.Queued] >= parallel
	})
	for m := range s.engines {
		if _, err := s.api.Undrain(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	return id
}

// mostAtOnce returns the largest number of an array's elements that held capacity at
// the same time, by their events. It fails the test if one holds capacity in the end.
func (s *stack) mostAtOnce(t *testing.T, array berth.JobID) (most int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), `
		SELECT e.from_state, e.to_state
		FROM job_events e
		JOIN jobs j ON j.id = e.job
		WHERE j.parent = $1 AND e.kind = 'state' AND e.from_state IS NOT NULL
		ORDER BY e.at, e.to_state = 'scheduled'`, array)
	if err != nil {
		t.Fatal(err)
	}
	var from, to berth.State
	now := 0
	_, err = pgx.ForEachRow(rows, []any{&from, &to}, func() error {
		switch {
		case to.HoldsCapacity() && !from.HoldsCapacity():
			now++
		case from.HoldsCapacity() && !to.HoldsCapacity():
			now--
		}
		most = max(most, now)
		return nil
	})
	if err != nil || now != 0 {
		t.Errorf("%d elements hold capacity in the end, %v; want 0", now, err)
	}
	return most
}

func rebuildsCoordinator(t *testing.T, s *stack) {
	j := jobSpec("rebuilt", "sleep", "300ms")
	j.Array = &spec.Array{Size: 30, Parallel: 5}
	id := s.submit(t, j)
	s.becomes(t, id, berth.Running)
	if _, err := s.api.Hold(t.Context(), id); err != nil { // it does not end meanwhile
		t.Fatal(err)
	}
	for range 3 {
		if err := s.temporal.TerminateWorkflow(t.Context(), berth.JobWorkflowID(id), "", "test"); err != nil {
			t.Fatal(err)
		}
		until(t, "another coordinator is open", func() bool {
			x, err := s.temporal.DescribeWorkflowExecution(t.Context(), berth.JobWorkflowID(id), "")
			return err == nil && x.GetWorkflowExecutionInfo().GetStatus().String() != "Terminated"
		})
	}
	if _, err := s.api.Release(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	array := s.ends(t, id, berth.Succeeded)
	if array.Tally.ByStatus[berth.Succeeded] != 30 || array.Tally.Total != 30 {
		t.Errorf("tally is %+v", array.Tally)
	}
	if most := s.mostAtOnce(t, id); most > 5 {
		t.Errorf("at most %d elements held capacity at once, want 5", most)
	}
}

func cancelsArrays(t *testing.T, s *stack) {
	j := jobSpec("canceled", "sleep", "1h")
	j.Array = &spec.Array{Size: 20, Parallel: 4}
	id := s.submit(t, j)
	element := func(index int) wire.Job {
		page, err := s.api.Jobs(t.Context(), apiclient.JobsQuery{Parent: id, Index: strconv.Itoa(index)})
		if err != nil || len(page.Items) != 1 {
			t.Fatalf("element %d: %d, %v", index, len(page.Items), err)
		}
		return page.Items[0]
	}
	until(t, "as many run as may", func() bool {
		a := s.job(t, id)
		return a.Tally != nil && a.Tally.ByStatus[berth.Running] == 4
	})
	until(t, "an element tells that it waits for its siblings", func() bool { // any of them may be queued, and start, before others
		page, err := s.api.Jobs(t.Context(), apiclient.JobsQuery{Parent: id, Status: []berth.State{berth.Queued}, Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Items) == 0 {
			return false
		}
		e, err := s.api.Explain(t.Context(), page.Items[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(e.Blockers, func(b wire.Blocker) bool { return b.Code == "parallel" })
	})
	if _, err := s.api.CancelElements(t.Context(), id, "0-1,19"); err != nil {
		t.Fatal(err)
	}
	until(t, "two others run in their place", func() bool {
		a := s.job(t, id)
		return a.Tally.ByStatus[berth.Canceled] == 3 && a.Tally.ByStatus[berth.Running] == 4
	})
	if _, err := s.api.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	array := s.ends(t, id, berth.Canceled)
	if got := fmt.Sprint(array.Tally.ByStatus); got != "map[canceled:20]" {
		t.Errorf("tally is %s", got)
	}
	for i := range 20 {
		s.ends(t, element(i).ID, berth.Canceled)
	}
	if most := s.mostAtOnce(t, id); most != 4 {
		t.Errorf("at most %d elements held capacity at once, want 4", most)
	}
}
