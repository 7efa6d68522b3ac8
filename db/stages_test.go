package db_test

import (
	"fmt"
	"strings"
	"testing"

	"berth"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// stages reports the stage of the first member of a job's attempt.
func (a *agent) stages(id berth.JobID, attempt int, seq int64, s wire.Stage) error {
	a.t.Helper()
	return a.db.Agents.ReportStages(a.t.Context(), a.machine, wire.StageReport{
		AgentBoot: a.boot, Epoch: a.epoch, Seq: seq,
		Stages: []wire.MemberStage{{Alloc: a.alloc(id, attempt), Stage: s}},
	})
}

// events is a job's history.
func (s *stage) events(id berth.JobID) []wire.Event {
	s.t.Helper()
	events, err := s.db.Jobs.Events(s.t.Context(), "", id, 0, 1000)
	if err != nil {
		s.t.Fatal(err)
	}
	return events
}

// takes is the machine claiming a rank whose preparation begins.
func (s *stage) takes(id berth.JobID, attempt, rank int) {
	s.t.Helper()
	mustExec(s.t, s.pool, `UPDATE allocations SET state = 'active', phase = 'claimed', claimed_at = now()
		WHERE job = $1 AND attempt = $2 AND rank = $3`, id, attempt, rank)
}

// shows fails unless the job's document has this stage, "" for none.
func (s *stage) shows(id berth.JobID, want string) {
	s.t.Helper()
	got := ""
	if j := s.job(id); j.Stage != nil {
		got = j.Stage.String()
	}
	if got != want {
		s.t.Errorf("the stage is %q, want %q", got, want)
	}
}

func percent(n int) *int { return &n }

// The rows of the table in stages.go.
func TestStagesAreShownWhileTheJobIsScheduled(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	s.shows(id, "")
	attempt := s.place(id, "m0")
	s.shows(id, "waiting for m0 to claim it")
	must := func(seq int64, st wire.Stage) {
		t.Helper()
		if err := a.stages(id, attempt, seq, st); err != nil {
			t.Fatal(err)
		}
	}
	must(1, wire.Stage{Name: wire.StagePulling}) // before the claim it is no stage of this machine's
	s.shows(id, "waiting for m0 to claim it")
	a.mustClaim(id, attempt)
	s.shows(id, "preparing")
	must(2, wire.Stage{Name: wire.StagePulling, Percent: percent(40)})
	s.shows(id, "pulling 40 %")
	if p := s.member(s.alloc(id, attempt)).Progress; p.Stage != "pulling" || p.Percent != 40 {
		t.Errorf("the heartbeat of its waiter is %+v", p)
	}
	since := s.job(id).Stage.Since
	must(2, wire.Stage{Name: wire.StageCreating}) // repeated, or overtaken
	must(1, wire.Stage{Name: wire.StageCreating})
	s.shows(id, "pulling 40 %")
	must(3, wire.Stage{Name: wire.StagePulling, Percent: percent(80)})
	if now := s.job(id).Stage.Since; since == nil || now == nil || !now.Equal(*since) {
		t.Errorf("the stage began at %v and now at %v", since, now)
	}
	zero := 0
	for try := range 3 {
		must(int64(4+try), wire.Stage{Name: wire.StageFetching, Input: &zero, Try: try + 1, Problem: "no such host"})
	}
	s.shows(id, "fetching input 0 (try 3: no such host)")
	var details []string
	for _, e := range s.events(id) {
		if e.Kind == wire.EventStage {
			details = append(details, e.Detail)
			if e.Facts == nil || e.Facts.Stage == nil || e.Facts.Machine != "m0" {
				t.Errorf("the facts are %+v", e.Facts)
			}
		}
	}
	if got, want := strings.Join(details, "\n"), "member 0 on m0: pulling\nmember 0 on m0: fetching input 0 (no such host)"; got != want {
		t.Errorf("events:\n%s\nwant:\n%s", got, want)
	}
	other := *a
	other.boot = "agent0" // an earlier process
	if err := other.stages(id, attempt, 99, wire.Stage{Name: wire.StageCreating}); !berth.IsSlug(err,
		berth.SlugStaleEpoch) {
		t.Errorf("a session that is over got %v", err)
	}
	a.report(id, attempt, berth.PhasePrepared, nil)
	must(10, wire.Stage{Name: wire.StagePulling}) // late
	s.shows(id, "starting")
	a.report(id, attempt, berth.PhaseRunning, nil)
	s.shows(id, "")
}

func TestStagesOfAnotherMachineOrOfNoKnownNameAreRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	attempt := s.place(id, "m1")
	s.takes(id, attempt, 0)
	if err := a.stages(id, attempt, 1, wire.Stage{Name: wire.StagePulling}); err != nil {
		t.Fatal(err)
	}
	s.shows(id, "preparing")
	for _, bad := range []wire.Stage{{Name: "starting"}, {Name: "moon"}, {},
		{Name: wire.StagePulling, Percent: percent(101)}} {
		if err := a.stages(id, attempt, 2, bad); berth.CodeOf(err) != berth.CodeInvalid {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if err := a.db.Agents.Prepares(t.Context(), a.machine, wire.HostQuestion{
		AgentBoot: a.boot, Epoch: a.epoch, Alloc: s.alloc(id, attempt), Host: "x.test",
	}); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a machine asks about another's member: %v", err)
	}
}

// A fault that keeps changing its text must not grow the history without bound.
func TestStagesAddFewEvents(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	a.mustClaim(id, attempt)
	for i := range 30 {
		problem := fmt.Sprintf("port %d is closed", i) + strings.Repeat("x", 1000)
		if err := a.stages(id, attempt, int64(i), wire.Stage{Name: wire.StagePulling, Try: i,
			Problem: problem}); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for _, e := range s.events(id) {
		if e.Kind == wire.EventStage {
			n++
		}
	}
	if n != 20 {
		t.Errorf("%d events", n)
	}
	if got := len(s.job(id).Stage.Problem); got > 310 {
		t.Errorf("the problem has %d bytes", got)
	}
}

func TestAGangShowsItsMemberThatIsFurthestBehind(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(func(j *spec.Job) { j.Members = 2 })
	attempt := s.place(id, "m0", "m1")
	s.shows(id, "member 0 on m0: waiting for m0 to claim it")
	a.mustClaim(id, attempt)
	if err := a.stages(id, attempt, 1, wire.Stage{Name: wire.StageRestoring}); err != nil {
		t.Fatal(err)
	}
	s.shows(id, "member 1 on m1: waiting for m1 to claim it")
	s.takes(id, attempt, 1)
	s.shows(id, "member 0 on m0: restoring")
	a.report(id, attempt, berth.PhasePrepared, nil)
	s.shows(id, "waiting for the gang: member 1 on m1: preparing (1 of 2 ready)")
}

// A host that two machines do not find fails the job as its user's fault; the same machine
// twice, or another host, does not.
func TestAHostThatTwoMachinesDoNotFindFailsTheJob(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(nil)
	missing := func(machine, host string, want berth.State) {
		t.Helper()
		attempt := s.place(id, machine)
		s.takes(id, attempt, 0)
		s.exit(id, attempt, 0, failure.Exit{Cause: failure.CauseInputUnavailable, Message: "inputs[0]: no such host",
			Unresolved: &failure.Unresolved{Host: host}})
		if got := s.settle(id, attempt); got.Next != want {
			t.Fatalf("%s on %s: the job is %s, want %s", host, machine, got.Next, want)
		}
	}
	missing("m0", "a.test", berth.Retrying)
	missing("m0", "a.test", berth.Retrying)
	missing("m1", "b.test", berth.Retrying)
	missing("m1", "a.test", berth.Failed)
	if j := s.job(id); j.Reason.Code != berth.ReasonInputInvalid || j.Reason.Rule != "host_not_found" ||
		j.Failures != 1 || j.Losses != 3 {
		t.Errorf("reason %+v, %d failures, %d losses", j.Reason, j.Failures, j.Losses)
	}
}
