package db_test

import (
	"testing"
	"time"

	"berth"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// ordered is a gang of two on m0 and m1 whose ranks are prepared and ordered to
// start.
func (s *gangStage) ordered(edit func(*spec.Job)) (id berth.JobID, attempt int) {
	s.t.Helper()
	id = s.gang(2, edit)
	attempt = s.begin(id, on("m0"), on("m1"))
	for rank := range 2 {
		s.claim(id, attempt, rank)
		s.mustTell(id, attempt, rank, berth.PhasePrepared, nil)
	}
	if got := s.ranks(id, attempt); got[0] != `active {"start": true}` || got[1] != got[0] {
		s.t.Fatalf("ranks are %q", got)
	}
	return id, attempt
}

// wantStatus checks the job, and that it has a start if and only if it has been
// running.
func (s *gangStage) wantStatus(when string, id berth.JobID, want berth.State, ran bool) {
	s.t.Helper()
	if j := s.job(id); j.Status != want || (j.StartedAt != nil) != ran || (j.Attempts[0].StartedAt != nil) != ran {
		s.t.Errorf("%s: job is %s, want %s; it started at %v, its attempt at %v", when, j.Status, want, j.StartedAt, j.Attempts[0].StartedAt)
	}
}

func TestAMemberThatEndsBeforeAnotherHasStartedCountsAsStarted(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id, attempt := s.ordered(nil)
	s.mustTell(id, attempt, 0, berth.PhaseSealed, ended(failure.CauseExited, 0)) // its start and its end at once
	s.wantStatus("one has ended, one starts", id, berth.Scheduled, false)
	s.mustTell(id, attempt, 1, berth.PhaseSealed, ended(failure.CauseExited, 0))
	s.wantStatus("both have ended", id, berth.Running, true)
	if r := s.settle(id, attempt); r.Next != berth.Succeeded {
		t.Errorf("settled as %+v", r)
	}
	s.freed()
}

func TestAGangThatLosesAMemberBeforeItsStartNeverRan(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id, attempt := s.ordered(nil)
	s.mustTell(id, attempt, 0, berth.PhaseRunning, nil)
	s.mustTell(id, attempt, 1, berth.PhaseSealed, &failure.Exit{Cause: failure.CauseEngine, Message: "no space left", FinishedAt: time.Now().UTC()})
	if stopped, err := s.db.Attempts.Stop(t.Context(), id, attempt); err != nil || !stopped {
		t.Fatal(stopped, err)
	}
	s.mustTell(id, attempt, 0, berth.PhaseSealed, ended(failure.CauseOrdered, 143))
	s.wantStatus("one never started", id, berth.Scheduled, false)
	if r := s.settle(id, attempt); r.Next != berth.Retrying {
		t.Errorf("settled as %+v", r)
	}
	s.wantStatus("settled", id, berth.Retrying, false)
}

func TestACancelBetweenOrderAndStartHolds(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id, attempt := s.ordered(nil)
	s.mustTell(id, attempt, 0, berth.PhaseRunning, nil)
	if _, err := s.db.Jobs.RequestCancel(t.Context(), "", id, "user:test", nil); err != nil {
		t.Fatal(err)
	}
	s.mustTell(id, attempt, 1, berth.PhaseRunning, nil) // it began before it heard of the cancel
	s.wantStatus("canceled before the last start", id, berth.Canceling, false)
	for rank := range 2 {
		s.mustTell(id, attempt, rank, berth.PhaseSealed, ended(failure.CauseOrdered, 143))
	}
	if r := s.settle(id, attempt); r.Next != berth.Canceled {
		t.Errorf("settled as %+v", r)
	}
	s.freed()
}

// An agent of the version before reports a rank prepared that it is about to
// start, and runs it half a second later.
func TestAnOlderAgentsJobIsRunningByItsReportOfTheStart(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id := s.gang(1, nil)
	attempt := s.begin(id, on("m0"))
	s.claim(id, attempt, 0)
	s.mustTell(id, attempt, 0, berth.PhasePrepared, nil)
	s.wantStatus("prepared", id, berth.Scheduled, false)
	s.mustTell(id, attempt, 0, berth.PhaseRunning, nil)
	s.wantStatus("started", id, berth.Running, true)
}

// One call may bring the first word of many starts, as after an absence of the
// server: a transaction starts over a few times only.
func TestManyStartsComeInOneCall(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	var jobs []berth.JobID
	var reports []wire.RankReport
	for range 12 {
		id := s.gang(1, nil)
		attempt := s.begin(id, on("m0"))
		s.claim(id, attempt, 0)
		_, p := s.rankOf(id, attempt, 0)
		if p.Phase = berth.PhaseRunning; len(jobs)%2 == 0 {
			p.Progress = &berth.Progress{Step: 1}
		} else {
			p.Phase, p.Exit = berth.PhaseExited, ended(failure.CauseExited, 0)
		}
		jobs, reports = append(jobs, id), append(reports, p)
	}
	answer, err := s.agents[0].sync(func(r *wire.SyncRequest) { r.Reports = reports })
	if err != nil || len(answer.Refused) > 0 {
		t.Fatal(answer.Refused, err)
	}
	for _, id := range jobs {
		s.wantStatus("all at once", id, berth.Running, true)
	}
}
