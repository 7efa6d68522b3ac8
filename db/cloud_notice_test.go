package db_test

import (
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/cloud"
	"berth/spec"
	"berth/wire"
)

// notices sends a notice with a sync of m0 and returns the confirmation.
func (a *agent) notices(n wire.CloudNotice) string {
	a.t.Helper()
	r, err := a.db.Agents.Sync(a.t.Context(), a.machine,
		wire.SyncRequest{AgentBoot: a.boot, Epoch: a.epoch, Digest: a.digest, CloudNotice: &n})
	if err != nil {
		a.t.Fatal(err)
	}
	return r.Noticed
}

// inTwoMinutes is a notice of a spot instance.
func inTwoMinutes() wire.CloudNotice {
	return wire.CloudNotice{Kind: wire.NoticeSpot, Deadline: time.Now().Add(2 * time.Minute).UTC().Truncate(time.Second)}
}

// savesHourly is a job with checkpoint.interval that has webhooks for drains.
func savesHourly(j *spec.Job) {
	j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint", Signal: "SIGUSR1", Interval: spec.Duration(time.Hour)}
	hooks([]string{"draining"})(j)
}

func TestANoticeDrainsTheMachineOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.signs()
	a, _ := s.register("host", "boot")
	id, _ := s.started(savesHourly)
	term := s.term()
	n := inTwoMinutes()
	for range 3 {
		if got := a.notices(n); got != n.String() {
			t.Errorf("confirmed %q", got)
		}
	}
	m := s.machine("", "m0")
	reason := "the cloud ends this machine at " + n.Deadline.Format("15:04:05") + " (spot)"
	if m.State != berth.MachineDraining || m.Reason != reason || m.DrainBy != "agent:m0" ||
		m.Deadline == nil || !m.Deadline.Equal(n.Deadline.Add(-10*time.Second)) {
		t.Errorf("machine is %s for %q by %s until %v", m.State, m.Reason, m.DrainBy, m.Deadline)
	}
	if n := one[int](s, `SELECT count(*)::int FROM machine_events WHERE machine_id = 'm0' AND state = 'draining'`); n != 1 {
		t.Errorf("%d events of the machine", n)
	}
	if n := one[int](s, `SELECT count(*)::int FROM job_events WHERE job = $1 AND kind = 'draining'`, id); n != 1 {
		t.Errorf("%d events of the job", n)
	}
	e := lastEvent(s, id)
	if e.Kind != wire.EventDraining || e.Actor != "agent:m0" || !strings.Contains(e.Detail, reason) {
		t.Errorf("event %+v", e)
	}
	if got := s.notifications(id); len(got) != 1 {
		t.Errorf("calls %v", got)
	}
	// The agent has signaled the job by itself: neither the call nor the leader orders a save.
	s.announce(term, 0)
	if orders := one[string](s, `SELECT orders::text FROM allocations WHERE job = $1`, id); strings.Contains(orders, "save") {
		t.Errorf("orders %s", orders)
	}
	if n, err := s.db.Attempts.DrainOverdue(t.Context(), term, 10); err != nil || n != 0 {
		t.Errorf("%d jobs stop before the deadline, %v", n, err)
	}
	mustExec(t, s.pool, `UPDATE machines SET drain_deadline = now() WHERE id = 'm0'`)
	if n, err := s.db.Attempts.DrainOverdue(t.Context(), term, 10); err != nil || n != 1 {
		t.Errorf("%d jobs stop after the deadline, %v", n, err)
	}
}

func TestANoticeAndAnAdminsDrain(t *testing.T) {
	t.Parallel()
	n := inTwoMinutes()
	at := func(d time.Duration) *time.Time { u := n.Deadline.Add(d); return &u }
	for name, c := range map[string]struct {
		admin *time.Time
		stays bool
	}{
		"earlier":        {at(-time.Minute), true},
		"the same":       {at(-wire.NoticeMargin), true},
		"later":          {at(time.Hour), false},
		"without an end": {nil, false},
	} {
		s := newStage(t)
		a, _ := s.register("host", "boot")
		s.drain("new disk", c.admin)
		if got := a.notices(n); got == "" {
			t.Errorf("%s: the notice is not confirmed", name)
		}
		m := s.machine("", "m0")
		if stays := m.DrainBy == "operator:ann" && m.Reason == "new disk"; stays != c.stays {
			t.Errorf("%s: drained by %s for %q until %v", name, m.DrainBy, m.Reason, m.Deadline)
		}
		if want := at(-wire.NoticeMargin); !c.stays && !m.Deadline.Equal(*want) {
			t.Errorf("%s: until %v", name, m.Deadline)
		}
	}
}

func TestANoticeOfAnEarlierSessionIsRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	old, _ := s.register("host", "boot")
	s.register("host", "boot-2")
	n := inTwoMinutes()
	_, err := s.db.Agents.Sync(t.Context(), "m0",
		wire.SyncRequest{AgentBoot: old.boot, Epoch: old.epoch, CloudNotice: &n})
	if !berth.IsSlug(err, berth.SlugStaleEpoch) || s.shown() != berth.MachineReady {
		t.Errorf("%v, machine is %s", err, s.shown())
	}
}

// launched makes a launch the one of m0, as if its agent had joined.
func (s *stage) launched() cloud.Record {
	s.t.Helper()
	mustExec(s.t, s.pool, insertLaunch, "m0", 1, "t1", "requested")
	mustExec(s.t, s.pool, `UPDATE launches SET state = 'sent', sends = 1, request_hash = 'h', request = 'r', sent_at = now(),
		last_sent_at = now(), incarnation = (SELECT incarnation FROM cluster)`)
	mustExec(s.t, s.pool, `UPDATE launches SET state = 'running', instance = 'i', request = NULL, joined_at = now()`)
	mustExec(s.t, s.pool, `UPDATE launches SET state = 'serving'`)
	return s.launch()
}

func (s *stage) launch() cloud.Record {
	s.t.Helper()
	r, _, err := s.db.Launches.Current(s.t.Context(), "m0")
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func TestANoticeEndsTheLaunchAndClosesItsOffering(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host", "boot")
	r := s.launched()
	hints := s.db.Hub().Subscribe(db.TopicLaunch, "m0")
	defer hints.Close()
	n := inTwoMinutes()
	a.notices(n)
	a.notices(n)
	if !hears(t, hints) {
		t.Error("the workflow of the launch got no hint")
	}
	after, now, err := s.db.Launches.Current(t.Context(), "m0")
	if err != nil {
		t.Fatal(err)
	}
	if after.StopAt.IsZero() || after.StopActor != "agent:m0" || after.StopReason != n.Reason() || !after.StopDeadline.Equal(n.StopBy()) {
		t.Errorf("launch is to stop at %v by %s for %q until %v", after.StopAt, after.StopActor, after.StopReason, after.StopDeadline)
	}
	// The workflow drains with the same reason and deadline, which is no other drain.
	number := one[int64](s, `SELECT drain_notice FROM machines WHERE id = 'm0'`)
	step := cloud.Next(after, cloud.DefaultLimits, now)
	if step.Act != cloud.ActDrain || step.To != cloud.LaunchDraining {
		t.Fatalf("step %+v", step)
	}
	if err := s.db.Machines.Drain(t.Context(), "m0", step.Reason, &after.StopDeadline, "cloud"); err != nil {
		t.Fatal(err)
	}
	if again := one[int64](s, `SELECT drain_notice FROM machines WHERE id = 'm0'`); again != number {
		t.Error("the workflow of the launch drains the machine for another reason")
	}
	b, ok := r.Request().Trips(&cloud.Error{Kind: cloud.Capacity})
	list, now, err := s.db.Launches.Breakers(t.Context(), r.Request())
	if err != nil || !ok || len(list) != 1 || !list[0].Open(now) || list[0].Step != 1 || list[0].Key != b.Key || list[0].Scope != b.Scope {
		t.Errorf("breakers %+v, %v", list, err)
	}
}

// An earlier deadline of an admin stays, in the launch as well.
func TestANoticeKeepsTheDeadlineOfATerminate(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host", "boot")
	r := s.launched()
	n := inTwoMinutes()
	early := n.Deadline.Add(-time.Minute)
	_, err := s.db.Launches.Change(t.Context(), r.Ref(), func(r cloud.Record, now time.Time) (cloud.Record, error) {
		return r.WithStop(cloud.Stop{Actor: "operator:ann", Reason: "too dear", Deadline: early}, now)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.db.Machines.Drain(t.Context(), "m0", "too dear", &early, "cloud"); err != nil {
		t.Fatal(err)
	}
	a.notices(n)
	if after := s.launch(); after.StopActor != "operator:ann" || after.StopReason != "too dear" || !after.StopDeadline.Equal(early) {
		t.Errorf("launch is to stop by %s for %q until %v", after.StopActor, after.StopReason, after.StopDeadline)
	}
	if m := s.machine("", "m0"); m.Reason != "too dear" || !m.Deadline.Equal(early) {
		t.Errorf("drained for %q until %v", m.Reason, m.Deadline)
	}
}
