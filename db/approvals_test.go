package db_test

import (
	"strings"
	"testing"

	"berth"
	"berth/spec"
	"berth/wire"
)

// joining is a machine that joins with a token and registers.
type joining struct {
	*stage
	agent *agent
	req   wire.RegisterRequest
}

// joinsWith has machine m7 join with a token in the given pool. The machine has two GPUs.
func (s *stage) joinsWith(n spec.NewJoinToken) *joining {
	s.t.Helper()
	t, err := s.db.JoinTokens.Create(s.t.Context(), n, "operator:test")
	if err == nil {
		_, _, err = s.db.JoinTokens.Join(s.t.Context(), t.Secret, "m7")
	}
	if err != nil {
		s.t.Fatal(err)
	}
	j := &joining{stage: s, agent: &agent{stage: s, machine: "m7", host: "h", boot: "a"}}
	j.req = j.agent.request()
	j.req.Inventory.Labels = map[string]string{"rack": "r7"}
	j.req.Inventory.GPUs = []berth.GPU{{UUID: "GPU-7a", Model: "A100", MemoryMiB: 81920, Healthy: true},
		{Index: 1, UUID: "GPU-7b", Model: "A100", MemoryMiB: 81920, Healthy: true}}
	return j
}

// registers registers the machine and compares its shown state and the end of its reason.
func (j *joining) registers(state berth.MachineState, reason string) {
	j.t.Helper()
	if _, _, err := j.db.Agents.Register(j.t.Context(), "m7", j.req); err != nil {
		j.t.Fatal(err)
	}
	j.shows(state, reason)
}

func (j *joining) shows(state berth.MachineState, reason string) {
	j.t.Helper()
	if m := j.machine("", "m7"); m.State != state || !strings.Contains(m.Reason, reason) || (reason == "") != (m.Reason == "") {
		j.t.Errorf("the machine is %s: %q, want %s: %q", m.State, m.Reason, state, reason)
	}
}

func (j *joining) approve(fingerprint string) error {
	return j.db.Machines.Approve(j.t.Context(), "m7", fingerprint, "operator:ann")
}

func TestAMachineWaitsForItsApproval(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.setPool("a", spec.PoolRules{Approval: true})
	j := s.joinsWith(spec.NewJoinToken{Pool: "a"})
	if err := j.approve(""); berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), "has not registered") {
		t.Errorf("approved before it registered: %v", err)
	}
	j.registers(wire.MachinePending, "waits for approval")
	j.registers(wire.MachinePending, "waits for approval")
	// The leader cannot place there, whatever it plans.
	id, term := s.queued(nil), s.term()
	s.mustRefuse(term, s.start(id, on("m7")), "m7")
	if p, err := s.db.Pools.Get(t.Context(), "a"); err != nil || !p.Approval || p.Machines != 1 || p.Pending != 1 {
		t.Errorf("pool %+v, %v", p, err)
	}
	m := s.machine("", "m7")
	if m.Approval == nil || m.Approval.Held == "" || len(m.Approval.Equipment.GPUs) != 2 || m.Approval.By != "" {
		t.Fatalf("approval %+v", m.Approval)
	}
	if err := j.approve("0123456789ab"); berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), m.Approval.Fingerprint) {
		t.Errorf("approved other equipment: %v", err)
	}
	for range 2 {
		if err := j.approve(m.Approval.Fingerprint); err != nil {
			t.Fatal(err)
		}
		j.shows(berth.MachineReady, "")
	}
	if a := s.machine("", "m7").Approval; a == nil || a.By != "operator:ann" || a.At == nil || a.Held != "" {
		t.Errorf("approval afterwards %+v", a)
	}
	if by := one[string](s, `SELECT actor FROM machine_events WHERE machine_id = 'm7' ORDER BY seq DESC LIMIT 1`); by != "operator:ann" {
		t.Errorf("the last event is by %q", by)
	}
	if c := s.commit(term, s.start(id, on("m7"))); len(c.Started) != 1 {
		t.Errorf("the approved machine gets no work: %+v", c)
	}
	// Less is no difference, and a restart of the agent neither.
	j.req.Inventory.GPUs = j.req.Inventory.GPUs[:1]
	j.req.AgentBoot = "b"
	j.registers(berth.MachineReady, "")
}

func TestAMachineThatChangedWaitsAgain(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.setPool("a", spec.PoolRules{Approval: true})
	j := s.joinsWith(spec.NewJoinToken{Pool: "a", Approves: true})
	j.registers(berth.MachineReady, "")
	if by := s.machine("", "m7").Approval.By; !strings.HasPrefix(by, "join-token:") {
		t.Errorf("approved by %q", by)
	}
	j.req.Inventory.Labels = map[string]string{"rack": "r8"}
	j.registers(wire.MachinePending, `label rack="r8", was "r7"`)
	j.req.Inventory.GPUs = append(j.req.Inventory.GPUs, berth.GPU{Index: 2, UUID: "GPU-7c", Model: "H100", MemoryMiB: 81920, Healthy: true})
	j.registers(wire.MachinePending, "GPU GPU-7c (H100) is new")
	// A drain and its end do not approve.
	if err := s.db.Machines.Drain(t.Context(), "m7", "x", nil, "operator:ann"); err != nil {
		t.Fatal(err)
	}
	j.registers(wire.MachineDrained, "x")
	if err := s.db.Machines.Undrain(t.Context(), "m7", "operator:ann"); err != nil {
		t.Fatal(err)
	}
	j.shows(wire.MachinePending, "is new")
	j.req.Inventory.GPUs, j.req.Inventory.Labels = j.req.Inventory.GPUs[:2], map[string]string{"rack": "r7"}
	j.registers(berth.MachineReady, "")
	// Another host that joins under the name starts from nothing.
	mustExec(t, s.pool, `UPDATE machine_leases SET until = now() - interval '1 hour' WHERE machine_id = 'm7'`)
	j = s.joinsWith(spec.NewJoinToken{Pool: "a"})
	j.registers(wire.MachinePending, "waits for approval")
}

// A machine that joined and never registered may be replaced by another one with another token. The
// approval of the first token does not cover it.
func TestAnApprovingTokenCoversItsOwnMachineOnly(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.setPool("a", spec.PoolRules{Approval: true})
	s.joinsWith(spec.NewJoinToken{Pool: "a", Approves: true})
	s.joinsWith(spec.NewJoinToken{Pool: "a"}).registers(wire.MachinePending, "waits for approval")
}

func TestAJoinTokenBoundsTheCapacityOfItsMachine(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	j := s.joinsWith(spec.NewJoinToken{Most: &spec.MachineBounds{GPUs: 1}})
	j.registers(wire.MachinePending, "reports more than its join token allows: 2 GPUs (limit 1)")
	if err := j.approve(""); err != nil {
		t.Fatal(err)
	}
	j.shows(berth.MachineReady, "")
	j.registers(berth.MachineReady, "")
	mustExec(t, s.pool, `UPDATE machines SET state = 'retired' WHERE id = 'm7'`)
	j = s.joinsWith(spec.NewJoinToken{Most: &spec.MachineBounds{GPUs: 2}})
	j.registers(berth.MachineReady, "")
	if err := j.approve(""); berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), "needs no approval") {
		t.Errorf("approved without need: %v", err)
	}
}

func TestARuleOfApprovalKeepsMachinesInService(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	j := s.joinsWith(spec.NewJoinToken{Pool: "a"})
	j.registers(berth.MachineReady, "")
	s.setPool("a", spec.PoolRules{Approval: true})
	j.registers(berth.MachineReady, "")
	j.req.Inventory.Region = "us"
	j.registers(wire.MachinePending, `region "us", was ""`)
	// The version before neither knows nor ends the wait.
	mustExec(t, s.pool, `UPDATE machines SET state = 'ready', reason = '' WHERE id = 'm7'`)
	j.shows(wire.MachinePending, "region")
	s.setPool("a", spec.PoolRules{})
	j.shows(berth.MachineReady, "")
	j.registers(berth.MachineReady, "")
	// With the rule again, the machine is approved as it is now, and one that only joined waits.
	mustExec(t, s.pool, `UPDATE machines SET state = 'retired' WHERE id = 'm7'`)
	j = s.joinsWith(spec.NewJoinToken{Pool: "a"})
	s.setPool("a", spec.PoolRules{Approval: true})
	j.registers(wire.MachinePending, "waits for approval")
}

// A machine that enters a pool with the rule, by the word of its agent, waits there.
func TestAMachineThatChangesItsPoolWaits(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.setPool("a", spec.PoolRules{Approval: true})
	j := s.joinsWith(spec.NewJoinToken{})
	j.registers(berth.MachineReady, "")
	j.req.Inventory.Pool = "a"
	j.registers(wire.MachinePending, "waits for approval")
	// Without a token for another pool, the agent cannot leave.
	j.req.Inventory.Pool = "b"
	j.registers(wire.MachinePending, "waits for approval")
}

// If the pool default demands approvals, the agent of a machine without a pool of its token cannot
// avoid them by another pool.
func TestNoPoolIsAWayAroundTheApprovalOfDefault(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.setPool("default", spec.PoolRules{Approval: true})
	j := s.joinsWith(spec.NewJoinToken{})
	j.req.Inventory.Pool = "new"
	j.registers(wire.MachinePending, "waits for approval")
	if err := j.approve(""); err != nil {
		t.Fatal(err)
	}
	j.shows(berth.MachineReady, "")
	j.req.Inventory.Region = "us"
	j.registers(wire.MachinePending, "region")
	j.req.Inventory.Pool = "newer"
	j.registers(wire.MachinePending, "region")
}

// The verdict that a silent machine is lost, and the word of an operator that it is dead, raise the
// epoch as a join does. The terms of the join token stay.
func TestTermsOfAJoinTokenOutlastVerdicts(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(*stage){
		"dead": func(s *stage) {
			if _, err := s.db.Machines.ConfirmDead(t.Context(), "m7", "operator:ann"); err != nil {
				t.Error(err)
			}
		},
		"lost": func(s *stage) {
			mustExec(t, s.pool, `UPDATE machines SET state = 'lost', epoch = epoch + 1 WHERE id = 'm7'`)
		},
	} {
		s := newStage(t)
		j := s.joinsWith(spec.NewJoinToken{Most: &spec.MachineBounds{GPUs: 1}})
		ends(s)
		j.registers(wire.MachinePending, "reports more than its join token allows")
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

// A replica of the version before spends a token without a copy of its terms.
func TestTermsOfATokenThatTheVersionBeforeSpent(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	j := s.joinsWith(spec.NewJoinToken{Most: &spec.MachineBounds{GPUs: 1}})
	mustExec(t, s.pool, `UPDATE machines SET joined_token = '', joined_terms = NULL WHERE id = 'm7'`)
	j.registers(wire.MachinePending, "reports more than its join token allows")
	mustExec(t, s.pool, `DELETE FROM join_tokens`)
	j.registers(wire.MachinePending, "reports more than its join token allows")
}

func TestTheEndOfTheRuleReleasesMachinesWithinTheirLimits(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.setPool("a", spec.PoolRules{Approval: true})
	j := s.joinsWith(spec.NewJoinToken{Pool: "a", Most: &spec.MachineBounds{GPUs: 4}})
	j.registers(wire.MachinePending, "waits for approval")
	s.setPool("a", spec.PoolRules{})
	j.shows(berth.MachineReady, "")
}

// A machine that registered last with the version before is approved by its rows.
func TestAMachineOfTheVersionBeforeIsInService(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	j := s.joinsWith(spec.NewJoinToken{Pool: "a"})
	j.registers(berth.MachineReady, "")
	mustExec(t, s.pool, `UPDATE machines SET equipment = NULL WHERE id = 'm7'`)
	s.setPool("a", spec.PoolRules{Approval: true})
	if err := s.db.Machines.Drain(t.Context(), "m7", "x", nil, "operator:ann"); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Machines.Undrain(t.Context(), "m7", "operator:ann"); err != nil {
		t.Fatal(err)
	}
	if m := s.machine("", "m7"); m.State == wire.MachinePending {
		t.Errorf("the machine is %s: %s", m.State, m.Reason)
	}
	j.registers(berth.MachineReady, "")
	mustExec(t, s.pool, `UPDATE machines SET equipment = NULL, approved = NULL, held = 'x', state = 'joining' WHERE id = 'm7'`)
	if err := j.approve(""); err != nil {
		t.Error(err)
	}
}

// Containers that must be removed keep an approved machine joining, and a machine that is held
// stays held after they are gone.
func TestLeftoversAndApprovalsAreSeparate(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.setPool("a", spec.PoolRules{Approval: true})
	j := s.joinsWith(spec.NewJoinToken{Pool: "a"})
	j.registers(wire.MachinePending, "waits")
	mustExec(t, s.pool, `UPDATE machines SET pending_kills = '{7}' WHERE id = 'm7'`)
	if err := j.approve(""); err != nil {
		t.Fatal(err)
	}
	if state := one[string](s, `SELECT state FROM machines WHERE id = 'm7'`); state != "joining" {
		t.Errorf("the machine is %s although a container is left", state)
	}
	mustExec(t, s.pool, `UPDATE machines SET pending_kills = '{}', held = 'x' WHERE id = 'm7'`)
	mustExec(t, s.pool, `UPDATE machines SET state = 'ready', reason = '' WHERE id = 'm7'`)
	j.shows(wire.MachinePending, "x")
}

// A registration that waits for a change of the rule sees the change.
func TestARegistrationSeesTheRuleItWaitedFor(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	j := s.joinsWith(spec.NewJoinToken{Pool: "a"})
	set, registered := make(chan error, 1), make(chan error, 1)
	s.holding(`SELECT 1 FROM pools WHERE id = 'a' FOR UPDATE`, func() {
		go func() { set <- s.db.Pools.Set(t.Context(), "a", spec.PoolRules{Approval: true}, "operator:test") }()
		s.blocked(1) // it has the lock on the machine, and waits for the pool
		go func() {
			_, _, err := s.db.Agents.Register(t.Context(), "m7", j.req)
			registered <- err
		}()
		s.blocked(2)
	})
	if err := <-set; err != nil {
		t.Fatal(err)
	}
	if err := <-registered; err != nil {
		t.Fatal(err)
	}
	j.shows(wire.MachinePending, "waits for approval")
}

// A version that judges no registrations may end the drain of a silent machine that was never
// approved. The machine waits as soon as it is back.
func TestASilentMachineIsNotApprovedByTheEndOfItsDrain(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.setPool("a", spec.PoolRules{Approval: true})
	j := s.joinsWith(spec.NewJoinToken{Pool: "a"})
	j.registers(wire.MachinePending, "waits")
	mustExec(t, s.pool, `UPDATE machines SET state = 'draining', held = '' WHERE id = 'm7'`)
	mustExec(t, s.pool, `UPDATE machines SET state = 'suspect' WHERE id = 'm7'`)
	mustExec(t, s.pool, `UPDATE machines SET state = 'ready' WHERE id = 'm7'`)
	j.shows(wire.MachinePending, "waits")
}
