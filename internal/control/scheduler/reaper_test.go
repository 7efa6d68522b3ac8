package scheduler_test

import (
	"testing"
	"time"

	"berth"
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
