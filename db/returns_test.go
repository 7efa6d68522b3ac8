package db_test

import (
	"slices"
	"testing"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// returns asks for a machine back that the database does not know.
func (k *keyed) returns(seen wire.StoredWatermark, boot string) (wire.RenewResponse, error) {
	k.t.Helper()
	r, token := k.next()
	answer, err := k.db.Tokens.Return(k.t.Context(), r, seen, boot)
	if err == nil {
		k.tokens = append(k.tokens, token)
	}
	return answer, err
}

// backup restores a backup, so to speak, that lacks the newest watermark and machine m7.
func (s *stage) backup() (lost wire.StoredWatermark) {
	s.t.Helper()
	branch := &db.Branch{Term: s.term()}
	s.grants(branch)
	lost = s.grants(branch)
	s.loses()
	return lost
}

func TestF15AMachineThatTheBackupDoesNotKnowWaitsForApproval(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	k := &keyed{stage: s, id: "m7", key: newKey(t)}
	seen := s.backup()
	was := s.incarnation()
	answer, err := k.returns(seen, "h")
	if err != nil || !answer.Returned || answer.TTLSeconds == 0 || answer.Cluster != seen.Cluster {
		t.Fatalf("return: %+v, %v", answer, err)
	}
	if n := s.incarnation(); n != was+1 {
		t.Errorf("incarnation %d after %d: the proof of a restore was not taken", n, was)
	}
	if err := k.uses(k.tokens[0]); err != nil {
		t.Error(err)
	}
	j := &joining{stage: s, agent: &agent{stage: s, machine: "m7", host: "h", boot: "a"}}
	j.shows(wire.MachinePending, "restored database does not know")
	j.req = j.agent.request(wire.ContainerSeen{Alloc: 77, Job: jobA, Attempt: 1, Running: true})
	j.req.Watermark = seen
	r, _, err := s.db.Agents.Register(t.Context(), "m7", j.req)
	if err != nil || len(r.Kill) != 0 || !slices.Equal(r.Quarantine, []berth.AllocationID{77}) {
		t.Fatalf("registered with %+v, %v: its container is not left alone", r, err)
	}
	j.shows(wire.MachinePending, "left alone")
	// Its container ends. No rule of a pool, and no other version of berthd, opens the machine.
	j.req.Containers = nil
	j.registers(wire.MachinePending, "restored database does not know")
	s.setPool("default", spec.PoolRules{Approval: true})
	s.setPool("default", spec.PoolRules{})
	j.shows(wire.MachinePending, "restored database does not know")
	mustExec(t, s.pool, `UPDATE machines SET held = '', state = 'ready' WHERE id = 'm7'`)
	j.shows(wire.MachinePending, "restored database does not know")
	if err := j.approve(""); err != nil {
		t.Fatal(err)
	}
	j.shows(berth.MachineReady, "")
	j.registers(berth.MachineReady, "")
	if err := k.uses(k.renews()); err != nil {
		t.Error(err)
	}
}

func TestF15OnlyAMemberOfBeforeTheRestoreReturns(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	branch := &db.Branch{Term: s.term()}
	known := s.grants(branch)
	present := s.grants(branch)
	k := &keyed{stage: s, id: "m7", key: newKey(t)}
	refused := func(what string, seen wire.StoredWatermark) {
		t.Helper()
		if _, err := k.returns(seen, "h"); !berth.IsSlug(err, wire.SlugUnknownKey) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("without a watermark", wire.StoredWatermark{})
	refused("a watermark of a database that has lost nothing", present)
	forged := present
	forged.Number, forged.Signature = present.Number+5, "00112233445566778899aabbccddeeff"
	refused("a forged watermark", forged)
	foreign := present
	foreign.Cluster = "another"
	refused("a watermark of another cluster", foreign)
	if n := one[int](s, `SELECT count(*) FROM machines WHERE id = 'm7'`); n != 0 {
		t.Error("a stranger has a row")
	}
	s.loses()
	refused("a watermark that the database knows, before its leap", known)
	if _, err := k.returns(present, ""); berth.CodeOf(err) != berth.CodeInvalid {
		t.Errorf("without a boot id: %v", err)
	}
	// A machine that was stolen before the restore takes no other machine's name.
	thief := &keyed{stage: s, id: "m0", key: newKey(t)}
	if _, err := thief.returns(present, "h"); !berth.IsSlug(err, db.SlugMachineExists) {
		t.Errorf("under the name of a machine in service: %v", err)
	}
	if _, err := k.returns(present, "h"); err != nil {
		t.Fatal(err)
	}
	k3 := &keyed{stage: s, id: "m9", key: newKey(t)}
	if _, err := k3.returns(known, "h"); !berth.IsSlug(err, wire.SlugUnknownKey) {
		t.Errorf("with a watermark that the restored database knows: %v", err)
	}
	// Watermarks of after the restore prove nothing: no rows were lost since.
	other := &db.Branch{Term: s.term()}
	after := s.grants(other)
	k2 := &keyed{stage: s, id: "m8", key: newKey(t)}
	if _, err := k2.returns(after, "h"); !berth.IsSlug(err, wire.SlugUnknownKey) {
		t.Errorf("with a watermark of after the restore: %v", err)
	}
}

// A standby that had all rows was promoted: no join was lost, although the database leaps.
func TestF15AFailoverBringsNoMachineBack(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	branch := &db.Branch{Term: s.term()}
	s.grants(branch)
	seen := s.grants(branch)
	for range 2 {
		mustExec(t, s.pool, `UPDATE cluster SET system = 'another server'`)
		if _, leapt, err := s.db.Leader.Incarnate(t.Context()); err != nil || !leapt {
			t.Fatalf("leapt: %v, %v", leapt, err)
		}
		k := &keyed{stage: s, id: "m7", key: newKey(t)}
		if _, err := k.returns(seen, "h"); !berth.IsSlug(err, wire.SlugUnknownKey) {
			t.Errorf("return: %v", err)
		}
	}
	if n := one[int](s, `SELECT count(*) FROM machines WHERE id = 'm7'`); n != 0 {
		t.Error("a stranger has a row")
	}
}

// A machine that was removed before the backup, and joined again after it, has no former approval.
func TestF15ARetiredNameReturnsWithoutItsEarlierLife(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.setPool("a", spec.PoolRules{Approval: true})
	j := s.joinsWith(spec.NewJoinToken{Pool: "a", Approves: true})
	j.registers(berth.MachineReady, "")
	if err := s.db.Machines.Retire(t.Context(), "m7", "operator:test"); err != nil {
		t.Fatal(err)
	}
	k := &keyed{stage: s, id: "m7", key: newKey(t)}
	if _, err := k.returns(s.backup(), "h"); err != nil {
		t.Fatal(err)
	}
	j.registers(wire.MachinePending, "restored database does not know")
	if _, _, err := s.db.Agents.Register(t.Context(), "m7", j.req); err != nil {
		t.Fatal(err)
	}
	// A new join clears the return.
	mustExec(t, s.pool, `UPDATE machine_leases SET until = now() - interval '1 s'`)
	j2 := s.joinsWith(spec.NewJoinToken{})
	j2.registers(berth.MachineReady, "")
	if one[bool](s, `SELECT returned FROM machines WHERE id = 'm7'`) {
		t.Error("a machine that joined counts as returned")
	}
}
