package scheduler_test

import (
	"slices"
	"testing"
	"time"

	"berth"
	"berth/failure"
	"berth/spec"
)

// gang is a gang of so many members with a GPU each.
func gang(members int) func(*spec.Job) {
	return func(j *spec.Job) {
		j.Members = members
		j.Resources.GPUs = 1000
		j.Retry.MaxAttempts, j.Retry.Backoff = 9, spec.Backoff{Factor: 1}
	}
}

// fails ends a member of a running gang with an error and has the others ordered to
// stop. The returned function ends those and settles the attempt.
func (r *rig) fails(id berth.JobID, machine string, code int) (rest func()) {
	r.t.Helper()
	attempt := value[int](r, `SELECT attempt FROM jobs WHERE id = $1`, id)
	ends := func(where string, x failure.Exit, args ...any) {
		x.StartedAt, x.FinishedAt = time.Now(), time.Now()
		r.exec(`UPDATE allocations SET state = 'exited', phase = 'sealed', exit = $2, exited_at = now(), sealed_at = now(), freed_by = 'agent'
			WHERE job = $1 AND state = 'active' `+where, append([]any{id, x}, args...)...)
	}
	ends(`AND machine_id = $3`, failure.Exit{Cause: failure.CauseExited, Code: code}, machine)
	if stopped, err := r.db.Attempts.Stop(r.t.Context(), id, attempt); err != nil || !stopped {
		r.t.Fatal(stopped, err)
	}
	return func() {
		r.t.Helper()
		ends(``, failure.Exit{Cause: failure.CauseOrdered, Code: 143})
		result, err := r.db.Attempts.Settle(r.t.Context(), id, attempt)
		if err != nil || result.Next != berth.Retrying {
			r.t.Fatalf("settled as %+v, %v", result, err)
		}
	}
}

func (r *rig) machinesOf(id berth.JobID) []string {
	r.t.Helper()
	return value[[]string](r, `SELECT array_agg(a.machine_id ORDER BY a.machine_id) FROM allocations a JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt WHERE a.job = $1`, id)
}

// Only the lost member of a gang is placed again: waiting jobs do not get its other
// machines meanwhile.
func TestOnlyTheHoleOfAGangIsPlacedAnew(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, m := range []string{"m0", "m1", "m2", "m3"} {
		r.machine(m, 8, 1)
	}
	r.exec(`UPDATE machines SET state = 'draining' WHERE id = 'm3'`)
	stop := r.lead(nil)
	id := r.queued(gang(3))
	r.awaitState(id, berth.Scheduled)
	r.run(id)
	rest := r.fails(id, "m1", 137) // somebody killed it: elsewhere, this time
	thieves := []berth.JobID{r.queued(wants(900, 1)), r.queued(wants(900, 1))}
	r.await("the hole is anybody's", func() bool {
		return r.state(thieves[0]) == berth.Scheduled || r.state(thieves[1]) == berth.Scheduled
	})
	stop()
	r.lead(nil) // the next leader keeps it as well
	rest()
	other := r.queued(wants(100, 0)) // needs no GPU: the leader has looked
	r.awaitState(other, berth.Scheduled)
	if n := value[int](r, `SELECT count(*) FROM jobs WHERE id = ANY($1::uuid[]) AND state = 'scheduled'`, thieves); n != 1 {
		t.Errorf("%d jobs took the room of the gang", n)
	}
	for _, thief := range thieves { // the one that still waits would take the next machine
		if r.state(thief) == berth.Queued {
			if _, err := r.db.Jobs.RequestCancel(t.Context(), "", thief, "user:test", nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.exec(`UPDATE machines SET state = 'ready' WHERE id = 'm3'`)
	r.hint()
	r.awaitState(id, berth.Scheduled)
	if got := r.machinesOf(id); !slices.Equal(got, []string{"m0", "m2", "m3"}) {
		t.Errorf("the gang is on %v", got)
	}
	if n := value[int](r, `SELECT count(*) FROM nominations`); n != 0 {
		t.Errorf("%d nominations outlive the repair", n)
	}
	r.sound()
}

// A gang starts if it can with the capacity that another one keeps for its repair.
func TestAGangYieldsItsRoomToAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, m := range []string{"m0", "m1", "m2"} {
		r.machine(m, 8, 1)
	}
	r.lead(nil)
	id := r.queued(gang(3))
	r.awaitState(id, berth.Scheduled)
	r.run(id)
	rest := r.fails(id, "m1", 137)
	thief := r.queued(wants(900, 1)) // takes the hole, and stays
	r.awaitState(thief, berth.Scheduled)
	rest()
	single := r.queued(wants(900, 1)) // is no gang, and waits its minute
	other := r.queued(wants(100, 0))
	r.awaitState(other, berth.Scheduled)
	if n := value[int](r, `SELECT count(*) FROM nominations WHERE gpu_idx < 0`); n != 2 || r.state(single) != berth.Queued {
		t.Errorf("%d machines are kept, a job is %s", n, r.state(single))
	}
	if _, err := r.db.Jobs.RequestCancel(t.Context(), "", single, "user:test", nil); err != nil {
		t.Fatal(err)
	}
	second := r.queued(gang(2))
	r.awaitState(second, berth.Scheduled)
	if got := r.machinesOf(second); !slices.Equal(got, []string{"m0", "m2"}) {
		t.Errorf("the other gang is on %v", got)
	}
	if state := r.state(id); state != berth.Retrying {
		t.Errorf("the first gang is %s", state)
	}
	r.sound()
}

// Two gangs that each keep a part of the capacity that both need do not wait for each
// other.
func TestTwoGangsThatAreRepairedDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, m := range []string{"m0", "m1", "m2", "m3"} {
		r.machine(m, 8, 1)
	}
	r.lead(nil)
	first, second := r.queued(gang(2)), r.queued(gang(2))
	for _, id := range []berth.JobID{first, second} {
		r.awaitState(id, berth.Scheduled)
		r.run(id)
	}
	a, b := r.machinesOf(first), r.machinesOf(second)
	// Both lose a machine: two of four are left, and each gang keeps one of them.
	rests := []func(){r.fails(first, a[0], 137), r.fails(second, b[0], 137)}
	r.exec(`UPDATE machines SET state = 'draining' WHERE id = ANY($1)`, []string{a[0], b[0]})
	for _, rest := range rests {
		rest()
	}
	r.hint()
	r.await("one of them begins", func() bool {
		return (r.state(first) == berth.Scheduled) != (r.state(second) == berth.Scheduled)
	})
	if n := value[int](r, `SELECT count(*) FROM nominations`); n != 0 {
		t.Errorf("%d nominations are left", n)
	}
	r.sound()
}

// Members of a gang are placed where they can reach each other.
func TestAGangStaysOnOneNetwork(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for m, network := range map[string]string{"m0": "engine/a", "m1": "engine/b", "m2": "host", "m3": "host"} {
		r.machine(m, 8, 1)
		r.exec(`UPDATE machines SET network = $2 WHERE id = $1`, m, network)
	}
	r.lead(nil)
	wide, apart := r.queued(gang(3)), r.queued(gang(2))
	r.awaitState(apart, berth.Scheduled)
	if got := r.machinesOf(apart); !slices.Equal(got, []string{"m2", "m3"}) {
		t.Errorf("the gang is on %v", got)
	}
	single := r.queued(wants(100, 1))
	r.awaitState(single, berth.Scheduled)
	if state := r.state(wide); state != berth.Queued {
		t.Errorf("a gang that no network holds is %s", state)
	}
	r.sound()
}
