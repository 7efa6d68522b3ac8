package db_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"berth"
	"berth/db"
	"berth/spec"
)

// taint changes the taints of m0.
func (s *stage) taint(c spec.TaintChange) {
	s.t.Helper()
	if err := s.db.Machines.SetTaints(s.t.Context(), "m0", c); err != nil {
		s.t.Fatal(err)
	}
}

// taintsOf returns the taints that the API shows and that placement reads of a machine, which must be equal.
func (s *stage) taintsOf(id berth.MachineID) []string {
	s.t.Helper()
	m, err := s.db.Machines.Get(s.t.Context(), "", id)
	if err != nil {
		s.t.Fatal(err)
	}
	changes, err := s.db.Queue.Load(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	i := slices.IndexFunc(changes.Machines, func(m db.PoolMachine) bool { return m.ID == id })
	if i < 0 || !slices.Equal(changes.Machines[i].Taints, m.Taints) {
		s.t.Fatalf("placement reads other taints than %q: %+v", m.Taints, changes.Machines)
	}
	return m.Taints
}

func TestTaintsOfMachinesAndPools(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	want := func(id berth.MachineID, taints ...string) {
		t.Helper()
		if got := s.taintsOf(id); !slices.Equal(got, taints) {
			t.Errorf("%s has taints %q, want %q", id, got, taints)
		}
	}
	s.taint(spec.TaintChange{Add: []string{"maintenance", "team=web"}})
	s.taint(spec.TaintChange{Add: []string{"team=ml"}, Remove: []string{"none"}})
	want("m0", "maintenance:no_schedule", "team=ml:no_schedule")
	if m, err := s.db.Machines.Get(t.Context(), "", "m0"); err != nil || m.Reason != "tainted maintenance, team=ml" {
		t.Errorf("the reason is %q, %v", m.Reason, err)
	}
	mustExec(t, s.pool, `UPDATE machines SET pool = 'p' WHERE id = 'm1'`)
	s.setPool("p", spec.PoolRules{Taints: []string{"quiet"}})
	mustExec(t, s.pool, `UPDATE machines SET pool = 'p' WHERE id = 'm0'`)
	want("m0", "maintenance:no_schedule", "team=ml:no_schedule", "quiet:no_schedule")
	want("m1", "quiet:no_schedule")
	if rules, err := s.db.Pools.Rules(t.Context()); err != nil || len(rules) != 1 || rules[0].Tenants != nil ||
		!slices.Equal(rules[0].Taints, []string{"quiet:no_schedule"}) {
		t.Errorf("rules %+v, %v", rules, err)
	}
	s.setPool("p", spec.PoolRules{})
	s.taint(spec.TaintChange{Remove: []string{"maintenance", "team"}})
	want("m0")
	mustExec(t, s.pool, `UPDATE machines SET pool = 'default' WHERE id = 'm1'`)
	want("m1")
	if err := s.db.Machines.SetTaints(t.Context(), "none", spec.TaintChange{}); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("an unknown machine: %v", err)
	}
	many := spec.TaintChange{}
	for i := range spec.MaxTaints {
		many.Add = append(many.Add, "k"+string(rune('a'+i)))
	}
	s.taint(many)
	err := s.db.Machines.SetTaints(t.Context(), "m0", spec.TaintChange{Add: []string{"one-more"}})
	if berth.CodeOf(err) != berth.CodeInvalid {
		t.Errorf("too many taints: %v", err)
	}
}

// A plan may be made before a taint is set: the commit itself keeps jobs off that do not tolerate the taint.
func TestCommitKeepsJobsOffTaintedMachines(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	plain, other := s.queued(nil), s.queued(nil)
	tolerant := s.queued(func(j *spec.Job) { j.Placement.Tolerations = []string{"maintenance", "quiet"} })
	s.taint(spec.TaintChange{Add: []string{"maintenance"}})
	mustExec(t, s.pool, `UPDATE machines SET pool = 'p' WHERE id = 'm1'`)
	s.setPool("p", spec.PoolRules{Taints: []string{"quiet=yes"}})
	const why = "does not tolerate a taint of the machine"
	c := s.commit(term, s.start(other, on("m2"), on("m1")), s.start(plain, on("m0")), s.start(tolerant, on("m0"), on("m1")))
	if len(c.Started) != 1 || c.Started[0].Job != tolerant || len(c.Refused) != 2 ||
		!strings.Contains(c.Refused[0].Why, why) || !strings.Contains(c.Refused[1].Why, why) {
		t.Fatalf("%+v", c)
	}
	// Whichever process writes: the database refuses the allocation.
	if c := s.commit(term, s.start(plain, on("m2"))); len(c.Started) != 1 {
		t.Fatalf("%+v", c)
	}
	refuses(t, s.pool, "BT019", placeOn, plain)
	mustExec(t, s.pool, placeOn, tolerant)
	s.taint(spec.TaintChange{Remove: []string{"maintenance"}})
	mustExec(t, s.pool, placeOn, plain)
}

// The SQL function that refuses allocations and the Go function that plans agree.
func TestTheDatabaseToleratesAsThePlanDoes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	marks := []string{"a", "a=1", "a=2", "b", "b=1"}
	tolerations := []string{"*", "b=1:no_schedule", "a:no_schedule"}
	tolerations = append(tolerations, marks...)
	for _, taint := range append(spec.StoredTaints(marks), "ab:no_schedule") {
		for _, x := range tolerations {
			request, err := json.Marshal(spec.Request{Tolerations: []string{"c", x}})
			if err != nil {
				t.Fatal(err)
			}
			want := len(spec.Untolerated([]string{"c", x}, []string{taint})) == 0
			if got := one[bool](s, `SELECT tolerates($1, ARRAY[$2])`, string(request), taint); got != want {
				t.Errorf("toleration %q of taint %q: the database says %v, the plan %v", x, taint, got, want)
			}
		}
	}
	if !one[bool](s, `SELECT tolerates('{}', '{}') AND NOT tolerates('{}', '{a:no_schedule}')`) {
		t.Error("a request without tolerations is judged wrongly")
	}
}
