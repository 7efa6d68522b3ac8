package db_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

func TestJoinTokenIsGoodOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	j, err := s.db.JoinTokens.Create(t.Context(), spec.NewJoinToken{Labels: map[string]string{"tier": "prod"}}, "operator:test")
	if err != nil {
		t.Fatal(err)
	}
	token, cluster, err := s.db.JoinTokens.Join(t.Context(), j.Secret, "fresh")
	if err != nil || cluster == "" {
		t.Fatalf("join: cluster %q, %v", cluster, err)
	}
	p, err := s.db.Tokens.Authenticate(t.Context(), token)
	if err != nil || p.Role != spec.RoleMachine || p.Machine != "fresh" {
		t.Errorf("the machine's token stands for %+v, %v", p, err)
	}
	if _, _, err := s.db.JoinTokens.Join(t.Context(), j.Secret, "other"); berth.CodeOf(err) != berth.CodeUnauthorized {
		t.Errorf("a spent join token: %v", err)
	}
	for _, forged := range []string{"", "berthjoin_0_0", strings.Replace(j.Secret, "_", "_0", 1), j.Secret[:len(j.Secret)-1] + "x"} {
		if _, _, err := s.db.JoinTokens.Join(t.Context(), forged, "other"); berth.CodeOf(err) != berth.CodeUnauthorized {
			t.Errorf("forged join token %q: %v", forged, err)
		}
	}
	mustExec(t, s.pool, `UPDATE machines SET host_boot = 'h' WHERE id = 'fresh'`)
	a := &agent{stage: s, machine: "fresh", host: "h", boot: "a"}
	if _, _, err := s.db.Agents.Register(t.Context(), "fresh", a.request()); err != nil {
		t.Fatal(err)
	}
	if tier := one[string](s, `SELECT labels ->> 'tier' FROM machines WHERE id = 'fresh'`); tier != "prod" {
		t.Errorf("label of the join token is %q", tier)
	}
	again, err := s.db.JoinTokens.Create(t.Context(), spec.NewJoinToken{}, "operator:test")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.db.JoinTokens.Join(t.Context(), again.Secret, "fresh"); !berth.IsSlug(err, db.SlugMachineExists) {
		t.Errorf("joining under a live machine's name: %v", err)
	}
	mustExec(t, s.pool, `UPDATE machines SET state = 'retired' WHERE id = 'fresh'`)
	if _, _, err := s.db.JoinTokens.Join(t.Context(), again.Secret, "fresh"); err != nil {
		t.Errorf("joining under a retired name: %v", err)
	}
	if _, err := s.db.Tokens.Authenticate(t.Context(), token); berth.CodeOf(err) != berth.CodeUnauthorized {
		t.Errorf("the old machine's token still opens: %v", err)
	}
}

// joins has machine name join with a token of the pool, and returns its secret.
func (s *stage) joins(name berth.MachineID, pool string) (token string) {
	s.t.Helper()
	j, err := s.db.JoinTokens.Create(s.t.Context(), spec.NewJoinToken{Pool: pool, Labels: map[string]string{"tier": pool}}, "operator:test")
	if err == nil {
		token, _, err = s.db.JoinTokens.Join(s.t.Context(), j.Secret, name)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return token
}

// A placement that commits while a join waits for the machine's lock counts for the
// join: the query that locks the row reads allocations as of its own beginning.
func TestAJoinSeesThePlacementItWaitedFor(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, term := s.queued(nil), s.term()
	mustExec(t, s.pool, `UPDATE machines SET host_boot = 'h' WHERE id = 'm0'`)
	s.lease("m0", -time.Second)
	j, err := s.db.JoinTokens.Create(t.Context(), spec.NewJoinToken{}, "operator:test")
	if err != nil {
		t.Fatal(err)
	}
	placed, joined := make(chan db.Committed, 1), make(chan error, 1)
	s.holding(`SELECT 1 FROM gpu_devices WHERE machine_id = 'm0' FOR UPDATE`, func() {
		start := s.start(id, on("m0", berth.DeviceShare{Index: 0, Milli: 1000}))
		go func() { placed <- s.commit(term, start) }()
		s.until("the placement has locked the machine", func() bool {
			return one[int](s, `SELECT count(*) FROM (
				SELECT 1 FROM machines WHERE id = 'm0' FOR NO KEY UPDATE SKIP LOCKED) free`) == 0
		})
		s.blocked(1) // it waits for the device
		go func() {
			_, _, err := s.db.JoinTokens.Join(t.Context(), j.Secret, "m0")
			joined <- err
		}()
		s.until("the placement and the join wait for a lock", func() bool {
			select {
			case c := <-placed:
				t.Fatalf("the placement ended before it had its device: %+v", c)
			case err := <-joined:
				t.Fatalf("the join ended before the placement: %v", err)
			default:
			}
			return s.waiting() >= 2
		})
	})
	if c := <-placed; len(c.Started) != 1 {
		t.Fatalf("the placement: %+v", c)
	}
	if err := <-joined; !berth.IsSlug(err, db.SlugMachineExists) {
		t.Errorf("a join under the name of a machine that has an allocation: %v, want %s", err, db.SlugMachineExists)
	}
}

func TestAMachineKeepsThePoolOfItsJoinTokenOnceThatIsPruned(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	prune := func() {
		mustExec(t, s.pool, `UPDATE join_tokens SET used_at = used_at - interval '31 days'`)
		if _, err := s.db.Tokens.Prune(t.Context(), s.term(), 30*24*time.Hour, 100); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name   string
		before func() // the machine registers
		want   string
	}{
		{"pruned", prune, "secure secure"},
		{"pruned by a berthd of the version before", func() { mustExec(t, s.pool, `DELETE FROM join_tokens`) }, "secure secure"},
		{"joined at a berthd of the version before", func() {
			s.joins("m7", "other")
			mustExec(t, s.pool, `UPDATE machines SET joined_pool = 'secure', joined_labels = '{"tier": "secure"}' WHERE id = 'm7'`)
			prune()
		}, "other other"},
		{"joined again, without a pool", func() {
			mustExec(t, s.pool, `UPDATE machines SET state = 'retired' WHERE id = 'm7'`)
			s.joins("m7", "")
			prune()
		}, "mine "},
	} {
		if c.name == "pruned" {
			s.joins("m7", "secure")
		}
		c.before()
		a := &agent{stage: s, machine: "m7", host: "h", boot: "a"}
		r := a.request()
		r.Inventory.Pool, r.Inventory.Labels = "mine", map[string]string{"tier": "mine"}
		for range 2 {
			if _, _, err := s.db.Agents.Register(t.Context(), "m7", r); err != nil {
				t.Fatal(err)
			}
			if got := one[string](s, `SELECT pool || ' ' || (labels ->> 'tier') FROM machines WHERE id = 'm7'`); got != c.want {
				t.Errorf("%s: pool and label are %q, want %q", c.name, got, c.want)
			}
		}
		mustExec(t, s.pool, `DELETE FROM machine_leases WHERE machine_id = 'm7'`)
	}
}

func TestJoinTokensThatNoMachineInServiceNeedsArePruned(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.joins("m7", "first")
	s.joins("m7", "second")
	s.joins("m8", "removed")
	mustExec(t, s.pool, `UPDATE machines SET state = 'retired' WHERE id = 'm8'`)
	mustExec(t, s.pool, `UPDATE join_tokens SET used_at = used_at - interval '31 days'`)
	if _, err := s.db.Tokens.Prune(t.Context(), s.term(), 30*24*time.Hour, 100); err != nil {
		t.Fatal(err)
	}
	if left := one[string](s, `SELECT string_agg(pool, ' ') FROM join_tokens`); left != "second" {
		t.Errorf("join tokens of %q are left", left)
	}
}

func TestTheAgentOfARemovedMachineIsToldSoForAsLongAsTheMachineIsKnown(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	old, latest := s.joins("m7", ""), s.joins("m7", "")
	if err := s.db.Machines.Retire(t.Context(), "m7", "operator:test"); err != nil {
		t.Fatal(err)
	}
	mustExec(t, s.pool, `UPDATE tokens SET revoked_at = now() - interval '31 days' WHERE machine_id = 'm7'`)
	if n, err := s.db.Tokens.Prune(t.Context(), s.term(), 30*24*time.Hour, 100); n != 1 || err != nil {
		t.Errorf("pruned %d tokens, %v", n, err)
	}
	if _, err := s.db.Tokens.Authenticate(t.Context(), latest); !berth.IsSlug(err, berth.SlugMachineRetired) {
		t.Errorf("the agent of the removed machine: %v", err)
	}
	if _, err := s.db.Tokens.Authenticate(t.Context(), old); berth.CodeOf(err) != berth.CodeUnauthorized {
		t.Errorf("a token of before: %v", err)
	}
}

func TestStaleSessionsChangeNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	old, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	old.mustClaim(id, attempt)
	now, _ := s.register("host1", "agent2")
	if now.epoch != old.epoch {
		t.Errorf("an agent's restart moved the epoch from %d to %d", old.epoch, now.epoch)
	}
	if _, err := old.claims(id, attempt); !berth.IsSlug(err, berth.SlugStaleEpoch) {
		t.Errorf("claim: %v", err)
	}
	report := func(r *wire.SyncRequest) {
		x := exited(0)
		r.Reports = []wire.RankReport{{Alloc: s.alloc(id, attempt), Job: id, Attempt: attempt, Phase: berth.PhaseExited, Exit: &x}}
	}
	if _, err := old.sync(report); !berth.IsSlug(err, berth.SlugStaleEpoch) {
		t.Errorf("report: %v", err)
	}
	if _, err := old.sync(func(*wire.SyncRequest) {}); !berth.IsSlug(err, berth.SlugStaleEpoch) {
		t.Errorf("poll: %v", err)
	}
	if st := s.ranks(id, attempt)[0]; st != "active {}" {
		t.Errorf("the rank became %s", st)
	}
	if _, err := now.claims(id, attempt); err != nil {
		t.Errorf("the present agent: %v", err)
	}
	mustExec(t, s.pool, `UPDATE machines SET state = 'lost' WHERE id = 'm0'`)
	if _, err := now.sync(func(*wire.SyncRequest) {}); !berth.IsSlug(err, berth.SlugStaleEpoch) {
		t.Errorf("poll of a lost machine: %v", err)
	}
	stolen := wire.ClaimRequest{AgentBoot: "b", Epoch: 1, Alloc: s.alloc(id, attempt), Job: id, Attempt: attempt}
	if _, _, err := s.db.Agents.Register(t.Context(), "m1", (&agent{machine: "m1", host: "h", boot: "b"}).request()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.Agents.Claim(t.Context(), "m1", stolen); berth.CodeOf(err) != berth.CodeForbidden {
		t.Errorf("another machine's claim: %v", err)
	}
}

func TestRebootFreesWhatTheOldBootHad(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	running := s.submit(nil)
	one1 := s.place(running, "m0")
	a.mustClaim(running, one1)
	s.run(running)
	orphan := s.submit(nil)
	two := s.place(orphan, "m0")
	a.mustClaim(orphan, two)
	s.run(orphan)
	s.orphan(orphan, two, 0)
	s.settle(orphan, two)
	seen := wire.ContainerSeen{Alloc: s.alloc(running, one1), Job: running, Attempt: one1}

	b, r := s.register("host2", "agent2", seen)
	if b.epoch != a.epoch+1 {
		t.Errorf("epoch went from %d to %d", a.epoch, b.epoch)
	}
	if diff := cmp.Diff([]berth.AllocationID{seen.Alloc}, r.Kill); diff != "" {
		t.Errorf("kills (-want +got):\n%s", diff)
	}
	s.freed()
	if e := lastEvent(s, orphan); e.Kind != wire.EventReleased {
		t.Errorf("last event of the orphan's job is %+v", e)
	}
	if got := s.settle(running, one1); got.Next != berth.Retrying {
		t.Errorf("the job of the rebooted machine is settled as %+v", got)
	}
	if code := s.job(running).Reason.Code; code != berth.ReasonMachineError {
		t.Errorf("its reason is %s", code)
	}
	if st := one[string](s, `SELECT state FROM machines WHERE id = 'm0'`); st != "joining" {
		t.Errorf("with a kill to confirm the machine is %s", st)
	}
	if _, err := b.sync(func(r *wire.SyncRequest) { r.Gone = []berth.AllocationID{seen.Alloc} }); err != nil {
		t.Fatal(err)
	}
	if st := one[string](s, `SELECT state FROM machines WHERE id = 'm0'`); st != "ready" {
		t.Errorf("with the kill confirmed the machine is %s", st)
	}
}

func TestRestartKeepsCurrentWorkAndKillsTheRest(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	live := s.submit(nil)
	n := s.place(live, "m0")
	a.mustClaim(live, n)
	lost := s.submit(nil)
	m := s.place(lost, "m0")
	a.mustClaim(lost, m)
	s.run(lost)
	s.orphan(lost, m, 0)
	s.settle(lost, m)
	absent := s.submit(nil)
	k := s.place(absent, "m1")
	s.claim(absent, k, 0)
	s.run(absent)
	mustExec(t, s.pool, `UPDATE allocations SET state = 'orphaned' WHERE job = $1`, absent)

	_, r := s.register("host1", "agent2",
		wire.ContainerSeen{Alloc: s.alloc(live, n), Job: live, Attempt: n},
		wire.ContainerSeen{Alloc: s.alloc(lost, m), Job: lost, Attempt: m},
		wire.ContainerSeen{Alloc: 4711, Job: live, Attempt: 9})
	if diff := cmp.Diff([]berth.AllocationID{s.alloc(lost, m), 4711}, r.Kill); diff != "" && !cmp.Equal([]berth.AllocationID{4711, s.alloc(lost, m)}, r.Kill) {
		t.Errorf("kills (-want +got):\n%s", diff)
	}
	if st := one[string](s, `SELECT state FROM allocations WHERE job = $1`, lost); st != "orphaned" {
		t.Errorf("an orphan that still has a container is %s", st)
	}
	// m1 comes back without the container: that is confirmation.
	if _, _, err := s.db.Agents.Register(t.Context(), "m1", (&agent{machine: "m1", host: "", boot: "b"}).request()); berth.CodeOf(err) != berth.CodeInvalid {
		t.Errorf("register without a host boot: %v", err)
	}
	mustExec(t, s.pool, `UPDATE machines SET host_boot = 'h' WHERE id = 'm1'`)
	if _, _, err := s.db.Agents.Register(t.Context(), "m1", (&agent{machine: "m1", host: "h", boot: "b"}).request()); err != nil {
		t.Fatal(err)
	}
	if st := one[string](s, `SELECT state FROM allocations WHERE job = $1`, absent); st != "released" {
		t.Errorf("an orphan missing from a full list is %s", st)
	}
}

func TestShrunkMachineKeepsWhatIsInUse(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	a.mustClaim(id, s.place(id, "m0"))
	small := a.request(wire.ContainerSeen{Alloc: s.alloc(id, 1), Job: id, Attempt: 1})
	small.Inventory.Capacity.MemoryMiB = 10
	small.Inventory.GPUs = small.Inventory.GPUs[1:]
	if _, _, err := s.db.Agents.Register(t.Context(), "m0", small); err != nil {
		t.Fatal(err)
	}
	if m := one[int64](s, `SELECT mem_mb FROM machines WHERE id = 'm0'`); m < 1024 {
		t.Errorf("memory shrank to %d below its use", m)
	}
	if why := one[string](s, `SELECT reason FROM machines WHERE id = 'm0'`); !strings.Contains(why, "less capacity") {
		t.Errorf("reason is %q", why)
	}
	if one[bool](s, `SELECT healthy FROM gpu_devices WHERE uuid = 'm0-0'`) {
		t.Error("a vanished GPU is healthy")
	}
}
