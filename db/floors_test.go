package db_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// software returns facts with a version of runc.
func software(runc string) wire.HostFacts {
	return wire.HostFacts{Runtime: "runc", Seccomp: "builtin", Components: []wire.HostComponent{{Name: "runc", Version: runc}}}
}

// judge is a floor of runc 1.3.6, and of a profile for system calls.
func judge(f wire.HostFacts) (list []wire.HostFinding) {
	if v, _ := f.Version("runc"); v != "1.3.6" {
		list = append(list, wire.HostFinding{Condition: wire.BelowFloor, Component: "runc", Version: v, Floor: "1.3.6",
			Advisories: []string{"CVE-2026-41579"}})
	}
	if f.Seccomp == "" {
		list = append(list, wire.HostFinding{Condition: wire.Unconfined, Component: wire.SettingSeccomp})
	}
	return list
}

// reports stores facts of the agent's machine.
func (a *agent) reports(facts wire.HostFacts) {
	a.t.Helper()
	err := a.db.Agents.ReportHost(a.t.Context(), a.machine, wire.HostReport{AgentBoot: a.boot, Epoch: a.epoch, Facts: facts})
	if err != nil {
		a.t.Fatal(err)
	}
}

// judged has the leader judge all machines, and returns the texts of the changed verdicts.
func (s *stage) judged(term db.Term) (texts []string) {
	s.t.Helper()
	changed, err := s.db.Machines.JudgeHosts(s.t.Context(), term, "floors-1", judge)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, v := range changed {
		texts = append(texts, v.Text)
	}
	return texts
}

// unmet returns the reason for which placement keeps jobs of untrusted tenants off m0.
func (s *stage) unmet() string {
	s.t.Helper()
	machines := s.loadQueue().Machines
	i := slices.IndexFunc(machines, func(m db.PoolMachine) bool { return m.ID == "m0" })
	if met := one[bool](s, `SELECT meets_floors(m) FROM machines m WHERE id = 'm0'`); met != (machines[i].Unmet == "") {
		s.t.Errorf("the plan reads %q, and the database says met: %v", machines[i].Unmet, met)
	}
	return machines[i].Unmet
}

// distrust sets the trust in a tenant.
func (s *stage) distrust(id berth.TenantID, untrusted bool) {
	s.t.Helper()
	if err := s.db.Tenants.Update(s.t.Context(), id, spec.TenantPatch{Untrusted: &untrusted}); err != nil {
		s.t.Fatal(err)
	}
}

const noReport = "the agent has not reported the versions of the container engine"

func TestVerdictsFollowReports(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	a, _ := s.register("host1", "agent1")
	if got := s.unmet(); got != noReport {
		t.Errorf("without a report: %q", got)
	}
	a.reports(software("1.1.5"))
	if got := s.unmet(); got != noReport {
		t.Errorf("before the verdict: %q", got)
	}
	const old = "runc 1.1.5 is older than 1.3.6, which fixes CVE-2026-41579"
	if got := s.judged(term); !slices.Equal(got, []string{"does not meet the security floors: " + old}) || s.unmet() != old {
		t.Errorf("runc 1.1.5: %q, %q", got, s.unmet())
	}
	m := s.machine("", "m0")
	if m.Labels["below_floor"] != "true" || !slices.Equal(m.Security.Conditions, []string{"below_floor"}) ||
		!slices.Equal(m.Security.Reasons, []string{old}) || m.Security.Facts.Runtime != "runc" {
		t.Errorf("shown as %+v, labels %v", m.Security, m.Labels)
	}
	a.reports(software("1.1.5"))
	if got := s.judged(term); len(got) != 0 {
		t.Errorf("the same report again: %q", got)
	}
	unconfined := software("1.3.6")
	unconfined.Seccomp = ""
	a.reports(unconfined)
	s.judged(term)
	if m := s.machine("", "m0"); m.Labels["unconfined"] != "true" || m.Labels["below_floor"] != "" {
		t.Errorf("without a profile: labels %v", m.Labels)
	}
	a.reports(software("1.3.6"))
	if got := s.judged(term); !slices.Equal(got, []string{"meets the security floors"}) || s.unmet() != "" {
		t.Errorf("runc 1.3.6: %q, %q", got, s.unmet())
	}
	if m := s.machine("", "m0"); len(m.Security.Conditions) != 0 || m.Labels["unconfined"] != "" {
		t.Errorf("a machine that meets the floors is shown as %+v, labels %v", m.Security, m.Labels)
	}
	if _, err := s.db.Machines.JudgeHosts(t.Context(), term, "floors-2", func(wire.HostFacts) []wire.HostFinding {
		return []wire.HostFinding{{Condition: wire.HostUnknown, Component: "crun"}}
	}); err != nil || s.unmet() != "the version of crun is not known" {
		t.Errorf("other floors: %q, %v", s.unmet(), err)
	}
	texts := one[[]string](s, `SELECT array_agg(reason ORDER BY seq) FROM machine_events WHERE machine_id = 'm0' AND actor = 'leader'`)
	if len(texts) != 4 || texts[2] != "meets the security floors" {
		t.Errorf("history %q", texts)
	}
	err := s.db.Agents.ReportHost(t.Context(), "m0", wire.HostReport{AgentBoot: "agent0", Epoch: a.epoch, Facts: software("1")})
	if !berth.IsSlug(err, berth.SlugStaleEpoch) {
		t.Errorf("a report of another process: %v", err)
	}
}

func TestAVerdictEndsWithTheAgentThatItIsAbout(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	a, _ := s.register("host1", "agent1")
	a.reports(software("1.3.6"))
	s.judged(term)
	if s.register("host1", "agent2"); s.unmet() != "" {
		t.Errorf("after a restart of the agent: %q", s.unmet())
	}
	// A registration by an older berthd.
	mustExec(t, s.pool, `UPDATE machines SET agent_boot = 'agent3' WHERE id = 'm0'`)
	if got := s.unmet(); got != noReport {
		t.Errorf("after a registration by an older berthd: %q", got)
	}
	if c := s.machine("", "m0").Security.Conditions; !slices.Equal(c, []string{"unknown"}) {
		t.Errorf("shown as %q", c)
	}
	a, _ = s.register("host1", "agent4")
	a.reports(software("1.3.6"))
	s.judged(term)
	if s.register("host2", "agent5"); s.unmet() != noReport {
		t.Errorf("after a restart of the host: %q", s.unmet())
	}
	if n := one[int](s, `SELECT count(*)::int FROM machine_hosts`); n != 1 {
		t.Errorf("%d reports, want 1", n)
	}
	mustExec(t, s.pool, `INSERT INTO machine_waivers (machine_id, component, version, until, reason, actor, findings) VALUES ('m0', 'runc', '1', 'infinity', 'r', 'a', '[]')`)
	mustExec(t, s.pool, `UPDATE machines SET state = 'joining', host_boot = '', epoch = epoch + 1 WHERE id = 'm0'`)
	if n := one[int](s, `SELECT (SELECT count(*) FROM machine_hosts)::int + (SELECT count(*) FROM machine_waivers)::int`); n != 0 {
		t.Error("another host inherits the facts or the waivers of a machine")
	}
}

func TestWaiversEnd(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	a, _ := s.register("host1", "agent1")
	waive := func(component string, d time.Duration) error {
		return s.db.Machines.Waive(t.Context(), "m0", spec.NewWaiver{Component: component, Until: time.Now().Add(d), Reason: "backported"}, "operator:ann")
	}
	if err := waive("runc", time.Hour); berth.CodeOf(err) != berth.CodeInvalid {
		t.Errorf("a waiver before a report: %v", err)
	}
	a.reports(software("1.1.5"))
	if err := waive("runc", time.Hour); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a waiver before the verdict: %v", err)
	}
	s.judged(term)
	if err := waive("seccomp", time.Hour); berth.CodeOf(err) != berth.CodeInvalid || !strings.Contains(err.Error(), "meets its") {
		t.Errorf("a waiver of a setting without a finding: %v", err)
	}
	if err := waive("crun", time.Hour); berth.CodeOf(err) != berth.CodeInvalid || !strings.Contains(err.Error(), "allowed are runc") {
		t.Errorf("a waiver of a component that is not there: %v", err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(waive("runc", time.Hour))
	if got := s.judged(term); len(got) != 1 || !strings.HasPrefix(got[0], "meets the security floors; waived: runc 1.1.5 until") || s.unmet() != "" {
		t.Errorf("waived: %q, %q", got, s.unmet())
	}
	if w := s.machine("", "m0").Security.Waivers; len(w) != 1 || w[0].Version != "1.1.5" || w[0].Actor != "operator:ann" || w[0].Reason != "backported" {
		t.Errorf("waivers %+v", w)
	}
	if r := one[string](s, `SELECT reason FROM machine_events WHERE machine_id = 'm0' AND actor = 'operator:ann'`); !strings.HasPrefix(r, "security floor of runc 1.1.5 waived until") {
		t.Errorf("history %q", r)
	}
	// The end of a waiver counts at once, before the leader's next verdict.
	mustExec(t, s.pool, `UPDATE machines SET floor_until = clock_timestamp() WHERE id = 'm0'`)
	mustExec(t, s.pool, `UPDATE machine_waivers SET until = clock_timestamp()`)
	if one[bool](s, `SELECT meets_floors(m) FROM machines m WHERE id = 'm0'`) {
		t.Error("the database takes a waiver that has ended")
	}
	if got := s.judged(term); len(got) != 1 || s.unmet() == "" || len(s.machine("", "m0").Security.Waivers) != 0 {
		t.Errorf("at the end: %q, %q", got, s.unmet())
	}
	must(waive("runc", time.Hour))
	s.judged(term)
	a.reports(software("1.1.6"))
	if s.judged(term); s.unmet() == "" || one[int](s, `SELECT count(*)::int FROM machine_waivers`) != 0 {
		t.Errorf("another version keeps the waiver: %q", s.unmet())
	}
	must(waive("runc", time.Hour))
	s.judged(term)
	s.register("host1", "agent2") // which never reports
	must(s.db.Machines.Unwaive(t.Context(), "m0", "runc", "operator:ann"))
	if s.unmet() == "" {
		t.Error("a waiver that an operator has ended counts until the next verdict")
	}
	if s.judged(term); s.unmet() == "" {
		t.Error("a waiver that an operator has ended counts")
	}
	if err := s.db.Machines.Unwaive(t.Context(), "m0", "runc", "operator:ann"); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("no waiver: %v", err)
	}
}

// Agents and join tokens name labels of their choice, but not the labels of a verdict.
func TestNoAgentSetsTheLabelsOfAVerdict(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mustExec(t, s.pool, `UPDATE machines SET labels = '{"rack": "r1", "below_floor": "false", "unconfined": "false"}' WHERE id = 'm0'`)
	if got := s.machine("", "m0").Labels; len(got) != 1 || got["rack"] != "r1" {
		t.Errorf("without a verdict: %v", got)
	}
	mustExec(t, s.pool, `UPDATE machines SET floor_conditions = '{below_floor}' WHERE id = 'm0'`)
	if got := s.machine("", "m0").Labels; len(got) != 2 || got["below_floor"] != "true" {
		t.Errorf("with a verdict: %v", got)
	}
	i := slices.IndexFunc(s.loadQueue().Machines, func(m db.PoolMachine) bool { return m.ID == "m0" })
	if got := s.loadQueue().Machines[i].Labels; got["below_floor"] != "true" || got["unconfined"] != "" {
		t.Errorf("placement reads %v", got)
	}
	window := func(label string) error {
		_, err := s.db.Maintenance.Create(t.Context(), spec.NewMaintenance{Labels: map[string]string{label: "true"},
			From: time.Now().Add(time.Hour), For: spec.Duration(time.Hour), Reason: "upgrade"}, "operator:ann")
		return err
	}
	if err := window("below_floor"); err != nil {
		t.Errorf("a maintenance window selects by the verdict: %v", err)
	}
	mustExec(t, s.pool, `UPDATE machines SET labels = '{"unconfined": "true"}' WHERE id = 'm0'`)
	if err := window("unconfined"); berth.CodeOf(err) != berth.CodeInvalid {
		t.Errorf("a maintenance window selects by the label of an agent: %v", err)
	}
}

// A plan may be made before a verdict, or before a tenant becomes untrusted: the commit itself keeps the job off.
func TestCommitKeepsUntrustedJobsOffMachinesBelowTheFloors(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	a, _ := s.register("host1", "agent1")
	a.reports(software("1.1.5"))
	s.judged(term)
	trusted, guest, below, other := s.queuedOf("team"), s.queuedOf("guests"), s.queuedOf("interns"), s.queuedOf("interns")
	mustExec(t, s.pool, `UPDATE tenants SET parent = 'guests' WHERE id = 'interns'`)
	s.distrust("guests", true)
	c := s.commit(term, s.start(trusted, on("m0")), s.start(guest, on("m0")), s.start(below, on("m1")))
	if len(c.Started) != 1 || c.Started[0].Job != trusted || len(c.Refused) != 2 ||
		!strings.Contains(c.Refused[0].Why, "runc 1.1.5 is older than 1.3.6") || !strings.Contains(c.Refused[1].Why, noReport) {
		t.Fatalf("%+v", c)
	}
	mustExec(t, s.pool, `UPDATE machines SET floor_findings = '[]' WHERE id = 'm1'`) // both processes are ''
	if c := s.commit(term, s.start(guest, on("m1"))); len(c.Started) != 1 {
		t.Fatalf("on a machine that meets the floors: %+v", c)
	}
	// Whichever process writes: the database refuses the allocation.
	refuses(t, s.pool, "BT020", placeOn, guest)
	mustExec(t, s.pool, placeOn, trusted)
	s.distrust("guests", false)
	if c := s.commit(term, s.start(below, on("m0")), s.start(other, on("m0"))); len(c.Started) != 2 {
		t.Fatalf("trusted again: %+v", c)
	}
	got := one[[]string](s, `SELECT array_agg(j.tenant || ' ' || a.untrusted ORDER BY j.tenant) FROM allocations a JOIN jobs j ON j.id = a.job WHERE a.rank = 0`)
	if want := []string{"guests true", "interns false", "interns false", "team false"}; !slices.Equal(got, want) {
		t.Errorf("allocations %q, want %q", got, want)
	}
}

// waived has an operator waive the floor of a component of m0 for an hour.
func (s *stage) waived(component string) {
	s.t.Helper()
	err := s.db.Machines.Waive(s.t.Context(), "m0", spec.NewWaiver{Component: component, Until: time.Now().Add(time.Hour),
		Reason: "backported"}, "operator:ann")
	if err != nil {
		s.t.Fatal(err)
	}
}

// An operator's word is about the version that the operator has checked, not about the one that is reported by then.
func TestAWaiverIsForTheCheckedVersion(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	a, _ := s.register("host1", "agent1")
	a.reports(software("1.1.5"))
	s.judged(term)
	a.reports(software("1.1.3")) // the engine was replaced while the operator read the advisory
	s.judged(term)
	w := spec.NewWaiver{Component: "runc", Version: "1.1.5", Until: time.Now().Add(time.Hour), Reason: "backported"}
	err := s.db.Machines.Waive(t.Context(), "m0", w, "operator:ann")
	if berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), "reports runc 1.1.3") {
		t.Errorf("a waiver for another version: %v", err)
	}
	if n := one[int](s, `SELECT count(*)::int FROM machine_waivers`); n != 0 {
		t.Errorf("%d waivers", n)
	}
	for _, version := range []string{"1.1.3", ""} { // older clients send none
		w.Version = version
		if err := s.db.Machines.Waive(t.Context(), "m0", w, "operator:ann"); err != nil {
			t.Errorf("a waiver for %q: %v", version, err)
		}
	}
}

// A waiver states something about the holes that were known when it was set. Later holes, and later floors of an
// operator, are not covered.
func TestAWaiverCoversOnlyTheHolesThatItWaived(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	a, _ := s.register("host1", "agent1")
	a.reports(software("1.1.5"))
	s.judged(term)
	s.waived("runc")
	if s.judged(term); s.unmet() != "" {
		t.Fatalf("waived: %q", s.unmet())
	}
	for _, x := range []struct {
		name, condition, floor string
		advisories             []string
		met                    bool
	}{
		{"another hole", wire.BelowFloor, "1.3.6", []string{"CVE-2026-41579", "CVE-2027-1"}, false},
		{"the hole that was waived", wire.BelowFloor, "1.3.6", []string{"CVE-2026-41579"}, true},
		{"a later fix of the same hole", wire.BelowFloor, "1.3.7", []string{"CVE-2026-41579"}, false},
		{"a floor of the operator", wire.BelowFloor, "1.3.6", nil, false},
		{"another condition", wire.HostUnknown, "", nil, false},
	} {
		_, err := s.db.Machines.JudgeHosts(t.Context(), term, x.name, func(wire.HostFacts) []wire.HostFinding {
			return []wire.HostFinding{{Condition: x.condition, Component: "runc", Version: "1.1.5", Floor: x.floor,
				Advisories: x.advisories}}
		})
		if err != nil || (s.unmet() == "") != x.met {
			t.Errorf("%s: %q, %v", x.name, s.unmet(), err)
		}
	}
	if s.judged(term); s.unmet() != "" {
		t.Errorf("the first floors again: %q", s.unmet())
	}
}

// An engine that is being restarted may not name its versions. This says nothing about the version that was waived.
func TestAMissingVersionDoesNotEndAWaiver(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	a, _ := s.register("host1", "agent1")
	a.reports(software("1.1.5"))
	s.judged(term)
	s.waived("runc")
	s.judged(term)
	for _, facts := range []wire.HostFacts{software(""), {Seccomp: "builtin"}} {
		a.reports(facts)
		if s.judged(term); s.unmet() == "" {
			t.Error("a missing version is taken for the one that was waived")
		}
	}
	a.reports(software("1.1.5"))
	if s.judged(term); s.unmet() != "" {
		t.Errorf("the version again: %q", s.unmet())
	}
}

// Agents report every ten minutes. Facts that are older than an hour say nothing about the machine, also if the
// reports of the present process fail.
func TestAnOldReportIsUnknown(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	a, _ := s.register("host1", "agent1")
	a.reports(software("1.3.6"))
	s.judged(term)
	a, _ = s.register("host1", "agent2")
	mustExec(t, s.pool, `UPDATE machine_hosts SET at = at - interval '61 minutes'`)
	if got := s.judged(term); len(got) != 1 || s.unmet() != noReport {
		t.Errorf("after an hour: %q, %q", got, s.unmet())
	}
	if got := s.judged(term); len(got) != 0 {
		t.Errorf("judged again: %q", got)
	}
	a.reports(software("1.3.6"))
	if got := s.judged(term); len(got) != 1 || s.unmet() != "" {
		t.Errorf("a new report: %q, %q", got, s.unmet())
	}
}
