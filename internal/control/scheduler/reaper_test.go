package scheduler_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/scheduler"
)

// A job whose notice of a drain cannot be stored keeps no job on a machine beyond the deadline.
func TestOverdueJobsAreMovedAlsoWhereANoticeFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 8, 0)
	r.lead(nil)
	id := r.queued(nil)
	r.awaitState(id, berth.Scheduled)
	r.run(id)
	r.exec(`
		CREATE FUNCTION refuse_notice() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF NEW.kind = 'draining' THEN
				RAISE 'no notice';
			END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER refuse_notice BEFORE INSERT ON job_events FOR EACH ROW EXECUTE FUNCTION refuse_notice()`)
	deadline := time.Now().Add(-time.Minute)
	if err := r.db.Machines.Drain(t.Context(), "m0", "new disk", &deadline, "operator:test"); err != nil {
		t.Fatal(err)
	}
	r.await("the order to stop", func() bool {
		return value[bool](r, `SELECT orders ? 'stop' FROM allocations WHERE job = $1`, id)
	})
}

// endHold ends a hold of verdicts. A test repeats it while it waits for a verdict: on a slow machine, counts of silent
// machines may be late, and the leader then holds verdicts again.
const endHold = `UPDATE leases SET expires_at = now() WHERE name = 'freeze'`

// passed waits until the reaper has made a whole pass, verdicts included. The machine must be silent: each pass marks
// it as suspect again.
func (r *rig) passed(machine string) {
	r.t.Helper()
	marks := func() int { return strings.Count(r.log.String(), `"machine is silent" machine_id=`+machine) }
	for range 2 {
		n := marks()
		r.exec(`UPDATE machines SET state = 'ready' WHERE id = $1`, machine)
		r.await("another pass begins", func() bool { return marks() > n })
	}
}

// When the network of many silent machines is back, the machines call one after the other. Once fewer than a third are
// silent, the others are not declared lost at once, although their silence is long enough.
func TestF28NoMachineIsLostInTheGraceAfterAFreeze(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, m := range []string{"m0", "m1", "m2", "m3"} {
		r.machine(m, 8, 0)
	}
	r.exec(`UPDATE machine_leases SET seen_at = now() + interval '1 hour'`) // heard as long as the test runs
	r.exec(`UPDATE machine_leases SET seen_at = now() - interval '1 hour' WHERE machine_id <> 'm0'`)
	r.lead(func(o *scheduler.Options) {
		o.Silence, o.Grace = db.Silence{Suspect: time.Minute, Lost: 2 * time.Minute, Share: 1}, time.Hour
	})
	logged := func(line string) func() bool { return func() bool { return strings.Contains(r.log.String(), line) } }
	r.await("verdicts are frozen", logged("verdicts frozen"))
	r.exec(`UPDATE machine_leases SET seen_at = now() + interval '1 hour' WHERE machine_id IN ('m1', 'm2')`)
	r.await("verdicts are no longer frozen", logged("verdicts no longer frozen"))
	r.exec(`UPDATE machine_leases SET seen_at = now() - interval '70 s' WHERE machine_id = 'm0'`)
	r.passed("m0")
	state := func() string { return value[string](r, `SELECT state FROM machines WHERE id = 'm3'`) }
	if got := state(); got != "suspect" {
		t.Errorf("in the grace the silent machine is %s", got)
	}
	if logged("verdicts resumed")() {
		t.Error("in the grace the log has that verdicts resumed")
	}
	r.resumes(state)
}

// resumes ends the hold of verdicts, and waits until the silent machine with this state is lost and the log has that
// verdicts resumed. It ends the hold repeatedly: after a stall of the test's machine the leader holds verdicts again.
func (r *rig) resumes(state func() string) {
	r.t.Helper()
	r.await("the machine is lost after the grace", func() bool {
		r.exec(endHold)
		return state() == "lost"
	})
	r.await("the log has that verdicts resumed", func() bool {
		r.exec(endHold)
		return strings.Contains(r.log.String(), "verdicts resumed")
	})
}

// After a time without a leader, a freeze may have ended that no leader has noticed: the machines that are still silent
// may be about to call. The first leader holds verdicts for a grace, and passes them after that.
func TestF28NoMachineIsLostInTheGraceAfterATimeWithoutALeader(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, m := range []string{"m0", "m1", "m2", "m3"} {
		r.machine(m, 8, 0)
	}
	r.exec(`UPDATE machine_leases SET seen_at = now() + interval '1 hour'`) // heard as long as the test runs
	r.exec(`UPDATE machine_leases SET seen_at = now() - interval '1 hour' WHERE machine_id = 'm3'`)
	r.exec(`INSERT INTO leases (name, holder, expires_at)
		VALUES ('count', 'the last leader', now() - interval '1 hour')`)
	r.lead(func(o *scheduler.Options) {
		o.Silence, o.Grace = db.Silence{Suspect: time.Minute, Lost: 2 * time.Minute, Share: 1}, time.Hour
	})
	state := func() string { return value[string](r, `SELECT state FROM machines WHERE id = 'm3'`) }
	r.await("the silent machine is suspect or lost", func() bool { return state() != "ready" })
	r.await("the machines are counted", func() bool {
		return state() == "lost" ||
			value[bool](r, `SELECT expires_at > now() - interval '1 minute' FROM leases WHERE name = 'count'`)
	})
	r.exec(`UPDATE machine_leases SET seen_at = now() - interval '70 s' WHERE machine_id = 'm0'`)
	r.passed("m0")
	if got := state(); got != "suspect" {
		t.Fatalf("in the grace the silent machine is %s", got)
	}
	r.resumes(state)
}

// During a freeze, stuck work ends on machines that call and stays on silent ones.
func TestF28StuckWorkStaysOnSilentMachinesDuringAFreeze(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 1, 0)
	r.machine("m1", 1, 0)
	stop := r.lead(nil)
	for range 2 { // one fits on each machine
		r.awaitState(r.queued(nil), berth.Scheduled)
	}
	stop()
	r.machine("m2", 1, 0)
	r.machine("m3", 1, 0)
	r.exec(`UPDATE allocations SET state = 'active', phase = 'pulling', claimed_at = now() - interval '1 day'`)
	r.exec(`UPDATE machine_leases SET seen_at = now() + interval '1 hour'`) // heard as long as the test runs
	r.exec(`UPDATE machine_leases SET seen_at = now() - interval '1 hour' WHERE machine_id <> 'm0'`)
	r.lead(func(o *scheduler.Options) {
		o.Silence = db.Silence{Suspect: time.Minute, Lost: 2 * time.Minute}
		o.ReconcileEvery, o.Ages.Disobeyed = 20*time.Millisecond, time.Millisecond
	})
	member := func(machine string) string {
		return value[string](r, `SELECT state || orders::text FROM allocations WHERE machine_id = $1`, machine)
	}
	r.await("the stuck member of m0 is given up", func() bool { return strings.HasPrefix(member("m0"), "orphaned") })
	if got := member("m1"); got != "active{}" {
		t.Errorf("the stuck member of a silent machine is %s", got)
	}
}

// A pass of the reaper waits for a lock of a job, or is slow. The silent machines are counted in time all the same:
// without a recent count, no verdict would follow.
func TestSilentMachinesAreCountedWhileAVerdictWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 8, 0)
	stop := r.lead(nil)
	id := r.queued(nil)
	r.awaitState(id, berth.Scheduled)
	r.run(id)
	stop()
	r.exec(`UPDATE machine_leases SET seen_at = now() - interval '1 hour'`)
	tx, err := r.db.Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM jobs WHERE id = $1 FOR UPDATE`, id); err != nil {
		t.Fatal(err)
	}
	r.lead(func(o *scheduler.Options) {
		o.Silence, o.Grace = db.Silence{Suspect: time.Minute, Lost: 2 * time.Minute}, time.Second
	})
	r.await("the verdict waits for the job", func() bool {
		return value[bool](r, `
			SELECT EXISTS (
				SELECT 1
				FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%FROM jobs%'
				  AND query LIKE '%forgotten_at IS NULL AND state IN (''reserved'', ''active'', ''exited'')%')`)
	})
	r.exec(`UPDATE leases SET expires_at = now() - interval '5 s' WHERE name = 'count'`)
	r.await("the silent machines are counted", func() bool {
		return value[bool](r, `SELECT expires_at > now() - interval '3 s' FROM leases WHERE name = 'count'`)
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.await("the member is orphaned", func() bool {
		return value[bool](r, `SELECT state = 'orphaned' FROM allocations WHERE job = $1`, id)
	})
}
