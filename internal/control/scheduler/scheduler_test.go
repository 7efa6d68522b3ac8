package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth"
	"berth/db"
	"berth/internal/control/scheduler"
	"berth/spec"
)

func cpus(n int) func(*spec.Job) {
	return func(s *spec.Job) { c := spec.MilliCPU(1000 * n); s.Resources.CPUs = &c }
}

func TestLeaderPlacesAndPokes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 4, 2)
	before := r.queued(nil)
	metrics := scheduler.NewMetrics()
	r.lead(func(o *scheduler.Options) { o.Metrics = metrics })
	r.awaitState(before, berth.Scheduled)

	hints := r.db.Hub().Subscribe(db.TopicMachine, "m0")
	defer hints.Close()
	after := r.queued(func(s *spec.Job) { s.Resources.GPUs = 2000 })
	r.awaitState(after, berth.Scheduled)
	// A new leader may poke for its first placements twice: once as its own, once
	// as placements that the last leader may have left without a poke.
	r.await("both are poked", func() bool { return r.poke.of(before) >= 1 && r.poke.of(after) >= 1 })
	select {
	case <-hints.C:
	case <-time.After(waitLimit):
		t.Error("the machine was not told")
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	r.await("it is measured how long work without and with GPUs waited", func() bool {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		waits := map[string]uint64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "berth_scheduler_wait_seconds" {
					waits[m.GetLabel()[0].GetValue()] = m.GetHistogram().GetSampleCount()
				}
			}
		}
		return waits["cpu"] == 1 && waits["gpu"] == 1
	})
	r.sound()
}

// Batches that are planned while others are committed share machines with them:
// landed starts must count there as well as flying ones.
func TestABacklogOfManyBatchesFillsItsMachinesExactly(t *testing.T) {
	t.Parallel()
	const jobs = 64 * 63 // of one CPU: a batch of 1,000 ends within a machine
	r := newRig(t)
	r.fleet(jobs - 1)
	first := r.queued(nil)
	r.exec(`INSERT INTO jobs (id, tenant, name, class, priority, preemptible, grace_ms, lost_after_ms, actor)
		SELECT gen_random_uuid(), 'default', 'bench', class, 500, true, 30000, 90000, 'user:bench' FROM jobs, generate_series(2, $1) WHERE id = $2`, jobs, first)
	r.exec(`UPDATE jobs SET state = 'queued', version = version + 1 WHERE state = 'submitted'`)
	r.lead(nil)
	r.await("the backlog is placed", func() bool { return value[int](r, `SELECT count(*) FROM jobs WHERE state = 'queued'`) == 0 })
	if strings.Contains(r.log.String(), "placement refused") {
		t.Error("the leader planned what does not fit")
	}
	r.sound()
}

func TestPriorityDecidesAndABlockedJobHoldsUpNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 2, 0)
	low, huge := r.queued(cpus(2)), r.queued(func(s *spec.Job) {
		cpus(64)(s)
		p := spec.PriorityHigh
		s.Priority = &p
	})
	high := r.queued(func(s *spec.Job) {
		cpus(2)(s)
		p := spec.Priority(600)
		s.Priority = &p
	})
	r.lead(nil)
	r.awaitState(high, berth.Scheduled)
	if r.state(low) != berth.Queued || r.state(huge) != berth.Queued {
		t.Errorf("low is %s, huge is %s", r.state(low), r.state(huge))
	}
	// Waiting jobs get released capacity, without a hint.
	r.exec(`UPDATE allocations SET state = 'released' WHERE job = $1`, high)
	r.awaitState(low, berth.Scheduled)
}

func TestStandbyTakesOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 8, 0)
	first := r.lead(nil)
	r.awaitState(r.queued(nil), berth.Scheduled)
	r.lead(nil)
	first()
	before := value[int64](r, `SELECT max(leader_epoch) FROM attempts`) // an older term than the present one, if the first was held up
	r.awaitState(r.queued(nil), berth.Scheduled)
	if n := value[int64](r, `SELECT epoch FROM leases WHERE name = 'leader'`); n <= before {
		t.Errorf("epoch %d after %d", n, before)
	}
	r.sound()
}

// A leader that dies between its commit and its pokes leaves jobs that no process
// would check before the reconciler's patience is over.
func TestF3ANewLeaderTellsWhatTheLastOneCouldNot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 8, 0)
	first := r.lead(nil)
	id := r.queued(nil)
	r.awaitState(id, berth.Scheduled)
	r.await("it is poked", func() bool { return r.poke.of(id) >= 1 })
	first()
	told := r.poke.of(id)
	r.lead(nil)
	r.await("it is poked again by the next leader", func() bool { return r.poke.of(id) > told })
}

func TestNothingIsPlacedWhileNobodyCouldRunIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 4, 0)
	r.poke.setDown(true)
	waiting := r.queued(nil)
	r.lead(nil)
	r.await("the leader says so", func() bool { return strings.Contains(r.log.String(), "not placing jobs") })
	if s := r.state(waiting); s != berth.Queued {
		t.Errorf("job is %s", s)
	}
	r.poke.setDown(false)
	r.awaitState(waiting, berth.Scheduled)
}

func TestJobsPastTheirQueueDeadlineFail(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.lead(nil)
	id := r.queued(func(s *spec.Job) { s.QueueTimeout = spec.Duration(time.Second) })
	r.awaitState(id, berth.Failed)
	r.await("it is poked", func() bool { return r.poke.of(id) > 0 })
	if code := value[string](r, `SELECT reason->>'code' FROM jobs WHERE id = $1`, id); code != string(berth.ReasonQueueTimeout) {
		t.Errorf("reason %s", code)
	}
}

func TestARetryWaitsUntilItIsEligible(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 4, 0)
	id := r.queued(nil)
	r.lead(nil)
	r.awaitState(id, berth.Scheduled)
	r.exec(`UPDATE allocations SET state = 'released' WHERE job = $1`, id)
	r.exec(`UPDATE jobs SET state = 'retrying', version = version + 1, eligible_at = now() + interval '1500 ms' WHERE id = $1`, id)
	eligible := value[time.Time](r, `SELECT eligible_at FROM jobs WHERE id = $1`, id)
	r.awaitState(id, berth.Scheduled)
	if at := value[time.Time](r, `SELECT scheduled_at FROM jobs WHERE id = $1`, id); at.Before(eligible) {
		t.Errorf("placed at %s, eligible at %s", at, eligible)
	}
	if n := value[int](r, `SELECT attempt FROM jobs WHERE id = $1`, id); n != 2 {
		t.Errorf("attempt %d", n)
	}
}

func TestSilentMachineIsJudgedByTheLeader(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 4, 0)
	id := r.queued(func(s *spec.Job) { s.LostAfter = spec.Duration(2 * time.Second) })
	stop := r.lead(nil)
	r.awaitState(id, berth.Scheduled)
	stop()
	// The silence is in the row, and not the time that the test takes: with limits of a
	// second each late beacon of a slow machine would be a gap, and begin a new grace.
	r.exec(`UPDATE machine_leases SET seen_at = now() - interval '1 hour', until = now() - interval '1 hour'`)
	r.lead(func(o *scheduler.Options) {
		o.Silence = db.Silence{Suspect: 20 * time.Minute, Lost: 30 * time.Minute}
		o.Beacon = true
	})
	r.await("its rank is orphaned", func() bool {
		return value[string](r, `SELECT state FROM allocations WHERE job = $1`, id) == "orphaned"
	})
	r.await("the machine is lost", func() bool { return value[string](r, `SELECT state FROM machines`) == "lost" })
	r.await("the job is poked", func() bool { return r.poke.of(id) > 1 })
	r.sound()
}

func TestMachineWithWrongCountersGetsNoWork(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 4, 0)
	r.exec(`UPDATE machines SET mem_mb_used = 5`)
	r.lead(nil)
	r.await("the leader says so", func() bool { return strings.Contains(r.log.String(), "machine excluded from placement") })
	id := r.queued(nil)
	r.machine("m1", 4, 0)
	r.awaitState(id, berth.Scheduled)
	if m := value[string](r, `SELECT machine_id FROM allocations`); m != "m1" {
		t.Errorf("placed on %s", m)
	}
}

func TestF53AMachineWithASilentEngineGetsWorkOnceItAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 4, 0)
	r.exec(`UPDATE machines SET engine_silent_since = now()`)
	r.lead(nil)
	id := r.queued(nil)
	r.machine("m1", 4, 0)
	r.awaitState(id, berth.Scheduled)
	if m := value[string](r, `SELECT machine_id FROM allocations`); m != "m1" {
		t.Errorf("placed on %s", m)
	}
	large := r.queued(cpus(4)) // m1 has no room for it
	r.exec(`UPDATE machines SET engine_silent_since = NULL`)
	r.awaitState(large, berth.Scheduled)
	if m := value[string](r, `SELECT machine_id FROM allocations WHERE job = $1`, large); m != "m0" {
		t.Errorf("placed on %s once the engine answers", m)
	}
}

func TestReconcilerRepairsLostPokesAndDeadWorkflows(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 64, 0)
	x := newTemporal()
	submitted := r.submitted(nil)
	unclaimed := r.queued(nil)
	lost := r.queued(nil)
	listed, unlisted, completed := r.queued(cpus(99)), r.queued(cpus(99)), r.queued(cpus(99))
	ending, ended := r.queued(cpus(99)), r.queued(cpus(99))
	for _, id := range []berth.JobID{unclaimed, lost, listed, unlisted, ending, ended} {
		x.open[id] = true
	}
	x.unlisted[unlisted] = true
	x.completed[completed] = true
	for _, id := range []berth.JobID{ending, ended} {
		r.exec(`UPDATE jobs SET state = 'failed', version = version + 1 WHERE id = $1`, id)
	}
	ages := scheduler.Ages{
		Submitted: 100 * time.Millisecond, NoWorkflow: 100 * time.Millisecond, Unclaimed: 100 * time.Millisecond,
		Closing: time.Millisecond, Terminate: time.Hour,
	}
	stop := r.lead(func(o *scheduler.Options) { o.Workflows, o.ReconcileEvery, o.Ages = x, 100*time.Millisecond, ages })
	r.await("workflows are started", func() bool {
		return slices.Contains(x.did(&x.started), submitted) && slices.Contains(x.did(&x.again), completed)
	})
	r.await("jobs are poked again", func() bool { return r.poke.of(unclaimed) > 1 && r.poke.of(ending) > 0 })
	r.exec(`UPDATE allocations SET reserved_at = now() - interval '3 minutes' WHERE job = $1`, lost)
	r.await("an unclaimed attempt is settled", func() bool {
		return value[bool](r, `SELECT attempt > 1 OR state = 'retrying' FROM jobs WHERE id = $1`, lost)
	})
	started := x.did(&x.started)
	slices.Sort(started)
	if want := sorted(submitted, completed); !slices.Equal(started, want) {
		t.Errorf("started %v, want %v", started, want)
	}
	stop()
	ages.Terminate = time.Millisecond
	r.lead(func(o *scheduler.Options) { o.Workflows, o.ReconcileEvery, o.Ages = x, 100*time.Millisecond, ages })
	r.await("workflows of ended jobs are ended", func() bool { return len(x.did(&x.terminated)) >= 2 })
	terminated := x.did(&x.terminated)
	slices.Sort(terminated)
	if !slices.Equal(terminated, sorted(ending, ended)) {
		t.Errorf("terminated %v", terminated)
	}
	r.sound()
}

// A call to Temporal that fails for one job keeps no ended job's workflow open. Nor do 500 ended jobs with
// pokes to come keep a workflow from its termination.
func TestWorkflowsOfEndedJobsEndBesideFaults(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x := newTemporal()
	r.queued(cpus(99)) // without a workflow: Temporal is asked about it, and does not answer
	x.silent = true
	end := func(id berth.JobID) berth.JobID {
		x.open[id] = true
		r.exec(`UPDATE jobs SET state = 'canceled', version = version + 1 WHERE id = $1`, id)
		return id
	}
	undying := end(r.submitted(nil))
	x.undying = map[berth.JobID]bool{undying: true}
	var ended []berth.JobID
	for range 600 {
		ended = append(ended, end(r.submitted(nil)))
	}
	late := end(r.submitted(nil))                   // the last one that the database returns
	r.exec(`ALTER TABLE jobs DISABLE TRIGGER USER`) // rows of ended jobs do not change
	r.exec(`UPDATE jobs SET state_at = now() - interval '2 hours' WHERE id IN ($1, $2)`, undying, late)
	r.exec(`ALTER TABLE jobs ENABLE TRIGGER USER`)
	ages := scheduler.Ages{
		Submitted: time.Millisecond, NoWorkflow: time.Millisecond, Closing: time.Millisecond, Terminate: time.Hour,
		Compare: 500 * time.Millisecond,
	}
	r.lead(func(o *scheduler.Options) { o.Workflows, o.ReconcileEvery, o.Ages = x, 50*time.Millisecond, ages })
	r.await("the workflow that stayed open is ended", func() bool { return slices.Equal(x.did(&x.terminated), []berth.JobID{late}) })
	if !slices.ContainsFunc(ended, func(id berth.JobID) bool { return r.poke.of(id) > 0 }) {
		t.Error("no ended job is poked")
	}
}

// Workflows that cannot be started hold up no others, however many they are.
func TestWorkflowsAreStartedBesideFaults(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x := newTemporal()
	x.failing = map[berth.JobID]bool{}
	for range 30 { // more than one pass tries
		x.failing[r.submitted(nil)], x.failing[r.queued(cpus(99))] = true, true
	}
	submitted, missing := r.submitted(nil), r.queued(cpus(99))
	ages := scheduler.Ages{Submitted: time.Millisecond, NoWorkflow: time.Millisecond}
	r.lead(func(o *scheduler.Options) { o.Workflows, o.ReconcileEvery, o.Ages = x, 20*time.Millisecond, ages })
	r.await("the other workflows are started", func() bool {
		started := x.did(&x.started)
		return slices.Contains(started, submitted) && slices.Contains(started, missing)
	})
}

// A restored backup has a job as submitted whose workflow has come to its end.
func TestSubmittedJobWhoseWorkflowHasCompletedIsStartedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x := newTemporal()
	id := r.submitted(nil)
	x.completed[id] = true
	ages := scheduler.Ages{Submitted: 50 * time.Millisecond, NoWorkflow: 100 * time.Millisecond}
	r.lead(func(o *scheduler.Options) { o.Workflows, o.ReconcileEvery, o.Ages = x, 50*time.Millisecond, ages })
	r.await("the workflow is started again", func() bool { return slices.Contains(x.did(&x.again), id) })
}

// A submitted job whose workflow is open, but has lost its first task, gets another workflow, also behind
// many others. One whose task waits for a moment, or that has begun, keeps its workflow.
func TestSubmittedJobWhoseWorkflowDoesNotBeginIsStartedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	x := newTemporal()
	for range 120 { // more than one comparison asks about
		x.open[r.submitted(nil)] = true
	}
	waits, lost := r.submitted(nil), r.submitted(nil)
	x.open[lost], x.open[waits] = true, true
	x.deaf[lost], x.deaf[waits] = time.Hour, time.Millisecond
	ages := scheduler.Ages{Submitted: time.Millisecond, NoWorkflow: time.Millisecond, Deaf: 100 * time.Millisecond}
	r.exec(`UPDATE jobs SET state_at = now() - interval '1 hour'`)
	r.lead(func(o *scheduler.Options) { o.Workflows, o.ReconcileEvery, o.Ages = x, 50*time.Millisecond, ages })
	r.await("the workflow is started again", func() bool { return slices.Contains(x.did(&x.started), lost) })
	if ended := x.did(&x.terminated); !slices.Equal(ended, []berth.JobID{lost}) {
		t.Errorf("workflows of jobs %v ended, want that of %s alone", ended, lost)
	}
}

func sorted(ids ...berth.JobID) []berth.JobID {
	slices.Sort(ids)
	return ids
}

// TestChaosOfLeaders lets leaders come and go while jobs arrive, end, are lost
// and canceled, machines fall out and back, and checks that nothing is ever
// given out twice and everything is placed in the end.
func TestChaosOfLeaders(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 6 {
		r.machine(fmt.Sprintf("m%d", i), 8, 4)
	}
	const leaders, jobs = 3, 240
	stop := make(chan struct{})
	var chaos sync.WaitGroup
	for n := range leaders {
		chaos.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(n)))
			for round := 10; ; round++ {
				kill := r.lead(nil)
				// On a slow machine the first ones may end before they have placed
				// anything; each lives longer than the one before.
				lives := time.Duration(200+rnd.IntN(800)) * time.Millisecond * time.Duration(round) / 10
				select {
				case <-stop:
					return // the last ones stay
				case <-time.After(lives):
				}
				if rnd.IntN(3) == 0 { // deposed without knowing
					_, _ = r.db.Pool().Exec(t.Context(), `UPDATE leases SET holder = 'nobody', epoch = epoch + 1, expires_at = now() - interval '1 s' WHERE name = 'leader'`)
				}
				kill()
			}
		})
	}
	chaos.Go(func() { // agents and workflows, in short
		rnd := rand.New(rand.NewPCG(2, 2))
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			_, _ = r.db.Pool().Exec(t.Context(), `UPDATE machines SET state = CASE state WHEN 'ready' THEN 'suspect' ELSE 'ready' END, epoch = epoch + $2 WHERE id = $1 AND ($3 OR state = 'suspect')`,
				fmt.Sprintf("m%d", rnd.IntN(6)), rnd.IntN(2), rnd.IntN(4) == 0)
			var id berth.JobID
			var attempt int
			err := r.db.Pool().QueryRow(t.Context(), `SELECT id, attempt FROM jobs WHERE state = 'scheduled' ORDER BY random() LIMIT 1`).Scan(&id, &attempt)
			if err != nil {
				continue
			}
			next := "failed"
			if rnd.IntN(3) == 0 {
				next = "retrying"
			}
			_, _ = r.db.Pool().Exec(t.Context(), `WITH j AS (
				UPDATE jobs SET state = $3, version = version + 1 WHERE id = $1 AND attempt = $2 AND state = 'scheduled' RETURNING id)
				UPDATE allocations SET state = 'released' WHERE job IN (SELECT id FROM j) AND state <> 'released'`, id, attempt, next)
		}
	})
	rnd := rand.New(rand.NewPCG(3, 3))
	var ids []berth.JobID
	for range jobs {
		ids = append(ids, r.queued(func(s *spec.Job) {
			cpus(1 + rnd.IntN(4))(s)
			s.Resources.GPUs = []spec.MilliGPU{0, 250, 500, 1000, 2000}[rnd.IntN(5)]
			s.Members = 1 + rnd.IntN(8)/6
		}))
	}
	r.await("every job has been placed", func() bool {
		return value[int](r, `SELECT count(*) FROM jobs WHERE attempt = 0`) == 0
	})
	close(stop)
	chaos.Wait()
	r.exec(`UPDATE machines SET state = 'ready'`)
	r.sound()
	if n := value[int](r, `SELECT count(*) FROM (
		SELECT a.job FROM allocations a JOIN jobs j ON j.id = a.job JOIN job_specs s ON s.job = j.id
		GROUP BY a.job, a.attempt, s.spec HAVING count(*) <> (s.spec->>'members')::int) x`); n > 0 {
		t.Errorf("%d attempts are not whole", n)
	}
	if n := value[int](r, `SELECT count(*) FROM (
		SELECT job, leader_epoch < lag(leader_epoch) OVER (PARTITION BY job ORDER BY attempt) AS back FROM attempts) x WHERE back`); n > 0 {
		t.Errorf("%d attempts were placed by an older term than the one before", n)
	}
	if n := len(ids); n != jobs {
		t.Errorf("%d jobs", n)
	}
}

// A job stays off the machine that failed it while another fits, and takes that
// one rather than none.
func TestF51TheMachineThatFailedAJobIsAvoidedWhileAnotherFits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("good", 4, 0)
	r.machine("bad", 4, 0)
	elsewhere := r.queued(nil)
	r.exec(`UPDATE jobs SET avoid = '{bad}' WHERE id = $1`, elsewhere)
	r.exec(`UPDATE machines SET state = 'draining' WHERE id = 'good'`)
	stop := r.lead(nil)
	r.awaitState(elsewhere, berth.Scheduled)
	if m := value[string](r, `SELECT machine_id FROM allocations WHERE job = $1`, elsewhere); m != "bad" {
		t.Errorf("with no other machine it was placed on %s", m)
	}
	stop()
	r.exec(`UPDATE machines SET state = 'ready' WHERE id = 'good'`)
	for range 3 {
		id := r.queued(nil)
		r.exec(`UPDATE jobs SET avoid = '{bad}' WHERE id = $1`, id)
		elsewhere = id
	}
	r.lead(nil)
	r.awaitState(elsewhere, berth.Scheduled)
	r.await("all are placed", func() bool { return value[int](r, `SELECT count(*) FROM jobs WHERE state = 'scheduled'`) == 4 })
	if n := value[int](r, `SELECT count(*) FROM allocations WHERE machine_id = 'bad'`); n != 1 {
		t.Errorf("%d jobs were placed on the machine that had failed them", n)
	}
	r.sound()
}
