package db_test

import (
	"sync"
	"testing"

	"berth"
	"berth/wire"
)

// TestTheLastTwoToPrepareAndToStartMakeTheirGangRunning checks that a gang starts when its last two ranks
// report at the same moment that they are prepared. The transaction that counts must see the other's report,
// or neither starts the gang.
func TestTheLastTwoToPrepareAndToStartMakeTheirGangRunning(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mustExec(t, s.pool, `UPDATE machines SET cpu_m = 1000000, mem_mb = 1000000`)
	var agents []*agent
	for _, m := range []berth.MachineID{"m0", "m1"} {
		a := &agent{stage: s, machine: m, host: "h", boot: "b", epoch: 1}
		if _, _, err := s.db.Agents.Register(t.Context(), m, a.request()); err != nil {
			t.Fatal(err)
		}
		agents = append(agents, a)
	}
	for round := range 40 {
		id := s.submit(nil)
		s.load(id)
		s.move(id, berth.Scheduled)
		mustExec(t, s.pool, `UPDATE jobs SET attempt = 1 WHERE id = $1`, id)
		mustExec(t, s.pool, `INSERT INTO attempts (job, attempt, leader_epoch) VALUES ($1, 1, 1)`, id)
		var all sync.WaitGroup
		ready := make(chan struct{})
		for rank, a := range agents {
			alloc := one[int64](s, `INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli, state)
				VALUES ($1, 1, $2, $3, 1, 10, 10, 0, 0, 'active') RETURNING id`, id, rank, a.machine)
			a.seq++
			p := wire.RankReport{Alloc: berth.AllocationID(alloc), Job: id, Attempt: 1, Rank: rank, Phase: berth.PhasePrepared}
			prepared := wire.SyncRequest{AgentBoot: a.boot, Epoch: 1, Seq: a.seq, Reports: []wire.RankReport{p}}
			a.seq++
			p.Phase = berth.PhaseRunning
			running := wire.SyncRequest{AgentBoot: a.boot, Epoch: 1, Seq: a.seq, Reports: []wire.RankReport{p}}
			all.Go(func() {
				<-ready
				for _, q := range []wire.SyncRequest{prepared, running} {
					if _, err := s.db.Agents.Sync(t.Context(), a.machine, q); err != nil {
						t.Errorf("%s: %v", a.machine, err)
					}
				}
			})
		}
		close(ready)
		all.Wait()
		if state := s.load(id).State; state != berth.Running {
			t.Fatalf("round %d: every rank has started, and the job is %s", round, state)
		}
	}
}

func TestADeposedLeaderJudgesNobody(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	old, ok := s.lead("old", -1)
	if !ok {
		t.Fatal("no lead")
	}
	if _, ok := s.lead("new", berth.MachineLeaseTTL); !ok {
		t.Fatal("no takeover")
	}
	id := s.submit(nil)
	s.place(id, "m0")
	s.run(id)
	s.quiet("m0", 1000*berth.MachineLeaseTTL)
	for what, err := range map[string]error{
		"verdict": second(s.db.Machines.PassVerdict(t.Context(), old, "m0", silence)),
		"suspect": second(s.db.Machines.MarkSuspect(t.Context(), old, silence)),
		"expiry":  second(s.db.Jobs.FailExpired(t.Context(), old, []berth.JobID{id}, 1)),
	} {
		if !berth.IsSlug(err, berth.SlugStaleEpoch) {
			t.Errorf("%s of a deposed leader: %v", what, err)
		}
	}
	if st := s.state("m0"); st != berth.MachineReady {
		t.Errorf("the machine is %s", st)
	}
}

func second[T any](_ T, err error) error { return err }

// TestADelayedReportOfAnOlderEpochIsRefused checks that a report is refused if it was sent before its machine
// was declared lost and arrives after the same process registered again: its epoch has ended.
func TestADelayedReportOfAnOlderEpochIsRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	a.mustClaim(id, attempt)
	before := *a
	s.quiet("m0", 1000*berth.MachineLeaseTTL)
	if v := s.judge(s.term(), "m0"); !v.Lost {
		t.Fatalf("verdict: %+v", v)
	}
	now, _ := s.register("host1", "agent1", wire.ContainerSeen{Alloc: s.alloc(id, attempt), Job: id, Attempt: attempt})
	if now.epoch != before.epoch+1 {
		t.Fatalf("the epoch went from %d to %d", before.epoch, now.epoch)
	}
	late := func(r *wire.SyncRequest) { r.Seq, r.Gone = 7, []berth.AllocationID{s.alloc(id, attempt)} }
	if _, err := before.sync(late); !berth.IsSlug(err, berth.SlugStaleEpoch) {
		t.Errorf("the delayed report: %v", err)
	}
	if st := s.ranks(id, attempt)[0]; st != `orphaned {"kill": true}` {
		t.Errorf("the rank became %s", st)
	}
}
