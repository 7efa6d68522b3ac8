package db_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/spec"
)

// queued is a job that waits for the leader.
func (s *stage) queued(edit func(*spec.Job)) berth.JobID {
	s.t.Helper()
	id := s.submit(edit)
	s.load(id)
	return id
}

// start is a decision about a job as it stands now.
func (s *stage) start(id berth.JobID, ranks ...berth.Grant) berth.Start {
	s.t.Helper()
	return berth.Start{
		Job: id, Version: one[int64](s, `SELECT version FROM jobs WHERE id = $1`, id),
		Attempt: one[int](s, `SELECT attempt + 1 FROM jobs WHERE id = $1`, id), Ranks: ranks,
	}
}

// on grants one CPU and shares of devices.
func on(machine string, shares ...berth.DeviceShare) berth.Grant {
	g := berth.Grant{Machine: berth.MachineID(machine), Epoch: 1, Capacity: berth.Capacity{CPUMilli: 1000, MemoryMiB: 1024}, GPUs: shares}
	for _, d := range shares {
		g.Capacity.GPUMilli += d.Milli
	}
	return g
}

func (s *stage) commit(term db.Term, starts ...berth.Start) db.Committed {
	s.t.Helper()
	c, err := s.db.Queue.CommitStarts(s.t.Context(), term, starts)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func (s *stage) mustRefuse(term db.Term, start berth.Start, why string) {
	s.t.Helper()
	c := s.commit(term, start)
	if len(c.Started) != 0 || len(c.Refused) != 1 || !strings.Contains(c.Refused[0].Why, why) {
		s.t.Errorf("started %v, refused %+v, want %q", c.Started, c.Refused, why)
	}
}

func TestCommitWritesTheWholeAttempt(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	plain := s.queued(nil)
	gang := s.queued(nil)
	c := s.commit(term, s.start(plain, on("m1")),
		s.start(gang, on("m0", berth.DeviceShare{Index: 0, Milli: 1000}, berth.DeviceShare{Index: 1, Milli: 1000}), on("m1", berth.DeviceShare{Index: 1, Milli: 250})))
	if len(c.Started) != 2 || len(c.Refused) != 0 {
		t.Fatalf("%+v", c)
	}
	j := s.job(gang)
	if j.Status != berth.Scheduled || j.Attempt != 1 || j.ScheduledAt == nil {
		t.Errorf("job %+v", j)
	}
	if e := lastEvent(s, gang); e.To != berth.Scheduled || e.Actor != "leader" || e.Attempt != 1 {
		t.Errorf("event %+v", e)
	}
	if n := one[int64](s, `SELECT leader_epoch FROM attempts WHERE job = $1 AND attempt = 1 AND resume_from IS NULL`, gang); n != term.Epoch {
		t.Errorf("leader epoch %d", n)
	}
	got := one[[]string](s, `SELECT array_agg(format('%s %s@%s cpu %s gpu %s: %s', a.rank, a.machine_id, a.machine_epoch, a.cpu_m, a.gpu_milli,
		(SELECT string_agg(c.idx || '*' || c.milli, ' ' ORDER BY c.idx) FROM device_allocations c WHERE c.alloc_id = a.id)) ORDER BY a.rank)
		FROM allocations a WHERE job = $1 AND state = 'reserved'`, gang)
	if diff := cmp.Diff([]string{"0 m0@1 cpu 1000 gpu 2000: 0*1000 1*1000", "1 m1@1 cpu 1000 gpu 250: 1*250"}, got); diff != "" {
		t.Error(diff)
	}
	if c, gpus := used(t, s.pool, "m1"); c.CPUMilli != 2000 || gpus[1] != 250 {
		t.Errorf("m1 uses %+v %v", c, gpus)
	}
}

func TestCommitRefusesWhatDoesNotHoldAnyMore(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	id := s.queued(nil)
	good := s.start(id, on("m0", berth.DeviceShare{Index: 0, Milli: 1000}))

	stale := good
	stale.Version--
	s.mustRefuse(term, stale, "version")
	skipping := good
	skipping.Attempt++
	s.mustRefuse(term, skipping, "attempt")
	missing := good
	missing.Job = jobB
	s.mustRefuse(term, missing, "gone")
	empty := good
	empty.Ranks = nil
	s.mustRefuse(term, empty, "no ranks")
	other := on("m0")
	other.Epoch = 2
	s.mustRefuse(term, s.start(id, other), "epoch")
	nowhere := on("m9")
	s.mustRefuse(term, s.start(id, nowhere), "m9")
	large := on("m0")
	large.Capacity.CPUMilli = 4001
	s.mustRefuse(term, s.start(id, large), "room")
	s.mustRefuse(term, s.start(id, on("m0", berth.DeviceShare{Index: 7, Milli: 1000})), "GPU 7")

	mustExec(t, s.pool, `UPDATE gpu_devices SET healthy = false WHERE machine_id = 'm0' AND idx = 0`)
	s.mustRefuse(term, good, "GPU 0")
	mustExec(t, s.pool, `UPDATE gpu_devices SET healthy = true`)
	for _, state := range []string{"suspect", "draining", "joining", "lost"} {
		mustExec(t, s.pool, `UPDATE machines SET state = $1 WHERE id = 'm0'`, state)
		s.mustRefuse(term, good, state)
	}
	mustExec(t, s.pool, `UPDATE machines SET state = 'ready'`)
	mustExec(t, s.pool, `UPDATE jobs SET held = true WHERE id = $1`, id)
	s.mustRefuse(term, good, "held")
	mustExec(t, s.pool, `UPDATE jobs SET held = false, eligible_at = now() + interval '1 hour' WHERE id = $1`, id)
	s.mustRefuse(term, good, "eligible")
	mustExec(t, s.pool, `UPDATE jobs SET eligible_at = now() WHERE id = $1`, id)
	s.freed()

	if c := s.commit(term, good, good); len(c.Started) != 1 || len(c.Refused) != 1 {
		t.Errorf("the same decision twice: %+v", c)
	}
	s.mustRefuse(term, good, "version")
}

func TestCommitTakesAGangWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	gang, single := s.queued(nil), s.queued(nil)
	whole := []berth.DeviceShare{{Index: 0, Milli: 1000}, {Index: 1, Milli: 1000}}
	c := s.commit(term,
		s.start(gang, on("m0", whole...), on("m1", whole...), on("m1", whole[0])), // the third finds no room
		s.start(single, on("m0", whole...)))
	if len(c.Started) != 1 || c.Started[0].Job != single {
		t.Fatalf("%+v", c)
	}
	if n := one[int](s, `SELECT count(*) FROM allocations WHERE job = $1`, gang); n != 0 {
		t.Errorf("%d ranks of a refused gang", n)
	}
	if s.job(gang).Status != berth.Queued {
		t.Error("the gang does not wait any more")
	}
}

func TestCommitResumesFromTheNewestVerifiedCheckpoint(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	id, attempt := s.started(nil)
	for step, state := range map[int]string{10: "verified", 20: "verified", 30: "bad", 40: "partial"} {
		mustExec(t, s.pool, `INSERT INTO checkpoints (job, step, attempt, ranks, state) VALUES ($1, $2, $3, 1, $4)`, id, step, attempt, state)
	}
	s.orphan(id, attempt, 0)
	s.settle(id, attempt)
	mustExec(t, s.pool, `UPDATE jobs SET eligible_at = now() WHERE id = $1`, id)
	if c := s.commit(term, s.start(id, on("m1"))); len(c.Started) != 1 {
		t.Fatalf("%+v", c)
	}
	if step := one[int64](s, `SELECT resume_from FROM attempts WHERE job = $1 AND attempt = 2`, id); step != 20 {
		t.Errorf("resumes from %d, want 20", step)
	}
}

func TestOneDecisionAConstraintObjectsToDoesNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	var starts []berth.Start
	for range 5 {
		starts = append(starts, s.start(s.queued(nil), on("m0")))
	}
	starts = starts[:4] // m0 has four CPUs
	// A rank that lives on although no attempt of the job does.
	mustExec(t, s.pool, `INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli)
		VALUES ($1, 77, 0, 'm1', 1, 1000, 1024, 0, 0)`, starts[2].Job)
	c := s.commit(term, starts...)
	if len(c.Started) != 3 || len(c.Refused) != 1 || c.Refused[0].Start.Job != starts[2].Job {
		t.Errorf("%+v", c)
	}
}

func TestTwoLeadersNeverShareADevice(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	var jobs []berth.JobID
	for range 40 {
		jobs = append(jobs, s.queued(nil))
	}
	var all sync.WaitGroup
	for w := range 4 { // as if every one of them led
		all.Go(func() {
			for i, id := range jobs {
				m := fmt.Sprintf("m%d", (i+w)%3)
				start := berth.Start{Job: id, Version: 2, Attempt: 1, Ranks: []berth.Grant{
					on(m, berth.DeviceShare{Index: i % 2, Milli: 500}), on(fmt.Sprintf("m%d", (i+w+1)%3)),
				}}
				if _, err := s.db.Queue.CommitStarts(t.Context(), term, []berth.Start{start}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if m := one[int](s, `SELECT max(milli_used) FROM gpu_devices`); m > 1000 {
		t.Errorf("a device is used %d", m)
	}
	if list, err := s.db.Cluster.Miscounts(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("counters %v, %v", list, err)
	}
	if n := one[int](s, `SELECT count(*) FROM (SELECT job FROM allocations GROUP BY job, attempt HAVING count(*) <> 2) x`); n != 0 {
		t.Errorf("%d gangs are not whole", n)
	}
}

// A commit keeps the number of elements with capacity within the array's parallelism,
// even if the plan does not, and places no element of a canceled or held array.
func TestCommitKeepsParallelAndStartsNothingOfAStoppedArray(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	id := s.array(6, func(j *spec.Job) { j.Array.Parallel = 2 })
	s.tend(id)
	element := make([]berth.JobID, 6)
	for i := range element {
		element[i] = s.element(id, i)
		s.load(element[i])
	}
	plain := s.queued(nil)
	c := s.commit(term, s.start(element[0], on("m1")), s.start(element[1], on("m1")), s.start(element[2], on("m1")), s.start(plain, on("m1")))
	if len(c.Started) != 3 || len(c.Refused) != 1 || c.Refused[0].Start.Job != element[2] {
		t.Fatalf("%+v", c)
	}
	if j := s.job(id); j.Status != berth.Running || j.StartedAt == nil || lastEvent(s, id).Actor != "leader" {
		t.Errorf("the array is %s after %+v", j.Status, lastEvent(s, id))
	}
	s.mustRefuse(term, s.start(element[3], on("m2")), "2 elements of its array hold capacity")
	mustExec(t, s.pool, `UPDATE jobs SET state = 'running', version = version + 1, actor = 'agent:m1' WHERE id = $1`, element[0])
	s.mustRefuse(term, s.start(element[3], on("m2")), "2 elements of its array hold capacity")
	s.claim(element[0], 1, 0)
	s.exit(element[0], 1, 0, exited(0))
	s.mustRefuse(term, s.start(element[3], on("m2")), "2 elements of its array hold capacity") // until it is settled
	s.settle(element[0], 1)
	mustExec(t, s.pool, `UPDATE jobs SET held = true, held_at = now() WHERE id = $1`, id)
	s.mustRefuse(term, s.start(element[3], on("m2")), "its array is held")
	mustExec(t, s.pool, `UPDATE jobs SET held = false, held_at = NULL WHERE id = $1`, id)
	if c := s.commit(term, s.start(element[3], on("m2"))); len(c.Started) != 1 {
		t.Errorf("with one less it is refused: %+v", c)
	}
	// The commit of a plan sees a committed cancel, even before any member has stopped.
	mustExec(t, s.pool, `UPDATE jobs SET state = 'canceling', version = version + 1, actor = 'user:x' WHERE id = $1`, id)
	s.mustRefuse(term, s.start(element[4], on("m2")), "its array is canceling")
}

// Two leaders, one of them deposed: its commits do not count.
func TestParallelIsKeptWhileLeadersChange(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mustExec(t, s.pool, `UPDATE machines SET cpu_m = 1000000, mem_mb = 1000000`)
	const size, parallel = 60, 5
	id := s.array(size, func(j *spec.Job) { j.Array.Parallel = parallel })
	s.tend(id)
	mustExec(t, s.pool, `UPDATE jobs SET state = 'queued', version = version + 1, actor = 'workflow' WHERE parent = $1`, id)
	term := s.term()
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for i := worker; i < size; i += 4 {
				_, _ = s.db.Queue.CommitStarts(t.Context(), term, []berth.Start{s.start(s.element(id, i), on("m0"))})
			}
		})
	}
	all.Wait()
	if n := one[int](s, `SELECT count(*)::int FROM jobs WHERE parent = $1 AND state = 'scheduled'`, id); n != parallel {
		t.Errorf("%d elements are scheduled, want %d", n, parallel)
	}
}

// queuedOf is a waiting job of a tenant.
func (s *stage) queuedOf(t berth.TenantID) berth.JobID {
	s.t.Helper()
	mustExec(s.t, s.pool, `INSERT INTO tenants (id) VALUES ($1) ON CONFLICT DO NOTHING`, t)
	id := s.submit(func(*spec.Job) {})
	mustExec(s.t, s.pool, `UPDATE jobs SET tenant = $2 WHERE id = $1`, id, t)
	s.load(id)
	return id
}

// shareOf is a quarter of device 0 of m0, for a job of the tenant alone.
func shareOf(t berth.TenantID) berth.Grant {
	return on("m0", berth.DeviceShare{Index: 0, Milli: 250, Tenant: t})
}

// A plan may be made before another leader's commit: the commit itself keeps tenants apart.
func TestCommitKeepsTenantsApart(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	a1, a2, b1, b2, b3 := s.queuedOf("a"), s.queuedOf("a"), s.queuedOf("b"), s.queuedOf("b"), s.queuedOf("b")
	// In one batch: the first one has the device, and a gang that fails leaves no trace.
	gang := s.start(b2, on("m0", berth.DeviceShare{Index: 1, Milli: 250, Tenant: "b"}), on("m9"))
	c := s.commit(term, gang, s.start(a1, shareOf("a")), s.start(b1, shareOf("b")), s.start(a2, shareOf("a")))
	if len(c.Started) != 2 || c.Started[0].Job != a1 || c.Started[1].Job != a2 || len(c.Refused) != 2 {
		t.Fatalf("%+v", c)
	}
	s.mustRefuse(term, s.start(b1, shareOf("b")), "GPU 0 is shared by another tenant")
	// A cluster that shares devices across tenants, and the version before, name no tenant.
	if c := s.commit(term, s.start(b1, shareOf(""))); len(c.Started) != 1 {
		t.Fatalf("%+v", c)
	}
	s.mustRefuse(term, s.start(b3, shareOf("b")), "GPU 0 is shared by another tenant")
	if got := one[string](s, `SELECT string_agg(coalesce(tenant, '-'), ' ' ORDER BY alloc_id) FROM device_allocations`); got != "a a -" {
		t.Errorf("claims are of tenants %s", got)
	}
	// Whichever process writes: the database refuses such a claim.
	id := one[int64](s, `INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli)
		SELECT job, attempt, 1, machine_id, machine_epoch, 0, 0, 0, 250 FROM allocations WHERE job = $1 RETURNING id`, b1)
	refuses(t, s.pool, "BT011", `INSERT INTO gpu_claims (alloc_id, machine_id, idx, milli, tenant) VALUES ($1, 'm0', 0, 250, 'b')`, id)
}
