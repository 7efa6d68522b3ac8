package db_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/wire"
)

// TestAReportThatIsRefusedHoldsUpNoOther checks that the other reports of a call are stored when the database
// refuses one of them.
func TestAReportThatIsRefusedHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	bad, good := s.submit(nil), s.submit(nil)
	for _, id := range []berth.JobID{bad, good} {
		a.mustClaim(id, s.place(id, "m0"))
	}
	// The counters lack the first job's capacity, so its end would make them negative.
	mustExec(t, s.pool, `UPDATE machines SET cpu_m_used = 500 WHERE id = 'm0'`)
	mustExec(t, s.pool, `UPDATE gpu_devices SET milli_used = 0 WHERE machine_id = 'm0' AND idx = 0`)
	mustExec(t, s.pool, `ALTER TABLE machines DROP CONSTRAINT machines_cpu_fits`)
	x := exited(0)
	end := func(id berth.JobID, phase berth.Phase) wire.RankReport {
		return wire.RankReport{Alloc: s.alloc(id, 1), Job: id, Attempt: 1, Phase: phase, Exit: &x}
	}
	answer, err := a.sync(func(r *wire.SyncRequest) {
		r.Reports = []wire.RankReport{end(bad, berth.PhaseSealed), end(good, berth.PhaseSealed), {Alloc: s.alloc(good, 1), Job: good, Attempt: 1, Phase: "odd"}}
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(answer.Refused) != 2 || answer.Refused[0].Alloc != s.alloc(bad, 1) || answer.Refused[1].Alloc != s.alloc(good, 1) {
		t.Errorf("refused: %+v", answer.Refused)
	}
	if r := s.ranks(good, 1); !strings.HasPrefix(r[0], "exited") {
		t.Errorf("the other one's rank is %s", r[0])
	}
	if r := s.ranks(bad, 1); !strings.HasPrefix(r[0], "active") {
		t.Errorf("the refused one's rank is %s", r[0])
	}
	// The seq was stored, so a later call takes effect and an older one does not.
	if _, err := a.sync(func(r *wire.SyncRequest) { r.Seq, r.Reports = 1, []wire.RankReport{end(bad, berth.PhaseSealed)} }); err != nil {
		t.Errorf("an old call: %v", err)
	}
	mustExec(t, s.pool, `UPDATE gpu_devices SET milli_used = 1000 WHERE machine_id = 'm0' AND idx = 0`)
	mustExec(t, s.pool, `UPDATE machines SET cpu_m_used = 1000 WHERE id = 'm0'`)
	a.report(bad, 1, berth.PhaseSealed, withExit(0))
	if r := s.ranks(bad, 1); !strings.HasPrefix(r[0], "exited") {
		t.Errorf("once the cause is gone the rank is %s", r[0])
	}
}

// TestACallWithoutAFitReportClaimsNoRenewal checks that the answer to a call whose reports are all refused
// does not claim a renewal of the lease, which another session's lock prevented here. An agent counts its
// fence from the last call that renewed its lease.
func TestACallWithoutAFitReportClaimsNoRenewal(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	a.mustClaim(id, s.place(id, "m0"))
	s.quiet("m0", time.Minute)
	s.holding(`SELECT 1 FROM machine_leases WHERE machine_id = 'm0' FOR UPDATE`, func() {
		answer, err := a.sync(func(r *wire.SyncRequest) {
			r.Brief = true
			r.Reports = []wire.RankReport{{Alloc: s.alloc(id, 1), Job: id, Attempt: 1, Phase: "odd"}}
		})
		if err != nil {
			t.Fatal(err)
		}
		if answer.Renewed || len(answer.Refused) != 1 {
			t.Errorf("the answer is %+v, and the lease was not renewed", answer)
		}
	})
}

func TestWordsThatNoColumnHoldsAreCleaned(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	a.mustClaim(id, s.place(id, "m0"))
	answer := a.report(id, 1, berth.PhaseExited, func(p *wire.RankReport) {
		x := exited(3)
		x.Message, x.Refused = "bad\x00 words \xff\xfe", []string{"mod\x00el"}
		p.Exit, p.Warning = &x, "odd\x00"
	})
	if len(answer.Refused) != 0 {
		t.Errorf("refused: %+v", answer.Refused)
	}
	if got := one[string](s, `SELECT exit ->> 'message' FROM allocations`); got != "bad words \uFFFD" {
		t.Errorf("the message is %q", got)
	}
	if got := one[string](s, `SELECT exit -> 'refused' ->> 0 FROM allocations`); got != "model" {
		t.Errorf("the output refused is %q", got)
	}
}

func TestWarningsOfAnAttemptAreBounded(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	a.mustClaim(id, s.place(id, "m0"))
	a.report(id, 1, berth.PhasePrepared, nil)
	for i := range 70 {
		a.report(id, 1, berth.PhaseRunning, func(p *wire.RankReport) { p.Warning = fmt.Sprintf("checkpoint of step %d is refused", i%65) })
	}
	if n := one[int](s, `SELECT count(*) FROM job_events WHERE kind = 'warning'`); n != 50 {
		t.Errorf("%d warnings are in the history", n)
	}
	if e := lastEvent(s, id); !strings.Contains(e.Detail, "further ones") {
		t.Errorf("the last says %q", e.Detail)
	}
}
