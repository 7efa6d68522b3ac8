package dispatch_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	enumspb "go.temporal.io/api/enums/v1"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/failure"
	"berth/internal/control/dispatch"
	"berth/wire"
)

// placed is a job with one member that its machine's agent reports on.
type placed struct {
	job   berth.JobID
	alloc berth.AllocationID
}

func place(t *testing.T, d *db.DB) placed {
	t.Helper()
	p := placed{job: submit(t, d, "train")}
	if _, err := d.Jobs.Load(t.Context(), p.job); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`UPDATE jobs SET state = 'scheduled', version = version + 1, attempt = 1, actor = 'leader' WHERE id = $1`,
		`INSERT INTO attempts (job, attempt, leader_epoch) VALUES ($1, 1, 1)`,
	} {
		if _, err := d.Pool().Exec(t.Context(), sql, p.job); err != nil {
			t.Fatal(err)
		}
	}
	err := d.Pool().QueryRow(t.Context(), `INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli)
		VALUES ($1, 1, 0, 'm0', 1, 100, 64, 0, 0) RETURNING id`, p.job).Scan(&p.alloc)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// An end is recorded while no replica waits for the member, as in the minutes after
// a replica died with its waiters: its workflow learns of the end all the same.
func TestAnEndThatNoWorkflowActsOnIsPoked(t *testing.T) {
	t.Parallel()
	// An end that is settled too late for the patience proves nothing: a slow machine
	// gets more of it.
	patience := time.Second
	for !onlyTheUnheardEndIsPoked(t, patience) {
		if patience *= 4; patience > time.Hour {
			t.Fatal("no settlement was quicker than the patience with it")
		}
	}
}

// onlyTheUnheardEndIsPoked reports whether the other end was settled well within the
// patience.
func onlyTheUnheardEndIsPoked(t *testing.T, patience time.Duration) (inTime bool) {
	t.Helper()
	d, s := dbtest.DB(t, db.Options{}), newServer()
	o := never
	o.EndLook, o.EndPatience = patience, patience
	run(t, dispatch.New(s, d, o), d)
	machine, err := d.Pool().Exec(t.Context(), `INSERT INTO machines (id, state, cpu_m, mem_mb, disk_mb, gpu_milli) VALUES ('m0', 'ready', 4000, 8192, 1000, 0)`)
	if err != nil || machine.RowsAffected() != 1 {
		t.Fatal(err)
	}
	inventory := wire.Inventory{Capacity: berth.Capacity{CPUMilli: 4000, MemoryMiB: 8192, DiskMiB: 1000}}
	session, _, err := d.Agents.Register(t.Context(), "m0", wire.RegisterRequest{HostBoot: "h", AgentBoot: "a", Inventory: inventory})
	if err != nil {
		t.Fatal(err)
	}
	heard, unheard := place(t, d), place(t, d)
	for i, p := range []placed{heard, unheard} {
		if _, err := d.Agents.Claim(t.Context(), "m0", wire.ClaimRequest{AgentBoot: "a", Epoch: session.Epoch, Alloc: p.alloc, Job: p.job, Attempt: 1}); err != nil {
			t.Fatal(err)
		}
		reported := time.Now()
		end := failure.Exit{Cause: failure.CauseExited, StartedAt: reported, FinishedAt: reported}
		_, err := d.Agents.Sync(t.Context(), "m0", wire.SyncRequest{AgentBoot: "a", Epoch: session.Epoch, Seq: int64(i + 1), Brief: true, Reports: []wire.RankReport{
			{Alloc: p.alloc, Job: p.job, Attempt: 1, Phase: berth.PhaseSealed, Exit: &end},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if p == heard { // its waiter was there, and its workflow settles
			if r, err := d.Attempts.Settle(t.Context(), p.job, 1); err != nil || r.NotReady {
				t.Fatalf("settled as %+v, %v", r, err)
			}
			if time.Since(reported) > patience/2 {
				return false
			}
		}
	}
	s.until(t, "the other is poked", func() bool { return len(s.signals) > 0 })
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, signal := range s.signals {
		if signal != berth.JobWorkflowID(unheard.job)+" "+berth.SignalPoke {
			t.Errorf("signal %s", signal)
		}
	}
	return true
}

// unheard are ends on which no workflow acts, in simulated time.
type unheard struct {
	*memory
	jobs map[berth.AllocationID]berth.JobID
}

func (u unheard) Unheard(_ context.Context, allocs []berth.AllocationID) ([]berth.JobID, error) {
	var list []berth.JobID
	for _, id := range allocs {
		if job, ok := u.jobs[id]; ok {
			list = append(list, job)
		}
	}
	return list, nil
}

// distant is a Temporal that takes its time for signals.
type distant struct {
	*server
	latency time.Duration

	mu     sync.Mutex
	poked  map[string]time.Duration // by workflow id: age at the first signal
	origin time.Time
}

func (s *distant) SignalWorkflow(ctx context.Context, id, run, signal string, arg any) error {
	s.mu.Lock()
	if _, again := s.poked[id]; !again {
		s.poked[id] = time.Since(s.origin)
	}
	s.mu.Unlock()
	time.Sleep(s.latency)
	return s.server.SignalWorkflow(ctx, id, run, signal, arg)
}

// A few workflows that have not acted on an end while Temporal answers quickly have
// lost their waiters: they are poked after a second. Many show that Temporal may be
// behind, and wait for a second look. Slow answers show that it is behind: pokes would
// only add to its work, so the leader settles those ends.
func TestAnUnheardEndIsPokedSoonWhileTemporalKeepsUp(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		ends    int
		latency time.Duration
		want    time.Duration // 0: never
	}{
		"a few":        {16, time.Millisecond, time.Second},
		"many":         {17, time.Millisecond, 3 * time.Second},
		"slow answers": {1, 500 * time.Millisecond, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			u := unheard{newMemory(), map[berth.AllocationID]berth.JobID{}}
			s := &distant{server: newServer(), latency: row.latency, poked: map[string]time.Duration{}}
			var keys []string
			for i := range row.ends {
				u.jobs[berth.AllocationID(i)] = berth.NewJobID(time.Now())
				keys = append(keys, strconv.Itoa(i))
			}
			known := berth.NewJobID(time.Now())
			s.status[berth.JobWorkflowID(known)] = enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING
			ctx, stop := context.WithCancel(t.Context())
			d := dispatch.NewOver(s, u, dispatch.Options{})
			var all sync.WaitGroup
			all.Go(func() { _ = d.Run(ctx) }) // ctx's end
			defer all.Wait()
			defer stop()
			for range 8 { // the dispatcher learns how quick the answers are
				d.Poke(known)
				time.Sleep(time.Second)
			}
			s.mu.Lock()
			clear(s.poked)
			s.origin = time.Now()
			s.mu.Unlock()
			u.hub.Publish(db.TopicEnd, keys...)
			time.Sleep(30 * time.Second)
			s.mu.Lock()
			defer s.mu.Unlock()
			if row.want == 0 {
				if len(s.poked) > 0 {
					t.Errorf("%s: %d were poked", name, len(s.poked))
				}
				return
			}
			if len(s.poked) != row.ends {
				t.Errorf("%s: %d of %d were poked", name, len(s.poked), row.ends)
			}
			var ages []time.Duration
			for _, age := range s.poked {
				ages = append(ages, age.Truncate(time.Second))
			}
			slices.Sort(ages)
			if ages = slices.Compact(ages); len(ages) != 1 || ages[0] != row.want {
				t.Errorf("%s: poked after %v, want %s", name, ages, row.want)
			}
		})
	}
}
