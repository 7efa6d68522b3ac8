package scheduler_test

import (
	"testing"

	"berth"
)

// The leader judges gangs by itself: no report follows the last one.
func TestTheLeaderStopsHungGangs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m0", 8, 1)
	r.machine("m1", 8, 1)
	r.lead(nil)
	id := r.queued(gang(2))
	r.awaitState(id, berth.Scheduled)
	r.run(id)
	// Agents repeat that a member is quiet; here the word holds for the whole test.
	r.exec(`UPDATE allocations a SET quiet_at = now(), quiet_said_at = now() + interval '1 hour', quiet_boot = m.agent_boot, quiet_seq = 1 FROM machines m WHERE m.id = a.machine_id AND a.job = $1`, id)
	r.await("the order to stop", func() bool {
		return value[int](r, `SELECT count(*)::int FROM allocations WHERE job = $1 AND orders ? 'stalled'`, id) == 2
	})
}
