package placement_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth"
	"berth/placement"
	"berth/spec"
)

// withHead makes the members of a request the workers of a gang, with a small head without GPUs as member 0.
func withHead(r spec.Request) spec.Request {
	workers := spec.GroupRequest{Name: "workers", Members: r.Members, CPUMilli: r.CPUMilli, MemoryMiB: r.MemoryMiB, DiskMiB: r.DiskMiB,
		GPUs: r.GPUs, GPUMilli: r.GPUMilli, GPUTypes: r.GPUTypes, GPUMemoryMiB: r.GPUMemoryMiB}
	head := spec.GroupRequest{Name: "head", Members: 1, CPUMilli: 500, MemoryMiB: 512}
	return grouped(r, head, workers)
}

// grouped replaces the members of a request by groups.
func grouped(r spec.Request, groups ...spec.GroupRequest) spec.Request {
	r.Groups, r.Members = groups, 0
	for _, g := range groups {
		r.Members += g.Members
	}
	r.CPUMilli, r.MemoryMiB, r.DiskMiB, r.GPUs, r.GPUMilli, r.GPUTypes, r.GPUMemoryMiB = 0, 0, 0, 0, 0, nil, 0
	labels := map[string]string{spec.GroupsLabel: "1"}
	for k, v := range r.Labels {
		labels[k] = v
	}
	r.Labels = labels
	return r
}

// cores is a group that needs cores alone.
func cores(name string, members int, cpus int64) spec.GroupRequest {
	return spec.GroupRequest{Name: name, Members: members, CPUMilli: 1000 * cpus, MemoryMiB: 1}
}

// rack is a cluster of machines m0, m1 ... with some cores each, and one waiting gang of groups.
func rack(gang spec.Request, cpus ...int64) *placement.Snapshot {
	s := placement.NewSnapshot()
	for i, n := range cpus {
		s.UpsertMachine(placement.Machine{ID: berth.MachineID(fmt.Sprintf("m%d", i)), Epoch: 1, State: berth.MachineReady,
			Total: berth.Capacity{CPUMilli: 1000 * n, MemoryMiB: 1 << 20}})
	}
	s.DefineClass("gang", gang)
	s.UpsertJob(job(1, "gang", 500))
	return s
}

// granted lists the members of a plan's only start as "machine cores".
func granted(t *testing.T, p placement.Plan) (list []string) {
	t.Helper()
	if len(p.Start) > 1 {
		t.Fatalf("%d starts", len(p.Start))
	}
	for _, s := range p.Start {
		for _, g := range s.Ranks {
			list = append(list, fmt.Sprintf("%s %d", g.Machine, g.Capacity.CPUMilli/1000))
		}
	}
	return list
}

func TestEachMemberGetsTheResourcesOfItsGroup(t *testing.T) {
	t.Parallel()
	gang := grouped(spec.Request{Execution: spec.AtLeastOnce}, cores("head", 1, 1), cores("learners", 2, 8), cores("actors", 2, 2))
	for name, p := range map[string]placement.Planner{"best fit": {}, "backfill": {Policy: placement.Policy{Backfill: 2, Preempt: true}}} {
		want := []string{"m2 1", "m0 8", "m1 8", "m2 2", "m2 2"}
		if diff := cmp.Diff(want, granted(t, p.Plan(rack(gang, 8, 8, 5), epoch))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// The head alone would take the machine that is just large enough for a worker.
func TestLargeMembersArePlacedFirst(t *testing.T) {
	t.Parallel()
	gang := grouped(spec.Request{Execution: spec.AtLeastOnce}, cores("head", 1, 1), cores("workers", 2, 8))
	if diff := cmp.Diff([]string{"m1 1", "m0 8", "m1 8"}, granted(t, placement.Planner{}.Plan(rack(gang, 8, 9), epoch))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestUnlikeMembersStartTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	gang := grouped(spec.Request{Execution: spec.AtLeastOnce}, cores("head", 1, 1), cores("workers", 2, 8))
	for _, cpus := range [][]int64{{8, 8}, {8, 1}, {16}, {7, 7, 7, 7}} {
		s := rack(gang, cpus...)
		if got := granted(t, placement.Planner{}.Plan(s, epoch)); got != nil {
			t.Errorf("machines with %v cores start %v", cpus, got)
		}
		// A failed attempt leaves no trace: other jobs get all of the room.
		s.DefineClass("one", spec.Request{CPUMilli: 1000 * cpus[0], MemoryMiB: 1, Members: 1, Execution: spec.AtLeastOnce})
		s.UpsertJob(job(2, "one", 400))
		if got := granted(t, placement.Planner{}.Plan(s, epoch)); len(got) != 1 {
			t.Errorf("machines with %v cores start %v after the gang had no room", cpus, got)
		}
	}
}

func TestUnlikeMembersShareOneNetworkAndOneLabel(t *testing.T) {
	t.Parallel()
	gang := grouped(spec.Request{Execution: spec.AtLeastOnce, SameLabel: "rack"}, cores("head", 1, 1), cores("workers", 1, 8))
	s := placement.NewSnapshot()
	for i, m := range []struct {
		network, rack string
		cpus          int64
	}{{"a", "r1", 1}, {"b", "r1", 8}, {"b", "r2", 1}, {"c", "r3", 8}, {"c", "r3", 1}} {
		s.UpsertMachine(placement.Machine{ID: berth.MachineID(fmt.Sprintf("m%d", i)), Epoch: 1, State: berth.MachineReady, Network: m.network,
			Labels: map[string]string{"rack": m.rack}, Total: berth.Capacity{CPUMilli: 1000 * m.cpus, MemoryMiB: 100}})
	}
	s.DefineClass("gang", gang)
	s.UpsertJob(job(1, "gang", 500))
	if diff := cmp.Diff([]string{"m4 1", "m3 8"}, granted(t, placement.Planner{}.Plan(s, epoch))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A gang whose groups have the same resources is planned as a gang of equal members.
func TestEqualGroupsAreOneGang(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		first, second := rapid.IntRange(1, 3).Draw(t, "first"), rapid.IntRange(1, 3).Draw(t, "second")
		cpus := rapid.Int64Range(1, 4).Draw(t, "cpus")
		machines := rapid.SliceOfN(rapid.Int64Range(1, 9), 1, 6).Draw(t, "machines")
		p := placement.Planner{Estimate: true, Policy: placement.Policy{Backfill: rapid.IntRange(0, 2).Draw(t, "backfill"), AssumeRun: time.Hour}}
		alike := spec.Request{CPUMilli: 1000 * cpus, MemoryMiB: 1, Members: first + second, Execution: spec.AtLeastOnce}
		groups := grouped(alike, cores("a", first, cpus), cores("b", second, cpus))
		got, want := p.Plan(rack(groups, machines...), epoch), p.Plan(rack(alike, machines...), epoch)
		for i := range got.Start {
			got.Start[i].Groups = nil
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("the plan differs (-alike +groups):\n%s", diff)
		}
	})
}

func TestAQuotaCountsTheSumOfUnlikeMembers(t *testing.T) {
	t.Parallel()
	gang := grouped(spec.Request{Execution: spec.AtLeastOnce}, cores("head", 1, 1), cores("workers", 2, 8))
	for _, x := range []struct {
		limit  int64
		starts int
	}{{17_000, 3}, {16_999, 0}} {
		s := rack(gang, 20)
		s.UpsertTenant(placement.Tenant{ID: "t", Weight: 1, Limit: berth.Capacity{CPUMilli: x.limit}})
		j := job(1, "gang", 500)
		j.Tenant = "t"
		s.UpsertJob(j)
		if got := granted(t, placement.Planner{}.Plan(s, epoch)); len(got) != x.starts {
			t.Errorf("with a limit of %d millicores %v starts", x.limit, got)
		}
	}
	if got := gang.Total(); got != (berth.Capacity{CPUMilli: 17_000, MemoryMiB: 3}) {
		t.Errorf("the sum is %+v", got)
	}
}

// running adds a job of another class that uses cores of a machine until a time.
func running(s *placement.Snapshot, id berth.JobID, m string, cpus int64, limit time.Duration) {
	row, _ := s.Machine(berth.MachineID(m))
	g := berth.Grant{Machine: row.ID, Epoch: 1, Capacity: berth.Capacity{CPUMilli: 1000 * cpus, MemoryMiB: 1}}
	row.Used = row.Used.Add(g.Capacity)
	s.UpsertRunning(placement.Running{Job: id, Attempt: 1, Version: 3, Priority: 100, Preemptible: true, StartedAt: epoch, TimeLimit: limit, Ranks: []berth.Grant{g}})
	s.UpsertMachine(row)
}

// A reserved start counts the room of one group once: the other group needs the end of another job.
func TestUnlikeMembersGetAReservedStart(t *testing.T) {
	t.Parallel()
	gang := grouped(spec.Request{Execution: spec.AtLeastOnce}, cores("head", 1, 4), cores("workers", 1, 8))
	s := rack(gang, 12)
	running(s, "first", "m0", 4, time.Hour)
	running(s, "second", "m0", 4, 2*time.Hour)
	p := placement.Planner{Estimate: true, Policy: placement.Policy{Backfill: 1}}
	want := []placement.Estimate{{Job: job(1, "", 0).ID, Position: 1, Start: epoch.Add(2 * time.Hour), Reserved: true}}
	if diff := cmp.Diff(want, p.Plan(s, epoch).Estimates); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// A job that would delay the start has no room, and one that ends before it has.
	s.DefineClass("one", spec.Request{CPUMilli: 4000, MemoryMiB: 1, Members: 1, Execution: spec.AtLeastOnce})
	late, early := job(2, "one", 400), job(3, "one", 300)
	late.TimeLimit, early.TimeLimit = 3*time.Hour, time.Hour
	s.UpsertJob(late)
	s.UpsertJob(early)
	if plan := p.Plan(s, epoch); len(plan.Start) != 1 || plan.Start[0].Job != early.ID {
		t.Errorf("starts %+v", plan.Start)
	}
}

func TestVictimsMakeRoomForEachGroup(t *testing.T) {
	t.Parallel()
	gang := grouped(spec.Request{Execution: spec.AtLeastOnce}, cores("head", 1, 4), cores("workers", 1, 8))
	s := rack(gang, 4, 8, 8)
	for i, cpus := range []int64{4, 8, 8} {
		running(s, berth.JobID(fmt.Sprintf("victim%d", i)), fmt.Sprintf("m%d", i), cpus, 0)
	}
	plan := placement.Planner{Policy: placement.Policy{Preempt: true, Order: placement.Priority}}.Plan(s, epoch.Add(time.Hour))
	stopped := map[berth.JobID]bool{}
	for _, o := range plan.Preempt {
		stopped[o.Job] = true
	}
	if len(stopped) != 2 || stopped["victim0"] == (stopped["victim1"] && stopped["victim2"]) {
		t.Errorf("stops %v, nominates %+v", stopped, plan.Nominate)
	}
	var kept int64
	for _, m := range plan.Nominate {
		kept += m.Capacity.CPUMilli
	}
	if kept != 12_000 {
		t.Errorf("nominations of %d millicores: %+v", kept, plan.Nominate)
	}
}

// The places of a gang are counted before its members are placed: one place too few counted, and the gang waits
// for ever.
func TestGangsThatJustFitStart(t *testing.T) {
	t.Parallel()
	alike := spec.Request{CPUMilli: 4000, MemoryMiB: 1, Members: 3, Execution: spec.AtLeastOnce, SameLabel: "rack"}
	for name, gang := range map[string]spec.Request{
		"alike":  alike,
		"groups": grouped(alike, cores("head", 1, 4), cores("workers", 2, 4)),
	} {
		cluster := func() *placement.Snapshot {
			s := rack(gang, 8, 3, 8, 4)
			for i, label := range []string{"a", "a", "b", "b"} {
				m, _ := s.Machine(berth.MachineID(fmt.Sprintf("m%d", i)))
				m.Labels = map[string]string{"rack": label}
				s.UpsertMachine(m)
			}
			return s
		}
		if got := granted(t, placement.Planner{}.Plan(cluster(), epoch)); len(got) != 3 || strings.Contains(fmt.Sprint(got), "m0") {
			t.Errorf("%s: starts %v", name, got)
		}
		s := cluster()
		running(s, "first", "m2", 8, 0)
		running(s, "second", "m3", 4, 0)
		p := placement.Planner{Policy: placement.Policy{Preempt: true, Order: placement.Priority}}.Plan(s, epoch.Add(time.Hour))
		if len(p.Preempt) != 2 {
			t.Errorf("%s: stops %+v", name, p.Preempt)
		}
	}
}

func TestARepairPutsUnlikeMembersBackByTheirSize(t *testing.T) {
	t.Parallel()
	gang := grouped(spec.Request{Execution: spec.AtLeastOnce}, cores("head", 1, 2), cores("workers", 2, 8))
	s := rack(gang, 2, 8, 8, 8)
	j := job(1, "gang", 500)
	j.Attempt = 1
	s.UpsertJob(j)
	var kept []placement.Nomination
	for m, cpus := range map[berth.MachineID]int64{"m0": 2, "m3": 8} {
		kept = append(kept, placement.Nomination{For: j.ID, Machine: m, Capacity: berth.Capacity{CPUMilli: 1000 * cpus, MemoryMiB: 1},
			ExpiresAt: epoch.Add(time.Minute), Repair: true})
	}
	s.SetNominations(kept)
	want := []string{"m0 2", "m3 8", "m1 8"}
	if diff := cmp.Diff(want, granted(t, placement.Planner{}.Plan(s, epoch))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDemandCountsTheMachinesOfEachGroup(t *testing.T) {
	t.Parallel()
	gang := grouped(spec.Request{Execution: spec.AtLeastOnce}, cores("head", 2, 1), cores("workers", 2, 8))
	s := rack(gang, 8)
	s.DefineClass("all", spec.Request{CPUMilli: 8000, MemoryMiB: 1, Members: 1, Execution: spec.AtLeastOnce})
	first := job(0, "all", 900)
	s.UpsertJob(first)
	got := placement.Planner{Demand: true}.Plan(s, epoch).Demand
	want := []placement.Demand{{Like: "m0", Machines: 3, Members: 4, Capacity: berth.Capacity{CPUMilli: 18_000, MemoryMiB: 4}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAnExplanationNamesTheGroupWithoutRoom(t *testing.T) {
	t.Parallel()
	gang := grouped(spec.Request{Execution: spec.AtLeastOnce}, cores("head", 1, 2), cores("workers", 2, 8))
	for _, x := range []struct {
		cpus      []int64
		now, ever int
		lacking   bool
		contains  string
	}{
		{[]int64{8, 4, 2}, 2, 2, true, "group workers: "},
		{[]int64{8, 8, 8}, 3, 3, false, ""},
		{[]int64{8, 8}, 2, 3, false, "2 of 3 members"},
		{[]int64{1, 1}, 0, 0, true, "group workers: "},
	} {
		e := placement.Explain(rack(gang, x.cpus...), gang)
		if e.Members == nil || e.Members.Asked != 3 || e.Members.Now != x.now || e.Members.Ever != x.ever || e.Unsatisfiable() != x.lacking {
			t.Errorf("cores %v: %+v, lacking %v", x.cpus, e.Members, e.Lacking)
		}
		if !strings.Contains(e.Summary, x.contains) {
			t.Errorf("cores %v: summary %q lacks %q", x.cpus, e.Summary, x.contains)
		}
	}
}

// A reader that does not know groups reads a request that no machine meets.
func TestAnEngineWithoutGroupsStartsNoneOfThem(t *testing.T) {
	t.Parallel()
	old := withHead(spec.Request{CPUMilli: 1000, MemoryMiB: 1, Members: 2, Execution: spec.AtLeastOnce})
	old.Groups = nil
	if got := granted(t, placement.Planner{}.Plan(rack(old, 8, 8, 8), epoch)); got != nil {
		t.Errorf("starts %v", got)
	}
	if e := placement.Explain(rack(old, 8), old); !slices.ContainsFunc(e.Clauses, func(c placement.Clause) bool { return c.Name == "labels" && c.After == 1 }) {
		t.Errorf("explained by %+v", e.Clauses)
	}
}
