package db_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/failure"
	"berth/wire"
)

// hungGang is a running gang of three on m0, m1 and m2.
type hungGang struct {
	*gangStage
	id      berth.JobID
	attempt int
}

func newHungGang(t *testing.T) *hungGang {
	t.Helper()
	g := &hungGang{gangStage: newGangStage(t)}
	g.id = g.gang(3, nil)
	g.attempt = g.begin(g.id, on("m0", whole(0)), on("m1", whole(0)), on("m2", whole(0)))
	g.runs(g.id, g.attempt, 3)
	return g
}

// says reports whether a member is quiet, as its agent does.
func (g *hungGang) says(rank int, seq int64, quiet bool) {
	g.t.Helper()
	if err := g.report(rank, func(r *wire.StallReport) { r.Seq, r.Quiet = seq, quiet }); err != nil {
		g.t.Fatal(err)
	}
}

func (g *hungGang) report(rank int, edit func(*wire.StallReport)) error {
	a, p := g.rankOf(g.id, g.attempt, rank)
	r := wire.StallReport{AgentBoot: a.boot, Epoch: 1, Alloc: p.Alloc, Job: g.id, Attempt: g.attempt}
	edit(&r)
	return g.db.Agents.ReportStall(g.t.Context(), a.machine, r)
}

// settles lets the time pass after which no report can be under way.
func (g *hungGang) settles() {
	g.t.Helper()
	mustExec(g.t, g.pool, `UPDATE allocations SET quiet_at = quiet_at - interval '1 minute'`)
}

func (g *hungGang) judged() int {
	g.t.Helper()
	n, err := g.db.Attempts.JudgeHangs(g.t.Context(), g.term, 100)
	if err != nil {
		g.t.Fatal(err)
	}
	return n
}

func TestAGangHangsAsAWhole(t *testing.T) {
	t.Parallel()
	g := newHungGang(t)
	g.says(0, 1, true)
	g.says(1, 1, true)
	g.settles()
	if n := g.judged(); n != 0 {
		t.Fatal("a gang with a live member hangs")
	}
	g.says(2, 1, true)
	if n := g.judged(); n != 0 {
		t.Fatal("the verdict does not wait for reports that are under way")
	}
	g.settles()
	if n := g.judged(); n != 1 {
		t.Fatal("the gang does not hang")
	}
	if n := one[int](g.stage, `SELECT count(*)::int FROM allocations WHERE orders ? 'stalled' AND NOT orders ? 'stop'`); n != 3 {
		t.Errorf("%d members have the order", n)
	}
	if e := lastEvent(g.stage, g.id); e.Kind != wire.EventOrdered || e.Actor != "leader" || !strings.Contains(e.Detail, "member 2 on m2") {
		t.Errorf("the last event is %+v", e)
	}
	if n := g.judged(); n != 0 {
		t.Error("the same gang is judged twice")
	}
}

// Each of these speaks against a verdict.
func TestAGangThatMayLiveIsNotJudged(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(*hungGang){
		"a sign of life since":  func(g *hungGang) { g.says(1, 2, false) },
		"another agent process": func(g *hungGang) { mustExec(t, g.pool, `UPDATE machines SET agent_boot = 'other' WHERE id = 'm1'`) },
		"a silent machine":      func(g *hungGang) { mustExec(t, g.pool, `UPDATE machines SET state = 'suspect' WHERE id = 'm1'`) },
		"an order to stop": func(g *hungGang) {
			mustExec(t, g.pool, `UPDATE allocations SET orders = orders || '{"stop": true}' WHERE rank = 1`)
		},
		"a member that failed":        func(g *hungGang) { g.mustTell(g.id, g.attempt, 1, berth.PhaseExited, ended(failure.CauseExited, 1)) },
		"a member that was stopped":   func(g *hungGang) { g.mustTell(g.id, g.attempt, 1, berth.PhaseExited, ended(failure.CauseGPU, 0)) },
		"a cancel":                    func(g *hungGang) { g.cancel(g.id) },
		"a report that was overtaken": func(g *hungGang) { g.says(1, 3, false); g.says(1, 2, true) },
		"the word of another machine": func(g *hungGang) { g.says(1, 2, false); g.saysFor(1, "m2") },
		"a word that was not repeated": func(g *hungGang) {
			mustExec(t, g.pool, `UPDATE allocations SET quiet_said_at = quiet_said_at - interval '31 seconds' WHERE rank = 1`)
		},
		"a repetition that was delayed": func(g *hungGang) { g.says(1, 2, false); g.says(1, 2, true) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			g := newHungGang(t)
			for rank := range 3 {
				g.says(rank, 1, true)
			}
			change(g)
			g.settles()
			if n := g.judged(); n != 0 {
				t.Error("the gang was judged")
			}
		})
	}
}

func TestARepeatedWordKeepsItsBegin(t *testing.T) {
	t.Parallel()
	g := newHungGang(t)
	for rank := range 3 {
		g.says(rank, 1, true)
	}
	g.settles()
	began := one[time.Time](g.stage, `SELECT min(quiet_at) FROM allocations`)
	mustExec(t, g.pool, `UPDATE allocations SET quiet_said_at = now() - interval '1 hour'`)
	for rank := range 3 {
		g.says(rank, 1, true)
	}
	if now := one[time.Time](g.stage, `SELECT min(quiet_at) FROM allocations`); !now.Equal(began) {
		t.Errorf("quiet since %s, and after the repetition since %s", began, now)
	}
	if n := g.judged(); n != 1 {
		t.Error("the gang is not judged")
	}
}

func TestNoGangIsJudgedWhileSignsCannotArrive(t *testing.T) {
	t.Parallel()
	g := newHungGang(t)
	for rank := range 3 {
		g.says(rank, 1, true)
	}
	g.settles()
	for name, row := range map[string]string{
		"a gap in which no API replica can write":   `('api', 'x', 1, now() - interval '1 s')`,
		"the grace after it":                        `('grace', 'x', 1, now() + interval '30 s')`,
		"a clock of the database that was set back": `('api', 'x', 1, now() + interval '1 hour')`,
	} {
		mustExec(t, g.pool, `INSERT INTO leases VALUES `+row)
		if n := g.judged(); n != 0 {
			t.Errorf("%s: the gang is judged", name)
		}
		mustExec(t, g.pool, `UPDATE allocations SET orders = orders - 'stalled'`)
		mustExec(t, g.pool, `DELETE FROM leases WHERE name IN ('api', 'grace')`)
	}
	// A freeze of verdicts concerns silent machines: the machines of the gang call.
	mustExec(t, g.pool, `INSERT INTO leases VALUES ('freeze', 'x', 1, now() + interval '1 hour')`)
	if n := g.judged(); n != 1 {
		t.Error("the gang is not judged once signs can arrive")
	}
}

// saysFor reports a member as quiet in the name of another machine.
func (g *hungGang) saysFor(rank int, machine berth.MachineID) {
	g.t.Helper()
	_, p := g.rankOf(g.id, g.attempt, rank)
	err := g.db.Agents.ReportStall(g.t.Context(), machine, wire.StallReport{AgentBoot: "b", Epoch: 1, Alloc: p.Alloc,
		Job: g.id, Attempt: g.attempt, Seq: 99, Quiet: true})
	if err != nil {
		g.t.Fatal(err)
	}
}

// A member that is done shows no signs, and the others may hang all the same.
func TestAMemberThatIsDoneIsNoSignOfLife(t *testing.T) {
	t.Parallel()
	g := newHungGang(t)
	g.says(0, 1, true)
	g.says(2, 1, true)
	g.mustTell(g.id, g.attempt, 1, berth.PhaseSealed, ended(failure.CauseExited, 0))
	g.settles()
	if n := g.judged(); n != 1 {
		t.Error("the rest of the gang does not hang")
	}
}

func TestTheEvidenceOfAHangIsKeptWithTheAttempt(t *testing.T) {
	t.Parallel()
	g := newHungGang(t)
	for rank := range 3 {
		g.says(rank, 1, true)
	}
	g.settles()
	if n := g.judged(); n != 1 {
		t.Fatal("the gang does not hang")
	}
	step, busy, idle := int64(16), 1.0, 0.0
	for rank := range 3 {
		evidence := failure.HangEvidence{
			Rank: 7, Machine: "a lie", QuietSeconds: 600, Step: &step, CPU: &busy, Lines: []string{"epoch 3"},
			Processes: []failure.HangProcess{{PID: 9, Name: "python", State: "R"}},
		}
		if rank == 2 {
			evidence.CPU, evidence.Processes[0].State = &idle, "T"
		}
		for range 2 { // a repetition changes nothing
			if err := g.report(rank, func(r *wire.StallReport) { r.Evidence = &evidence }); err != nil {
				t.Fatal(err)
			}
		}
	}
	hung := func() (list []wire.Event) {
		for _, e := range g.events(g.id) {
			if e.Kind == wire.EventHung {
				list = append(list, e)
			}
		}
		return list
	}()
	if len(hung) != 3 || *hung[2].Facts.Rank != 2 || hung[2].Facts.Machine != "m2" || *hung[2].Facts.Step != 16 || !strings.Contains(hung[2].Detail, "member 2 on m2: no sign of life for 10m0s, step 16, CPU 0.00 cores, processes 1 T (python)") {
		t.Errorf("events are %+v", hung)
	}
	for rank := range 3 {
		g.mustTell(g.id, g.attempt, rank, berth.PhaseSealed, ended(failure.CauseStalled, 143))
	}
	if r := g.settle(g.id, g.attempt); r.Next != berth.Retrying {
		t.Fatalf("settled as %+v", r)
	}
	j := g.job(g.id)
	if len(j.Hangs) != 1 || j.Hangs[0].Attempt != g.attempt || len(j.Hangs[0].Members) != 3 {
		t.Fatalf("hangs are %+v", j.Hangs)
	}
	h := j.Hangs[0]
	if o := h.Odd; o == nil || *o.Rank != 2 || o.Confidence != failure.Sure || o.By != failure.OddByStopped {
		t.Errorf("odd member is %+v", o)
	}
	if m := h.Members[2]; m.Rank != 2 || m.Machine != "m2" || m.Processes[0].State != "T" || !slices.Equal(m.Lines, []string{"epoch 3"}) {
		t.Errorf("the evidence of member 2 is %+v", m)
	}
	if r := j.Attempts[0].Outcome; r == nil || r.Code != berth.ReasonStalled || !strings.Contains(r.Message, "member 2 holds up the others: its process 9 (python) is stopped") {
		t.Errorf("outcome is %+v", r)
	}
	if blamed := one[string](g.stage, `SELECT blamed FROM attempts`); blamed != "m2" {
		t.Errorf("machine %s is blamed", blamed)
	}
	if !slices.ContainsFunc(g.events(g.id), func(e wire.Event) bool {
		return e.Kind == wire.EventOddMember && e.Facts.Odd != nil && *e.Facts.Odd.Rank == 2 && e.Facts.Machine == "m2"
	}) {
		t.Errorf("no event names the odd member: %+v", g.events(g.id))
	}
}

// A head sleeps while its workers spin: they are not alike.
func TestTheOddMemberIsSearchedWithinItsGroup(t *testing.T) {
	t.Parallel()
	g := newHungGang(t)
	mustExec(t, g.pool, `UPDATE job_specs SET spec = spec || '{"groups": [{"name": "head", "members": 1}, {"name": "workers", "members": 2}]}'`)
	for rank := range 3 {
		g.says(rank, 1, true)
	}
	g.settles()
	if n := g.judged(); n != 1 {
		t.Fatal("the gang does not hang")
	}
	for rank, cpu := range []float64{0, 1, 1} {
		evidence := failure.HangEvidence{CPU: &cpu, Processes: []failure.HangProcess{{PID: 9, Name: "python", State: "S"}}}
		if err := g.report(rank, func(r *wire.StallReport) { r.Evidence = &evidence }); err != nil {
			t.Fatal(err)
		}
		g.mustTell(g.id, g.attempt, rank, berth.PhaseSealed, ended(failure.CauseStalled, 143))
	}
	if r := g.settle(g.id, g.attempt); r.Next != berth.Retrying {
		t.Fatalf("settled as %+v", r)
	}
	if o := g.job(g.id).Hangs[0].Odd; o == nil || o.Rank != nil || !strings.Contains(o.Detail, "group head: member 0 is alone") {
		t.Errorf("odd member is %+v", o)
	}
}

func TestSignsOfAnotherSessionAreRefused(t *testing.T) {
	t.Parallel()
	g := newHungGang(t)
	for what, edit := range map[string]func(*wire.StallReport){
		"process": func(r *wire.StallReport) { r.AgentBoot = "old" },
		"epoch":   func(r *wire.StallReport) { r.Epoch = 2 },
	} {
		if err := g.report(0, edit); !berth.IsSlug(err, berth.SlugStaleEpoch) {
			t.Errorf("another %s: %v", what, err)
		}
	}
	long := failure.HangEvidence{Lines: slices.Repeat([]string{"x"}, failure.MaxHangLines+1)}
	if err := g.report(0, func(r *wire.StallReport) { r.Evidence = &long }); berth.CodeOf(err) != berth.CodeInvalid {
		t.Errorf("evidence that is too long: %v", err)
	}
	if n := one[int](g.stage, `SELECT count(*)::int FROM allocations WHERE quiet_at IS NOT NULL OR hang IS NOT NULL`); n != 0 {
		t.Errorf("%d members were changed", n)
	}
	if err := g.db.Agents.ReportStall(t.Context(), "nobody", wire.StallReport{}); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("an unknown machine: %v", err)
	}
}
