package db_test

import (
	"slices"
	"strings"
	"testing"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// lists makes a call that lists members as stuck.
func (a *agent) lists(ids ...int64) error {
	a.t.Helper()
	req := wire.SyncRequest{AgentBoot: a.boot, Epoch: a.epoch, Digest: a.digest}
	for _, id := range ids {
		req.Stuck = append(req.Stuck, berth.AllocationID(id))
	}
	_, err := a.db.Agents.Sync(a.t.Context(), a.machine, req)
	return err
}

func TestAMemberThatCannotBeKilledIsGivenUpAndKeepsItsCapacity(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host", "boot")
	id, attempt := s.started(nil)
	alloc := one[int64](s, `SELECT id FROM allocations WHERE job = $1`, id)
	for range 2 { // a repetition changes nothing
		if err := a.lists(alloc, alloc+1000); err != nil {
			t.Fatal(err)
		}
	}
	if r := s.ranks(id, attempt); r[0] != `orphaned {"kill": true}` {
		t.Errorf("rank %s", r[0])
	}
	if n := one[int](s, `SELECT count(*) FROM job_events WHERE job = $1 AND kind = 'orphaned'`, id); n != 1 {
		t.Errorf("%d events", n)
	}
	if e := lastEvent(s, id); e.Kind != wire.EventOrphaned || e.Actor != "agent:m0" || !strings.Contains(e.Detail, "does not end on SIGKILL") {
		t.Errorf("event %+v", e)
	}
	if c, gpus := used(t, s.pool, "m0"); c.CPUMilli != 1000 || gpus[0] != 1000 {
		t.Errorf("m0 uses %+v %v: capacity of a living container is free", c, gpus)
	}
	if s.state("m0") == berth.MachineLost {
		t.Error("the machine counts as lost")
	}
	// The machine lives, so the job is not suspected of its death.
	if r := s.settle(id, attempt); r.Next != berth.Retrying || one[bool](s, `SELECT alone FROM allocations WHERE id = $1`, alloc) {
		t.Errorf("settled to %+v", r)
	}
	if j := s.job(id); j.Losses != 1 || j.Failures != 0 {
		t.Errorf("job %+v", j)
	}
}

func TestOnlyItsOwnLivingMembersOfAMachineAreGivenUp(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	old, _ := s.register("host", "boot")
	once, onceAttempt := s.started(func(j *spec.Job) { j.Execution = spec.AtMostOne })
	alloc := one[int64](s, `SELECT id FROM allocations WHERE job = $1`, once)
	if err := old.lists(alloc); err != nil {
		t.Fatal(err)
	}
	if r := s.ranks(once, onceAttempt); !slices.Equal(r, []string{"active {}"}) {
		t.Errorf("a member of an at_most_one job is %s", r)
	}
	mustExec(t, s.pool, `UPDATE jobs SET execution = 'at_least_once' WHERE id = $1`, once)
	other := &agent{stage: s, machine: "m1", host: "host-1", boot: "boot-1"}
	mustExec(t, s.pool, `UPDATE machines SET agent_boot = 'boot-1' WHERE id = 'm1'`)
	other.epoch = one[int64](s, `SELECT epoch FROM machines WHERE id = 'm1'`)
	if err := other.lists(alloc); err != nil {
		t.Fatal(err)
	}
	s.register("host", "boot-2")
	if err := old.lists(alloc); !berth.IsSlug(err, berth.SlugStaleEpoch) {
		t.Errorf("a call of an earlier session: %v", err)
	}
	if r := s.ranks(once, onceAttempt); !strings.HasPrefix(r[0], "active") {
		t.Errorf("a member of another machine is %s", r)
	}
}

// The peers of a member that is given up live: the workflow must hear of it, so that it stops them.
func TestTheWorkflowOfAGangHearsThatAMemberIsGivenUp(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host", "boot")
	id := s.submit(func(j *spec.Job) { j.Members = 2 })
	attempt := s.place(id, "m0", "m1")
	s.claim(id, attempt, 0, 1)
	s.run(id)
	poke := s.db.Hub().Subscribe(db.TopicPoke, string(id))
	if err := a.lists(one[int64](s, `SELECT id FROM allocations WHERE job = $1 AND rank = 0`, id)); err != nil {
		t.Fatal(err)
	}
	if !hears(t, poke) {
		t.Error("the workflow is not poked")
	}
	if r := s.ranks(id, attempt); !slices.Equal(r, []string{`orphaned {"kill": true}`, "active {}"}) {
		t.Errorf("members are %q", r)
	}
}
