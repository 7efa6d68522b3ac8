package db_test

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/spec"
	"berth/wire"
)

// TestReportsKeepTheLockOrder checks that concurrent reports of several machines about the same gangs,
// cancels, settles and registrations do not deadlock.
func TestReportsKeepTheLockOrder(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	log := &syncBuffer{}
	d := dbtest.Open(t, s.pool.Config().ConnString(), db.Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
	s.db = d
	mustExec(t, s.pool, `UPDATE machines SET cpu_m = 1000000, mem_mb = 1000000`)
	machines := []berth.MachineID{"m0", "m1", "m2"}
	var agents []*agent
	for _, m := range machines {
		a := &agent{stage: s, machine: m, host: "h", boot: "b", epoch: 1}
		if _, _, err := s.db.Agents.Register(t.Context(), m, a.request()); err != nil {
			t.Fatal(err)
		}
		agents = append(agents, a)
	}
	const jobs = 30
	type member struct {
		wire.RankReport
		machine int
	}
	var members []member
	var jobIDs []berth.JobID
	for i := range jobs {
		id := s.submit(nil)
		s.load(id)
		s.move(id, berth.Scheduled)
		mustExec(t, s.pool, `UPDATE jobs SET attempt = 1 WHERE id = $1`, id)
		mustExec(t, s.pool, `INSERT INTO attempts (job, attempt, leader_epoch) VALUES ($1, 1, 1)`, id)
		jobIDs = append(jobIDs, id)
		for rank := range 3 {
			on := (i + rank*(1+i%2)) % 3
			alloc := one[int64](s, `INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli, state)
				VALUES ($1, 1, $2, $3, 1, 10, 10, 0, 0, 'active') RETURNING id`, id, rank, machines[on])
			members = append(members, member{wire.RankReport{Alloc: berth.AllocationID(alloc), Job: id, Attempt: 1, Rank: rank}, on})
		}
	}
	var all sync.WaitGroup
	for n, a := range agents {
		all.Go(func() {
			for _, phase := range []berth.Phase{berth.PhasePrepared, berth.PhaseRunning, berth.PhaseExited, berth.PhaseSealed} {
				for size := 1; size <= 7; size += 3 { // the same reports again, in chunks of another size
					var mine []wire.RankReport
					for _, m := range members {
						if m.machine == n {
							p := m.RankReport
							p.Phase = phase
							if phase == berth.PhaseExited || phase == berth.PhaseSealed {
								x := exited(int(p.Alloc % 2))
								p.Exit = &x
							}
							mine = append(mine, p)
						}
					}
					for part := range slices.Chunk(mine, size) {
						a.seq++
						_, err := a.db.Agents.Sync(t.Context(), a.machine, wire.SyncRequest{AgentBoot: a.boot, Epoch: 1, Seq: a.seq, Reports: part})
						if err != nil {
							t.Errorf("%s: %v", a.machine, err)
						}
					}
				}
			}
		})
	}
	all.Go(func() {
		for i, id := range jobIDs {
			if i%3 == 0 {
				if _, err := s.db.Jobs.RequestCancel(t.Context(), "", id, "user:x", nil); err != nil {
					t.Error(err)
				}
			}
		}
	})
	all.Go(func() {
		for range 3 {
			for _, id := range jobIDs {
				if _, err := s.db.Attempts.Settle(t.Context(), id, 1); err != nil {
					t.Error(err)
				}
			}
		}
	})
	all.Wait()
	for _, id := range jobIDs {
		if got := s.settle(id, 1); got.NotReady {
			t.Errorf("job %s cannot be settled", id)
		}
	}
	s.freed()
	if text := log.String(); strings.Contains(text, "transaction retried") {
		t.Errorf("transactions were tried again:\n%s", text)
	}
}

// syncBuffer is a log buffer that is safe for concurrent writes.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestSubmitsLockUploadsBeforeTheirTenant checks that every kind of submit locks its uploads before the row
// of its tenant, which a max_queued quota makes it lock. In one order, submits of different kinds cannot
// deadlock.
func TestSubmitsLockUploadsBeforeTheirTenant(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	address := berth.Address("sha256:" + strings.Repeat("a", 64))
	most := 100
	if err := s.db.Tenants.SetQuota(t.Context(), spec.Quota{Tenant: "default", MaxQueued: &most}); err != nil {
		t.Fatal(err)
	}
	mustExec(t, s.pool, `INSERT INTO uploads (tenant, address, folder, files, bytes) VALUES ('default', $1, 'f', 1, 1)`, address)
	withCode := func(j spec.Job) spec.Job {
		j.Workdir = string(address)
		return j
	}
	pipeline := func(inner map[string]spec.Pipeline) func() error {
		p := nesting(spec.FailFast, []string{"a"}, inner)
		if inner == nil {
			p.Jobs["a"] = withCode(p.Jobs["a"])
		}
		return func() error {
			_, _, err := s.db.Jobs.SubmitPipeline(t.Context(), db.PipelineSubmission{Tenant: "default", Spec: p, Actor: "user:test"})
			return err
		}
	}
	job := func(array *spec.Array) func() error {
		jobSpec := withCode(s.spec(nil))
		jobSpec.Array = array
		return func() error {
			_, _, err := s.db.Jobs.Submit(t.Context(), db.Submission{Tenant: "default", Spec: jobSpec, Actor: "user:test"})
			return err
		}
	}
	inside := graph(spec.FailFast, "x")
	inside.Jobs["x"] = withCode(inside.Jobs["x"])
	for what, submit := range map[string]func() error{
		"a job": job(nil), "an array": job(&spec.Array{Size: 2}),
		"a pipeline": pipeline(nil), "a nested one": pipeline(map[string]spec.Pipeline{"a": inside}),
	} {
		done := make(chan error, 1)
		s.holding(`SELECT 1 FROM uploads FOR UPDATE`, func() {
			go func() { done <- submit() }()
			s.blocked(1)
			if _, err := s.pool.Exec(t.Context(), `SELECT 1 FROM tenants WHERE id = 'default' FOR UPDATE NOWAIT`); err != nil {
				t.Errorf("%s waits for its upload and has the tenant: %v", what, err)
			}
		})
		if err := <-done; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}
