package db_test

import (
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

func (s *stage) machine(tenant berth.TenantID, id berth.MachineID) wire.Machine {
	s.t.Helper()
	m, err := s.db.Machines.Get(s.t.Context(), tenant, id)
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

func (s *stage) lease(id berth.MachineID, left time.Duration) {
	s.t.Helper()
	mustExec(s.t, s.pool, `INSERT INTO machine_leases (machine_id, epoch, until) VALUES ($1, 1, now() + $2 * interval '1 second')
		ON CONFLICT (machine_id) DO UPDATE SET until = excluded.until`, id, left.Seconds())
}

func TestAMachineShowsWhoUsesIt(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, _ := s.started(nil)
	m := s.machine("", "m0")
	if m.Used.GPUMilli != 1000 || m.Used.CPUMilli != 1000 || m.Free != m.Capacity.Sub(m.Used) {
		t.Errorf("capacity %+v, used %+v, free %+v", m.Capacity, m.Used, m.Free)
	}
	if len(m.Jobs) != 1 || m.Jobs[0].Job != id || m.Jobs[0].State != berth.AllocActive {
		t.Errorf("jobs %+v, want %s", m.Jobs, id)
	}
	if len(m.GPUs) != 2 || m.GPUs[0].UsedMilli != 1000 || len(m.GPUs[0].Jobs) != 1 || m.GPUs[0].Jobs[0] != id || m.GPUs[1].UsedMilli != 0 || m.GPUs[0].UUID == "" {
		t.Errorf("GPUs %+v", m.GPUs)
	}
	other := s.machine("b", "m0")
	if len(other.Jobs) != 0 || len(other.GPUs[0].Jobs) != 0 {
		t.Errorf("another tenant sees whose jobs run: %+v", other)
	}
	if other.Free != m.Free {
		t.Errorf("another tenant sees %+v free, want %+v", other.Free, m.Free)
	}
	if _, err := s.db.Machines.Get(t.Context(), "", "nowhere"); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("an unknown machine: %v", err)
	}
}

func TestDrainAndUndrain(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	deadline := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	if err := s.db.Machines.Drain(t.Context(), "m0", "new disk", &deadline, "operator:test"); err != nil {
		t.Fatal(err)
	}
	m := s.machine("", "m0")
	if m.State != wire.MachineDrained || m.Reason != "new disk" || m.Deadline == nil || !m.Deadline.Equal(deadline) {
		t.Errorf("drained machine %+v", m)
	}
	s.lease("m0", time.Minute)
	if err := s.db.Machines.Undrain(t.Context(), "m0", "operator:test"); err != nil {
		t.Fatal(err)
	}
	if m := s.machine("", "m0"); m.State != berth.MachineReady || m.Reason != "" || m.Deadline != nil {
		t.Errorf("undrained machine %+v", m)
	}
	if err := s.db.Machines.Drain(t.Context(), "m0", "again", nil, "operator:test"); err != nil {
		t.Fatal(err)
	}
	s.lease("m0", -time.Second)
	if err := s.db.Machines.Undrain(t.Context(), "m0", "operator:test"); err != nil {
		t.Fatal(err)
	}
	if m := s.machine("", "m0"); m.State != berth.MachineSuspect {
		t.Errorf("a silent machine is %s after undrain, want suspect", m.State)
	}
	if err := s.db.Machines.Drain(t.Context(), "nowhere", "", nil,
		"operator:test"); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("drain of an unknown machine: %v", err)
	}
}

func TestConfirmDeadReleasesWhatASilentMachineHolds(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	running, attempt := s.started(nil)
	orphan, orphaned := s.started(nil)
	s.orphan(orphan, orphaned, 0)
	s.lease("m0", time.Minute)
	if _, err := s.db.Machines.ConfirmDead(t.Context(), "m0", "operator:test"); berth.CodeOf(err) != berth.CodeConflict {
		t.Fatalf("confirm-dead of a live machine: %v, want conflict", err)
	}
	s.lease("m0", -time.Second)
	hint := s.db.Hub().Subscribe(db.TopicJob, string(running))
	defer hint.Close()
	jobs, err := s.db.Machines.ConfirmDead(t.Context(), "m0", "operator:test")
	if err != nil || len(jobs) != 2 {
		t.Fatalf("confirm-dead: %v, %v; want two jobs", jobs, err)
	}
	if !hears(t, hint) {
		t.Error("nobody was told")
	}
	m := s.machine("", "m0")
	if m.Used != (berth.Capacity{}) || m.GPUs[0].UsedMilli != 0 || m.State != berth.MachineLost || m.Epoch != 2 {
		t.Errorf("machine after confirm-dead %+v", m)
	}
	if e := lastEvent(s, running); e.Kind != wire.EventReleased || e.Actor != "operator:test" {
		t.Errorf("last event %+v", e)
	}
	if r := s.settle(running, attempt); r.Next != berth.Retrying {
		t.Errorf("the job becomes %+v, want retrying", r)
	}
	if again, err := s.db.Machines.ConfirmDead(t.Context(), "m0", "operator:test"); err != nil || len(again) != 0 {
		t.Errorf("a second confirm-dead: %v, %v", again, err)
	}
}

func TestRetireIsRefusedWhileAnythingCounts(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.started(nil)
	const busy = "machine m0 is ready and still runs 1 job; drain it and wait, or use confirm-dead if the machine is off"
	if err := s.db.Machines.Retire(t.Context(), "m0", "operator:test"); berth.CodeOf(err) != berth.CodeConflict ||
		err.Error() != busy {
		t.Fatalf("retire of a machine in use: %v, want conflict", err)
	}
	s.exit(id, attempt, 0, exited(0))
	mustExec(t, s.pool, `INSERT INTO tokens (id, tenant, name, role, machine_id, sha256) VALUES ('t', '', 'agent:m0', 'machine', 'm0', 'x')`)
	if err := s.db.Machines.Retire(t.Context(), "m0", "operator:test"); err != nil {
		t.Fatal(err)
	}
	if n := one[int](s, `SELECT count(*) FROM tokens WHERE machine_id = 'm0' AND revoked_at IS NULL`); n != 0 {
		t.Error("the retired machine's token still works")
	}
	list, err := s.db.Machines.List(t.Context(), db.MachineFilter{})
	if err != nil || len(list) != 2 {
		t.Errorf("%d machines are listed, %v; want m1 and m2", len(list), err)
	}
	if s.machine("", "m0").State != berth.MachineRetired {
		t.Error("the retired machine cannot be shown")
	}
}

func TestTokensOpenUntilTheyEnd(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	made, err := s.db.Tokens.Create(t.Context(), spec.NewToken{Name: "ci", Tenant: "team-a", Role: spec.RoleUser},
		"operator:test")
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.db.Tokens.Authenticate(t.Context(), made.Secret)
	if err != nil || p.Tenant != "team-a" || p.Role != spec.RoleUser || p.Name != "ci" {
		t.Errorf("authenticate: %+v, %v", p, err)
	}
	if n := one[int](s, `SELECT count(*) FROM tokens WHERE encode(sha256, 'escape') LIKE '%' || $1 || '%'`, made.Secret[19:]); n != 0 {
		t.Error("the secret is stored")
	}
	brief, err := s.db.Tokens.Create(t.Context(), spec.NewToken{Name: "brief", Tenant: "team-a", Role: spec.RoleUser,
		TTL: 1e6}, "operator:test")
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, s.pool, `UPDATE tokens SET expires_at = now() - interval '1 second' WHERE id = $1`, brief.ID)
	if err := s.db.Tokens.Revoke(t.Context(), made.ID, "operator:test"); err != nil {
		t.Fatal(err)
	}
	join, err := s.db.JoinTokens.Create(t.Context(), spec.NewJoinToken{}, "operator:test")
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]string{
		made.Secret:  "token " + made.ID + " is revoked",
		brief.Secret: "token " + brief.ID + " expired at 20",
	} {
		_, err := s.db.Tokens.Authenticate(t.Context(), token)
		if berth.CodeOf(err) != berth.CodeUnauthorized || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	other := func(secret string) string { return secret[:len(secret)-1] + string("01"[(secret[len(secret)-1]&1)^1]) }
	for name, token := range map[string]string{
		"a join token": join.Secret, "empty": "", "short": "berth_x_y",
		"another secret": other(made.Secret), "another secret of the expired one": other(brief.Secret),
		"unknown":      "berth_000000000000_" + made.Secret[19:],
		"with a quote": "berth_' OR '1'='_" + made.Secret[19:],
	} {
		_, err := s.db.Tokens.Authenticate(t.Context(), token)
		if berth.CodeOf(err) != berth.CodeUnauthorized || err.Error() != "the token is not known to this server" {
			t.Errorf("%s: got %v, want the one answer", name, err)
		}
	}
}
