package scheduler_test

import (
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/internal/control/scheduler"
	"berth/placement"
	"berth/spec"
)

func leastFirst(o *scheduler.Options) {
	o.Policy = placement.Policy{Order: placement.SRSF, Exponent: 1}
}

// named submits a job of a tenant that wants the whole machine and says nothing
// of how long it runs, and queues it.
func (r *rig) named(tenant berth.TenantID, name string) berth.JobID {
	r.t.Helper()
	jobSpec := spec.Job{Name: name, Image: "busybox"}.WithDefaults()
	cpus(4)(&jobSpec)
	job, _, err := r.db.Jobs.Submit(r.t.Context(), db.Submission{Tenant: tenant, Spec: jobSpec, Actor: "user:test"})
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.db.Jobs.Load(r.t.Context(), job.ID); err != nil {
		r.t.Fatal(err)
	}
	return job.ID
}

// past adds jobs that have ended after they ran for so long.
func (r *rig) past(tenant berth.TenantID, name string, state berth.State, ran ...time.Duration) {
	r.t.Helper()
	for _, d := range ran {
		r.exec(`
			INSERT INTO jobs (id, tenant, name, class, priority, preemptible, state, grace_ms, lost_after_ms, actor, submitted_at, finished_at, ran_ms)
			VALUES (gen_random_uuid(), $1, $2, 'c', 500, true, $3, 0, 0, 'test', now() - interval '1 day', now(), $4)`, tenant, name, state, d.Milliseconds())
	}
	r.hint()
}

// done lets a scheduled job run and succeed.
func (r *rig) done(id berth.JobID) {
	r.t.Helper()
	r.awaitState(id, berth.Scheduled)
	r.run(id)
	r.exec(`UPDATE allocations SET state = 'exited', phase = 'sealed', exit = $2, exited_at = now(), sealed_at = now() WHERE job = $1 AND state = 'active'`,
		id, failure.Exit{Cause: failure.CauseExited, StartedAt: time.Now(), FinishedAt: time.Now()})
	result, err := r.db.Attempts.Settle(r.t.Context(), id, 1)
	if err != nil || result.Next != berth.Succeeded {
		r.t.Fatalf("settled as %+v, %v", result, err)
	}
	r.hint()
}

// The history of a tenant decides: of two jobs without limits, the one with shorter
// runs of similar jobs goes first, although it was submitted later. Failed and
// canceled jobs, and jobs of other tenants, do not count.
func TestHistoryTellsWhichJobIsShorter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 4, 0)
	r.past("default", "long", berth.Succeeded, 2*time.Hour, 3*time.Hour, 9*time.Hour)
	r.past("default", "long", berth.Failed, time.Second, time.Second, time.Second, time.Second)
	r.past("default", "long", berth.Canceled, time.Second, time.Second, time.Second, time.Second)
	r.past("other", "long", berth.Succeeded, time.Second, time.Second, time.Second, time.Second, time.Second)
	r.past("default", "short", berth.Succeeded, 4*time.Minute, 5*time.Minute)
	r.past("other", "short", berth.Succeeded, 90*time.Hour, 90*time.Hour, 90*time.Hour, 90*time.Hour, 90*time.Hour)
	long, short := r.named("default", "long"), r.named("default", "short")
	stop := r.lead(leastFirst)
	r.awaitState(short, berth.Scheduled)
	if state := r.state(long); state != berth.Queued {
		t.Errorf("the long job is %s", state)
	}
	shorter := r.named("default", "short")
	stop()

	// The next leader knows the same; the order is not the order of submission.
	r.lead(leastFirst)
	r.done(short)
	r.awaitState(shorter, berth.Scheduled)
	if state := r.state(long); state != berth.Queued {
		t.Errorf("the long job is %s", state)
	}
	r.done(shorter)
	r.done(long)
	r.sound()
}

// By fair share history counts for nothing.
func TestInFairOrderWhoCameFirstStartsFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 4, 0)
	r.past("default", "long", berth.Succeeded, 5*time.Hour)
	r.past("default", "short", berth.Succeeded, 5*time.Minute)
	long, short := r.named("default", "long"), r.named("default", "short")
	r.lead(nil)
	r.done(long)
	r.awaitState(short, berth.Scheduled)
}
