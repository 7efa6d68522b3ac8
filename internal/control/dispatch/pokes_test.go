package dispatch_test

import (
	"context"
	"sync"
	"testing"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/temporal"
	"google.golang.org/protobuf/types/known/timestamppb"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/dispatch"
	"berth/wire"
)

var (
	tenantKey = temporal.NewSearchAttributeKeyKeyword(berth.AttributeTenant)
	nameKey   = temporal.NewSearchAttributeKeyKeyword(wire.AttributeJobName)
	userKey   = temporal.NewSearchAttributeKeyKeyword(wire.AttributeUser)
)

const running = enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING

func jobID(t *testing.T) berth.JobID {
	t.Helper()
	return berth.NewJobID(time.Now())
}

func TestAPokeIsASignal(t *testing.T) {
	t.Parallel()
	d, s := dbtest.DB(t, db.Options{}), newServer()
	x := dispatch.New(s, d, never)
	run(t, x, d)
	id := jobID(t)
	s.change(func() { s.status[berth.JobWorkflowID(id)] = running })
	x.Poke(id)
	s.until(t, "signalled", func() bool { return len(s.signals) == 1 && s.signals[0] == "job/"+string(id)+" poke" })
	x.Poke(jobID(t)) // has no workflow, which is no trouble
	s.until(t, "tried", func() bool { return len(s.signals) == 2 })
	if !x.Healthy() {
		t.Error("a missing workflow made it unhealthy")
	}
}

func TestAPokeIsHandedToTheStepThatWaits(t *testing.T) {
	t.Parallel()
	d, s := dbtest.DB(t, db.Options{}), newServer()
	x := dispatch.New(s, d, never)
	run(t, x, d)
	id := jobID(t)
	news, done := x.Expect(id)
	x.Poke(id)
	x.Poke(id)
	<-news
	if done() {
		t.Error("two pokes at once are two news")
	}
	news, done = x.Expect(id)
	x.Poke(id)
	if !done() {
		t.Error("a poke that came before the end of the wait is lost")
	}
	if len(news) != 0 {
		t.Error("told twice")
	}
	x.Poke(id)
	s.until(t, "signalled after the wait", func() bool { return len(s.signals) == 1 })
}

// With any timing, a poke is either handed over or signalled.
func TestNoPokeFallsInBetween(t *testing.T) {
	t.Parallel()
	d, s := dbtest.DB(t, db.Options{}), newServer()
	x := dispatch.New(s, d, never)
	run(t, x, d)
	const n = 500
	handed := 0
	for range n {
		id := jobID(t)
		var wg sync.WaitGroup
		wg.Go(func() { x.Poke(id) })
		wg.Go(func() {
			news, done := x.Expect(id)
			select {
			case <-news:
				handed++
				done()
			default:
				if done() {
					handed++
				}
			}
		})
		wg.Wait()
	}
	s.until(t, "every poke arrived", func() bool { return len(s.signals)+handed == n })
}

func TestHintsOfOtherProcessesEndAWait(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	here, there, s := open(t, url), open(t, url), newServer()
	x := dispatch.New(s, here, never)
	run(t, x, here)
	ctx, cancel := context.WithCancel(t.Context())
	var hub sync.WaitGroup
	hub.Go(func() { _ = there.Hub().Run(ctx) })
	defer hub.Wait()
	defer cancel()
	id := jobID(t)
	news, done := x.Expect(id)
	defer done()
	here.Hub().Publish(db.TopicJob, string(id))
	if len(news) != 0 {
		t.Error("a hint of this process ended the wait; its poke will come as a signal")
	}
	tick := time.NewTicker(50 * time.Millisecond) // until the first process listens
	defer tick.Stop()
	for {
		there.Hub().Publish(db.TopicJob, string(id))
		select {
		case <-news:
			return
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("not told")
		}
	}
}

func TestPokesWaitWhileTemporalIsAway(t *testing.T) {
	t.Parallel()
	d, s := dbtest.DB(t, db.Options{}), newServer()
	x := dispatch.New(s, d, never)
	run(t, x, d)
	s.change(func() { s.away = true })
	ids := make([]berth.JobID, 40)
	for i := range ids {
		ids[i] = jobID(t)
		s.change(func() { s.status[berth.JobWorkflowID(ids[i])] = running })
	}
	x.Poke(ids...)
	x.Poke(ids...)
	s.change(func() { s.away = false })
	s.until(t, "every job is poked", func() bool {
		seen := map[string]bool{}
		for _, sig := range s.signals {
			seen[sig] = true
		}
		return len(seen) == len(ids)
	})
}

func TestOpenListsEveryPage(t *testing.T) {
	t.Parallel()
	d, s := dbtest.DB(t, db.Options{}), newServer()
	x := dispatch.New(s, d, never)
	want := map[berth.JobID]bool{}
	for range 5 {
		id := jobID(t)
		want[id] = true
		s.status[berth.JobWorkflowID(id)] = running
	}
	s.status["array/"+string(jobID(t))] = running // not a job's
	got := map[berth.JobID]bool{}
	if err := x.Open(t.Context(), func(id berth.JobID) { got[id] = true }); err != nil || len(got) != len(want) {
		t.Errorf("got %d jobs, %v", len(got), err)
	}
	for id := range got {
		if !want[id] {
			t.Errorf("%s is not open", id)
		}
	}
}

func TestATaskHasWaitedSinceItsFirstTry(t *testing.T) {
	t.Parallel()
	d, s := dbtest.DB(t, db.Options{}), newServer()
	x := dispatch.New(s, d, never)
	id := submit(t, d, "deaf")
	pending := func() time.Duration {
		t.Helper()
		waited, err := x.Pending(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return waited
	}
	if waited := pending(); waited != 0 {
		t.Errorf("without a workflow %s", waited)
	}
	s.status[berth.JobWorkflowID(id)] = enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING
	if waited := pending(); waited != 0 {
		t.Errorf("without a task %s", waited)
	}
	now := time.Now()
	s.task = &workflowpb.PendingWorkflowTaskInfo{ScheduledTime: timestamppb.New(now.Add(-time.Hour))}
	if waited := pending(); waited < time.Hour || waited > 2*time.Hour {
		t.Errorf("after an hour %s", waited)
	}
	s.task.OriginalScheduledTime = timestamppb.New(now.Add(-3 * time.Hour))
	if waited := pending(); waited < 3*time.Hour {
		t.Errorf("after a second try %s", waited)
	}
	s.status[berth.JobWorkflowID(id)] = enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED
	if waited := pending(); waited != 0 {
		t.Errorf("of a terminated workflow %s", waited)
	}
}

func TestAWorkflowCanBeStartedAnewWhileItsJobLives(t *testing.T) {
	t.Parallel()
	d, s := dbtest.DB(t, db.Options{}), newServer()
	x := dispatch.New(s, d, never)
	start := func(id berth.JobID, again bool) (open, completed bool) {
		t.Helper()
		if err := x.Start(t.Context(), id, again); err != nil {
			t.Fatal(err)
		}
		open, completed, err := x.Describe(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return open, completed
	}
	lost := submit(t, d, "lost")
	if open, _ := start(lost, false); !open {
		t.Error("one without a workflow was not started")
	}
	if err := x.Terminate(t.Context(), lost, "test"); err != nil {
		t.Fatal(err)
	}
	if open, completed, err := x.Describe(t.Context(), lost); open || completed || err != nil {
		t.Errorf("a terminated one is open %v, completed %v, %v", open, completed, err)
	}
	if open, _ := start(lost, false); !open {
		t.Error("a terminated one was not started")
	}
	if start(lost, true); len(s.starts) != 2 {
		t.Error("an open one was started")
	}
	restored := submit(t, d, "restored")
	s.status[berth.JobWorkflowID(restored)] = enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED
	if open, completed := start(restored, false); open || !completed {
		t.Error("a completed one was started without being asked to")
	}
	if open, _ := start(restored, true); !open {
		t.Error("a completed one was not started again")
	}
	over := submit(t, d, "over")
	if _, err := d.Jobs.RequestCancel(t.Context(), "", over, "user:test", nil); err != nil {
		t.Fatal(err)
	}
	if open, _ := start(over, true); open {
		t.Error("the workflow of a terminal job was started")
	}
}
