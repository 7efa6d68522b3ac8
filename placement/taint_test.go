package placement_test

import (
	"slices"
	"strings"
	"testing"

	"berth"
	"berth/placement"
	"berth/spec"
)

// tainted returns a snapshot with machines of 8 cores, m1 with the taints.
func tainted(machines int, taints ...string) *placement.Snapshot {
	s := wholes(machines)
	placement.SetPools(s, nil)
	m, _ := s.Machine("m1")
	m.Taints = taints
	s.UpsertMachine(m)
	return s
}

// tolerates adds a waiting job of 6 cores with tolerations.
func tolerates(s *placement.Snapshot, id berth.JobID, tolerations ...string) {
	r := spec.Request{CPUMilli: 6000, Members: 1, Tolerations: tolerations}
	s.DefineClass(r.Class(), r)
	s.UpsertJob(placement.Job{ID: id, Class: r.Class(), Version: 1, SubmittedAt: epoch, EligibleAt: epoch})
}

func TestAJobStartsWhereItToleratesEachTaint(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		tolerations []string
		want        bool
	}{{nil, false}, {[]string{"a"}, false}, {[]string{"a", "b=1"}, true}, {[]string{"*"}, true}, {[]string{"a", "b=2"}, false}} {
		for _, pack := range []placement.Pack{placement.BestFit, placement.LeastFragmentation} {
			s := tainted(1, "a:no_schedule", "b=1:no_schedule")
			tolerates(s, "j", x.tolerations...)
			p := placement.Planner{Pack: pack, Demand: true}.Plan(s, epoch)
			if got := len(p.Start) == 1; got != x.want || len(p.Demand) > 0 {
				t.Errorf("tolerations %q: starts %v, demand %v", x.tolerations, startedBy(p), p.Demand)
			}
		}
	}
	s := tainted(1, "a:no_schedule")
	tolerates(s, "j")
	for _, taints := range [][]string{nil, {"b:no_schedule"}, nil} {
		m, _ := s.Machine("m1")
		m.Taints = taints
		s.UpsertMachine(m)
		if got := startedBy(placement.Planner{}.Plan(s, epoch)); (len(got) == 1) != (taints == nil) {
			t.Errorf("with taints %q: starts %v", taints, got)
		}
	}
}

func TestATaintIsNamedWithItsMachineAndIsNoRefusal(t *testing.T) {
	t.Parallel()
	s := tainted(2, "maintenance:no_schedule")
	m, _ := s.Machine("m2")
	m.Used = berth.Capacity{CPUMilli: 8000}
	s.UpsertMachine(m)
	tolerates(s, "j")
	w, _ := placement.Planner{}.Why(s, "j", epoch)
	at := slices.IndexFunc(w.Fit.Clauses, func(c placement.Clause) bool { return c.Name == "taints" })
	if at < 0 || w.Fit.Clauses[at].After != 1 || !strings.Contains(w.Fit.Clauses[at].Text, "m1 tainted maintenance") {
		t.Errorf("explained as %+v", w.Fit)
	}
	s.RemoveMachine("m2")
	w, _ = placement.Planner{}.Why(s, "j", epoch)
	if w.Fit.Unsatisfiable() || w.Fit.FitEver != 1 || !strings.Contains(w.Fit.Summary, "m1 tainted maintenance") ||
		w.Fit.Short != "no room: m1 tainted maintenance" {
		t.Errorf("on a tainted machine alone: %+v", w.Fit)
	}
	large := spec.Request{CPUMilli: 9000, Members: 1}
	if e := placement.Explain(s, large); !e.Unsatisfiable() || !strings.Contains(e.Lacking[0].Largest, "maintenance") {
		t.Errorf("a request beyond the tainted machine: %+v", e)
	}
}
