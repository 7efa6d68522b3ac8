package db_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

var (
	raceSeed = flag.Uint64("race-seed", 0, "seed of the races; 0 takes the time. Each worker plays the same moves again in the same order")
	raceRuns = flag.Int("race-runs", 240, "how many jobs are canceled at a random moment, and a quarter as many preempted; make chaos has thousands")
)

// TestF44CancelAtAnyMomentEndsAJobOnce drives each job through its life with all parties that may write to
// it: its workflow, the leader, its machines, users, jobs that preempt it, an operator. They make one move at
// a time, or two at once, in an order that the seed determines. Every job must end exactly once, and its
// machines must get back exactly the capacity that they gave.
func TestF44CancelAtAnyMomentEndsAJobOnce(t *testing.T) {
	t.Parallel()
	race(t, *raceRuns, func(r *racer) []move {
		return []move{r.workflow, r.workflow, r.lead, r.machine(0), r.machine(1), r.machine(0), r.machine(1), r.lose, r.drain, r.undrain, r.restart}
	}, (*racer).cancel)
}

func TestF45PreemptionMeetsCompletionAndCancelAndAnotherPreemption(t *testing.T) {
	t.Parallel()
	race(t, *raceRuns/4, func(r *racer) []move {
		return []move{r.workflow, r.workflow, r.lead, r.machine(0), r.machine(1), r.machine(0), r.machine(1), r.preempt}
	}, func(r *racer, ctx context.Context) error {
		if r.chance%3 == 0 {
			return together(ctx, r.preempt, r.cancel)
		}
		return together(ctx, r.preempt, r.preempt)
	})
}

// move is one action of one party. It does nothing if the party has nothing to do now.
type move func(context.Context) error

// racer is a worker with two machines of its own. It plays the machines' agents too.
type racer struct {
	*stage
	term     db.Term
	rnd      *rand.Rand
	machines [2]*agent
	mu       [2]sync.Mutex // an agent sends one request at a time

	id     berth.JobID
	chance uint64 // random per job, so that a decision does not depend on which party asks first

	drained atomic.Bool
}

func race(t *testing.T, runs int, moves func(*racer) []move, surely func(*racer, context.Context) error) {
	seed := *raceSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d: -race-seed %d plays it again", seed, seed)
	const workers = 8
	s := newStage(t)
	term := s.term()
	var all sync.WaitGroup
	for w := range workers {
		r := &racer{stage: s, term: term, rnd: rand.New(rand.NewPCG(seed, uint64(w)))}
		for i := range r.machines {
			id := berth.MachineID(fmt.Sprintf("w%d-%d", w, i))
			insertMachine(t, s.pool, string(id), 2)
			a := &agent{stage: s, machine: id, host: "host", boot: "boot"}
			answer, _, err := s.db.Agents.Register(t.Context(), id, a.request())
			if err != nil {
				t.Fatal(err)
			}
			a.epoch = answer.Epoch
			r.machines[i] = a
		}
		all.Go(func() {
			for n := w; n < runs && !t.Failed(); n += workers {
				if err := r.play(moves(r), func(ctx context.Context) error { return surely(r, ctx) }); err != nil {
					t.Errorf("seed %d, worker %d, job %d (%s): %v\n%s", seed, w, n, r.id, err, r.story())
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	s.freed()
	if list, err := s.db.Cluster.Miscounts(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("counters: %v, %v", list, err)
	}
	ends := map[string]int{}
	for _, state := range []string{"succeeded", "failed", "canceled"} {
		ends[state] = one[int](s, `SELECT count(*) FROM jobs WHERE state = $1`, state)
	}
	t.Logf("%d jobs: %v", runs, ends)
}

// play takes one job from submit to its end and checks its history and its machines.
func (r *racer) play(moves []move, surely move) error {
	ctx := r.t.Context()
	jobSpec := spec.Job{Name: "race", Image: "busybox", Retry: spec.RetryPolicy{MaxAttempts: 2}}.WithDefaults()
	job, _, err := r.db.Jobs.Submit(ctx, db.Submission{Tenant: "default", Spec: jobSpec, Actor: "user:test"})
	if err != nil {
		return err
	}
	r.id, r.chance = job.ID, r.rnd.Uint64()
	for range r.rnd.IntN(8) { // rounds without faults; seven rounds are a whole life
		for _, m := range r.life() {
			if r.chance%8 == 7 { // one job in eight has faults from the start
				break
			}
			if err := together(ctx, m, nil); err != nil {
				return err
			}
		}
	}
	for range r.rnd.IntN(6) {
		a, b := moves[r.rnd.IntN(len(moves))], moves[r.rnd.IntN(len(moves))]
		if r.rnd.IntN(2) == 0 {
			b = nil
		}
		if err := together(ctx, a, b); err != nil {
			return err
		}
	}
	for _, m := range []move{moves[r.rnd.IntN(len(moves))], surely} { // against any move, and against itself
		if err := together(ctx, surely, m); err != nil {
			return err
		}
	}
	// Now the faults stop, and the job must end.
	for range 60 {
		for _, m := range append(r.life(), r.undrain) {
			if err := together(ctx, m, nil); err != nil {
				return err
			}
		}
		if over, err := r.over(ctx); err != nil {
			return err
		} else if over {
			return r.check(ctx)
		}
	}
	return errors.New("it does not end")
}

// life returns the moves that bring a job forward.
func (r *racer) life() []move {
	return []move{r.workflow, r.lead, r.machine(0), r.machine(1)}
}

// together makes two moves at once. It ignores refusals, which only mean that another party was first.
func together(ctx context.Context, a, b move) error {
	errs := make(chan error, 2)
	for _, m := range []move{a, b} {
		if m == nil {
			errs <- nil
			continue
		}
		go func() { errs <- m(ctx) }()
	}
	var bad error
	for range 2 {
		if err := <-errs; berth.CodeOf(err) == berth.CodeInternal {
			bad = errors.Join(bad, err)
		}
	}
	return bad
}

type raced struct {
	state    berth.State
	attempt  int
	version  int64
	unforgot int
}

func (r *racer) look(ctx context.Context) (j raced, err error) {
	err = r.pool.QueryRow(ctx, `
		SELECT state, attempt, version, (SELECT count(*) FROM allocations WHERE job = jobs.id AND forgotten_at IS NULL)
		FROM jobs WHERE id = $1`, r.id).Scan(&j.state, &j.attempt, &j.version, &j.unforgot)
	return j, err
}

// over reports whether the job has ended and no machine holds a rank of it.
func (r *racer) over(ctx context.Context) (bool, error) {
	j, err := r.look(ctx)
	return j.state.Terminal() && j.unforgot == 0, err
}

// check fails unless the job's events form one history with one end and its machines' counters are zero.
func (r *racer) check(ctx context.Context) error {
	events, err := r.db.Jobs.Events(ctx, "", r.id, 0, 1000)
	if err != nil {
		return err
	}
	ends, at := 0, berth.State("")
	for i, e := range events {
		if e.Seq != int64(i+1) {
			return fmt.Errorf("event %d has seq %d", i+1, e.Seq)
		}
		if e.Kind != wire.EventState {
			continue
		}
		if e.From != at || at.Terminal() {
			return fmt.Errorf("event %d goes from %q to %q, and it was %q", e.Seq, e.From, e.To, at)
		}
		if at = e.To; at.Terminal() {
			ends++
		}
	}
	if ends != 1 {
		return fmt.Errorf("it ended %d times", ends)
	}
	for _, a := range r.machines {
		var used int64
		err := r.pool.QueryRow(ctx, `
			SELECT cpu_m_used + mem_mb_used + gpu_milli_used + (SELECT sum(milli_used)::bigint FROM gpu_devices WHERE machine_id = id)
			FROM machines WHERE id = $1`, a.machine).Scan(&used)
		if err != nil || used != 0 {
			return fmt.Errorf("machine %s still counts %d: %w", a.machine, used, err)
		}
	}
	return nil
}

// story returns the job's events and ranks for a failure message.
func (r *racer) story() string {
	events, err := r.db.Jobs.Events(context.Background(), "", r.id, 0, 1000)
	if err != nil {
		return err.Error()
	}
	text := ""
	for _, e := range events {
		text += fmt.Sprintf("%3d %s %s -> %s attempt %d by %s %s\n", e.Seq, e.Kind, e.From, e.To, e.Attempt, e.Actor, e.Detail)
	}
	var ranks string
	_ = r.pool.QueryRow(context.Background(), `SELECT coalesce(string_agg(concat_ws(' ', id, attempt, machine_id, state, phase, orders, forgotten_at), E'\n' ORDER BY id), '') FROM allocations WHERE job = $1`, r.id).Scan(&ranks)
	return text + ranks
}

func (r *racer) workflow(ctx context.Context) error {
	v, err := r.db.Jobs.Load(ctx, r.id)
	if err != nil || !v.State.HoldsCapacity() {
		return err
	}
	if r.chance%3 == 0 {
		if err := r.db.Attempts.Escalate(ctx, r.id, v.Attempt); err != nil {
			return err
		}
	}
	_, err = r.db.Attempts.Settle(ctx, r.id, v.Attempt)
	return err
}

// lead places the job on one of the worker's machines, without waiting for the backoff.
func (r *racer) lead(ctx context.Context) error {
	j, err := r.look(ctx)
	if err != nil || j.state != berth.Queued && j.state != berth.Retrying {
		return err
	}
	if _, err := r.pool.Exec(ctx, `UPDATE jobs SET eligible_at = now() WHERE id = $1 AND state = $2`, r.id, j.state); err != nil {
		return err
	}
	a := r.machines[(r.chance+uint64(j.attempt))%2]
	_, err = r.db.Queue.CommitStarts(ctx, r.term, []berth.Start{{Job: r.id, Version: j.version, Attempt: j.attempt + 1, Ranks: []berth.Grant{{
		Machine: a.machine, Epoch: a.epoch, Capacity: berth.Capacity{CPUMilli: 1000, MemoryMiB: 64, GPUMilli: 1000},
		GPUs: []berth.DeviceShare{{Index: 0, Milli: 1000}},
	}}}})
	return err
}

func (r *racer) cancel(ctx context.Context) error {
	_, err := r.db.Jobs.RequestCancel(ctx, "", r.id, "user:test", nil)
	return err
}

// preempt does the same writes as the leader when it displaces the job for another one.
func (r *racer) preempt(ctx context.Context) error {
	_, err := r.pool.Exec(ctx, `
		WITH victim AS (
			UPDATE jobs
			SET state = 'preempting', version = version + 1, actor = 'leader', preempted_for = gen_random_uuid()
			WHERE id = $1 AND state IN ('scheduled', 'running')
			RETURNING id, attempt
		)
		UPDATE allocations a
		SET orders = a.orders || '{"checkpoint": true, "stop": true}', stop_by = now(),
		    state = CASE a.state WHEN 'reserved' THEN 'released' ELSE a.state END,
		    released_at = CASE a.state WHEN 'reserved' THEN now() END,
		    sealed_at = CASE a.state WHEN 'reserved' THEN now() ELSE a.sealed_at END
		FROM victim v
		WHERE a.job = v.id AND a.attempt = v.attempt AND a.state IN ('reserved', 'active')`, r.id)
	return err
}

// lose declares the ranks of the job orphaned, as the leader does for a machine that fell silent.
func (r *racer) lose(ctx context.Context) error {
	if r.chance%4 != 0 {
		return nil
	}
	_, err := r.pool.Exec(ctx, `
		WITH job AS (
			SELECT id FROM jobs WHERE id = $1 FOR NO KEY UPDATE
		)
		UPDATE allocations a
		SET state = 'orphaned', orphaned_at = now(), orders = a.orders || '{"kill": true}'
		FROM job
		WHERE a.job = job.id AND a.state IN ('reserved', 'active')`, r.id)
	return err
}

func (r *racer) drain(ctx context.Context) error {
	r.drained.Store(true)
	a := r.machines[r.chance%2]
	now := time.Now().Add(-time.Second)
	if err := r.db.Machines.Drain(ctx, a.machine, "race", &now, "operator:test"); err != nil {
		return err
	}
	_, err := r.db.Attempts.DrainOverdue(ctx, r.term, 10)
	return err
}

func (r *racer) undrain(ctx context.Context) error {
	if !r.drained.Swap(false) {
		return nil
	}
	for _, a := range r.machines {
		if err := r.db.Machines.Undrain(ctx, a.machine, "operator:test"); err != nil &&
			berth.CodeOf(err) == berth.CodeInternal {
			return err
		}
	}
	return nil
}

// restart registers a new agent process that finds the containers of the previous one.
func (r *racer) restart(ctx context.Context) error {
	i := int(r.chance>>1) % 2
	r.mu[i].Lock()
	defer r.mu[i].Unlock()
	a := r.machines[i]
	here, err := r.here(ctx, a)
	if err != nil {
		return err
	}
	var seen []wire.ContainerSeen
	for _, h := range here {
		if h.phase == berth.PhaseRunning {
			seen = append(seen, wire.ContainerSeen{Alloc: h.alloc, Job: r.id, Attempt: h.attempt, Running: true})
		}
	}
	a.boot, a.seq = a.boot+"'", 0
	answer, _, err := r.db.Agents.Register(ctx, a.machine, a.request(seen...))
	if err != nil {
		return err
	}
	if answer.Epoch != a.epoch {
		return fmt.Errorf("a restart moved the machine's epoch from %d to %d", a.epoch, answer.Epoch)
	}
	if len(answer.Kill) > 0 {
		return r.say(ctx, a, func(q *wire.SyncRequest) { q.Gone = answer.Kill })
	}
	return nil
}

type presentRank struct {
	alloc   berth.AllocationID
	attempt int
	state   berth.AllocationState
	phase   berth.Phase
	orders  berth.Orders
}

func (r *racer) here(ctx context.Context, a *agent) ([]presentRank, error) {
	rows, err := r.pool.Query(ctx, `
		SELECT id, attempt, state, phase, orders FROM allocations
		WHERE job = $1 AND machine_id = $2 AND forgotten_at IS NULL ORDER BY id`, r.id, a.machine)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []presentRank
	for rows.Next() {
		var h presentRank
		if err := rows.Scan(&h.alloc, &h.attempt, &h.state, &h.phase, &h.orders); err != nil {
			return nil, err
		}
		list = append(list, h)
	}
	return list, rows.Err()
}

func (r *racer) say(ctx context.Context, a *agent, edit func(*wire.SyncRequest)) error {
	a.seq++
	q := wire.SyncRequest{AgentBoot: a.boot, Epoch: a.epoch, Seq: a.seq}
	edit(&q)
	_, err := r.db.Agents.Sync(ctx, a.machine, q)
	return err
}

// machine returns the next move of one agent for the job.
func (r *racer) machine(i int) move {
	return func(ctx context.Context) error {
		r.mu[i].Lock()
		defer r.mu[i].Unlock()
		a := r.machines[i]
		here, err := r.here(ctx, a)
		if err != nil {
			return err
		}
		for _, h := range here {
			if err := r.act(ctx, a, h); err != nil {
				return err
			}
		}
		return nil
	}
}

func (r *racer) act(ctx context.Context, a *agent, h presentRank) error {
	report := func(phase berth.Phase, exit *failure.Exit) error {
		return r.say(ctx, a, func(q *wire.SyncRequest) {
			q.Reports = []wire.RankReport{{Alloc: h.alloc, Job: r.id, Attempt: h.attempt, Phase: phase, Exit: exit}}
		})
	}
	stop := h.orders.Stop || h.orders.Kill || h.orders.Checkpoint
	ended := exited(int((r.chance>>2 + uint64(h.attempt)) % 2))
	switch {
	case h.orders.Forget || slices.Contains([]berth.AllocationState{berth.AllocOrphaned, berth.AllocReleased}, h.state):
		return r.say(ctx, a, func(q *wire.SyncRequest) { q.Gone = []berth.AllocationID{h.alloc} })
	case h.state == berth.AllocReserved:
		_, err := r.db.Agents.Claim(ctx, a.machine, wire.ClaimRequest{AgentBoot: a.boot, Epoch: a.epoch, Alloc: h.alloc, Job: r.id, Attempt: h.attempt})
		return err
	case h.state == berth.AllocExited:
		return report(berth.PhaseSealed, &ended) // an exit on record stays as it is
	case stop && h.phase != berth.PhaseRunning:
		return report(berth.PhaseSealed, &failure.Exit{Cause: failure.CauseNotStarted, FinishedAt: ranAt})
	case stop:
		ended.Cause = failure.CauseOrdered
		return report(berth.PhaseSealed, &ended)
	case h.phase == berth.PhaseRunning && r.chance%5 == 0:
		return report(berth.PhaseExited, &ended)
	case h.phase == berth.PhaseRunning:
		return report(berth.PhaseSealed, &ended)
	case h.phase == berth.PhasePrepared && h.orders.Start:
		return report(berth.PhaseRunning, nil)
	default:
		return report(berth.PhasePrepared, nil)
	}
}
