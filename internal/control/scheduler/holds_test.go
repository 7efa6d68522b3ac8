package scheduler_test

import (
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/internal/control/scheduler"
	"berth/placement"
	"berth/spec"
)

// slow lets jobs wait for hours before they preempt others.
func slow(o *scheduler.Options) {
	o.Policy = placement.Policy{Preempt: true, PreemptAfter: 5 * time.Hour, MinRuntime: 5 * time.Hour}
	o.ReconcileEvery = 50 * time.Millisecond
}

// held runs a job that fails, and then its debug job. The retry waits for an hour.
func (r *rig) held() (id, debug berth.JobID) {
	r.t.Helper()
	id = r.queued(func(j *spec.Job) {
		j.HoldOnFailure, j.Retry.MaxAttempts, j.Resources.GPUs = spec.Duration(time.Hour), 2, 1000
	})
	r.awaitState(id, berth.Scheduled)
	r.run(id)
	r.ends(id, failure.Exit{Cause: failure.CauseExited, Code: 3, StartedAt: time.Now().Add(-time.Minute), FinishedAt: time.Now()})
	r.exec(`UPDATE jobs SET eligible_at = now() + interval '1 hour' WHERE id = $1`, id)
	debug = berth.JobID(value[string](r, `SELECT debug::text FROM holds WHERE job = $1`, id))
	if _, err := r.db.Jobs.Load(r.t.Context(), debug); err != nil {
		r.t.Fatal(err)
	}
	r.awaitState(debug, berth.Scheduled)
	r.run(debug)
	return id, debug
}

// TestARetryStopsTheHoldOfItsFirstAttempt checks that a hold on the only machine does not keep the retry waiting, although
// jobs may not preempt others for hours yet.
func TestARetryStopsTheHoldOfItsFirstAttempt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 8, 1)
	r.lead(slow)
	id, debug := r.held()
	r.exec(`UPDATE jobs SET eligible_at = now() WHERE id = $1`, id)
	r.hint()
	r.awaitState(debug, berth.Canceling)
	if why := value[string](r, `SELECT reason ->> 'message' FROM jobs WHERE id = $1`, debug); !strings.Contains(why, string(id)) {
		t.Errorf("the debug job ended because of %q", why)
	}
	if n := value[int](r, `SELECT count(*) FROM allocations WHERE job = $1 AND orders ? 'stop'`, debug); n != 1 {
		t.Error("its machine has no order to stop it")
	}
	r.await("its workflow is poked", func() bool { return r.poke.of(debug) > 0 })
	r.ends(debug, failure.Exit{Cause: failure.CauseOrdered, Code: 137, StartedAt: time.Now(), FinishedAt: time.Now()})
	r.awaitState(id, berth.Scheduled)
	if state := r.state(debug); state != berth.Canceled {
		t.Errorf("the debug job is %s", state)
	}
	r.sound()
}

func TestTheQuotaOfARetryEndsTheHold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 8, 2)
	r.lead(slow)
	id, debug := r.held()
	r.exec(`UPDATE tenants SET max_running = 1 WHERE id = 'default'`)
	r.exec(`UPDATE jobs SET eligible_at = now() WHERE id = $1`, id)
	r.db.Hub().Publish(db.TopicQueue, db.KeyTenants)
	r.awaitState(debug, berth.Canceling)
	if why := value[string](r, `SELECT reason ->> 'message' FROM jobs WHERE id = $1`, debug); !strings.Contains(why, "quota") {
		t.Errorf("the debug job ended because of %q", why)
	}
	r.ends(debug, failure.Exit{Cause: failure.CauseOrdered, Code: 137, StartedAt: time.Now(), FinishedAt: time.Now()})
	r.awaitState(id, berth.Scheduled)
}

// TestAQuotaEndsNoMoreHoldsThanAJobNeeds checks that the second hold of a tenant stays.
func TestAQuotaEndsNoMoreHoldsThanAJobNeeds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 8, 3)
	r.lead(slow)
	id, debug := r.held()
	_, other := r.held()
	r.exec(`UPDATE tenants SET max_running = 2 WHERE id = 'default'`)
	r.exec(`UPDATE jobs SET eligible_at = now() WHERE id = $1`, id)
	r.db.Hub().Publish(db.TopicQueue, db.KeyTenants)
	r.awaitState(debug, berth.Canceling)
	passes := r.passes()
	r.await("passes while the hold ends", func() bool { return r.passes() > passes+1 })
	r.ends(debug, failure.Exit{Cause: failure.CauseOrdered, Code: 137, StartedAt: time.Now(), FinishedAt: time.Now()})
	r.awaitState(id, berth.Scheduled)
	if state := r.state(other); state != berth.Running {
		t.Errorf("the other hold is %s", state)
	}
}

func TestADrainEndsTheHold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 8, 1)
	r.lead(slow)
	_, debug := r.held()
	passes := r.passes()
	r.await("passes of the reconciler", func() bool { return r.passes() > passes+1 })
	if state := r.state(debug); state != berth.Running {
		t.Fatalf("the debug job is %s before the drain", state)
	}
	r.exec(`UPDATE machines SET state = 'draining', drain_reason = 'new disk' WHERE id = 'm0'`)
	r.awaitState(debug, berth.Canceling)
}

// TestAHoldThatCannotEndEndsNoTerm checks that the leader goes on after the database has rejected the end of a hold. The
// sequence keeps the number of tries, since a rejected transaction does not undo it.
func TestAHoldThatCannotEndEndsNoTerm(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 8, 2)
	r.lead(slow)
	id, debug := r.held()
	term := value[int64](r, `SELECT max(epoch) FROM leases`)
	r.exec(`CREATE SEQUENCE tries MINVALUE 0 START 0`)
	r.exec(`SELECT nextval('tries')`)
	r.exec(`CREATE FUNCTION rejected() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM nextval('tries'); RAISE EXCEPTION 'rejected'; END $$`)
	r.exec(`CREATE TRIGGER rejected BEFORE UPDATE ON jobs FOR EACH ROW WHEN (NEW.debug AND NEW.state = 'canceling')
		EXECUTE FUNCTION rejected()`)
	r.exec(`UPDATE tenants SET max_running = 1 WHERE id = 'default'`)
	r.exec(`UPDATE jobs SET eligible_at = now() WHERE id = $1`, id)
	r.db.Hub().Publish(db.TopicQueue, db.KeyTenants)
	r.await("the leader tries to end the hold", func() bool { return value[int64](r, `SELECT last_value FROM tries`) > 0 })
	r.exec(`UPDATE tenants SET max_running = NULL WHERE id = 'default'`)
	r.db.Hub().Publish(db.TopicQueue, db.KeyTenants)
	r.awaitState(id, berth.Scheduled)
	if now := value[int64](r, `SELECT max(epoch) FROM leases`); now != term {
		t.Errorf("the term ended: epoch %d, then %d", term, now)
	}
	if state := r.state(debug); state != berth.Running {
		t.Errorf("the debug job is %s", state)
	}
}
