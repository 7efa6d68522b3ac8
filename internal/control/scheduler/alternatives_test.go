package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"berth"
	"berth/spec"
)

// picky asks for GPUs of a model and, after an hour, for GPUs of another one.
func picky(gpus int, model, other string) func(*spec.Job) {
	return func(j *spec.Job) {
		j.Resources.GPUs, j.Resources.GPUType = spec.MilliGPU(1000*gpus), spec.StringList{model}
		j.Retry.MaxAttempts, j.Retry.Backoff = 9, spec.Backoff{Factor: 1}
		j.Alternatives = []spec.Alternative{{After: spec.Duration(time.Hour), GPUType: &spec.StringList{other}}}
	}
}

// modelled adds a machine with GPUs of a model.
func (r *rig) modelled(id, model string, gpus int) {
	r.t.Helper()
	r.machine(id, 64, gpus)
	r.exec(`UPDATE gpu_devices SET model = $2 WHERE machine_id = $1`, id, model)
}

// waited lets a job have waited for so long.
func (r *rig) waited(id berth.JobID, d time.Duration) {
	r.t.Helper()
	r.exec(`UPDATE jobs SET alternatives_from = alternatives_from - $2::interval WHERE id = $1`, id, d)
	r.hint()
}

// looked waits until the leader has planned with all rows as they are now: it places a job that comes last.
func (r *rig) looked() {
	r.t.Helper()
	probe := r.queued(nil)
	r.awaitState(probe, berth.Scheduled)
}

// onHardware checks the state of a job, its alternative in force, and that its allocations have its GPUs.
func (r *rig) onHardware(id berth.JobID, alternative int, model string) {
	r.t.Helper()
	got := value[string](r, `
		SELECT format('%s %s %s', j.state, j.alternative, (
			SELECT string_agg(DISTINCT g.model, ' ')
			FROM allocations a
			JOIN device_allocations d ON d.alloc_id = a.id
			JOIN gpu_devices g ON g.machine_id = d.machine_id AND g.idx = d.idx
			WHERE a.job = j.id AND a.attempt = j.attempt AND a.state IN ('reserved', 'active')))
		FROM jobs j WHERE j.id = $1`, id)
	if want := fmt.Sprintf("scheduled %d %s", alternative, model); got != want {
		r.t.Errorf("the job is %q, want %q", got, want)
	}
}

func TestAJobTakesItsAlternativeAfterItsWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.modelled("h0", "H100", 2)
	r.modelled("a0", "A100", 2)
	r.lead(nil)
	first := r.queued(picky(2, "H100", "A100"))
	r.awaitState(first, berth.Scheduled)
	r.onHardware(first, 0, "H100")
	id := r.queued(picky(2, "H100", "A100"))
	r.looked()
	if s := r.state(id); s != berth.Queued {
		t.Errorf("the job is %s before its wait has passed", s)
	}
	r.waited(id, time.Hour)
	r.awaitState(id, berth.Scheduled)
	r.onHardware(id, 1, "A100")
	// The next wait is one of its own, but the hardware that the job had is open from the first.
	r.run(id)
	r.fails(id, "a0", 1)()
	r.awaitState(id, berth.Scheduled)
	r.onHardware(id, 1, "A100")
	r.sound()
}

func TestAGangTakesItsAlternativeAsAWhole(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.modelled("h0", "H100", 1)
	r.modelled("a0", "A100", 1)
	r.modelled("a1", "A100", 1)
	r.lead(nil)
	id := r.queued(func(j *spec.Job) { picky(1, "H100", "A100")(j); j.Members = 2 })
	r.looked()
	r.waited(id, time.Hour)
	r.awaitState(id, berth.Scheduled)
	r.onHardware(id, 1, "A100")
	// After a loss the gang starts again where the other member was.
	r.run(id)
	r.fails(id, "a1", 137)()
	r.awaitState(id, berth.Scheduled)
	r.onHardware(id, 1, "A100")
	r.sound()
}

// Jobs wait, open their alternatives, run and fail while leaders come and go. Each start has the hardware
// that the row names.
func TestLeadersAgreeOnTheHardware(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.modelled("h0", "H100", 4)
	r.modelled("a0", "A100", 4)
	var jobs []berth.JobID
	for range 4 {
		jobs = append(jobs, r.queued(picky(2, "H100", "A100")))
	}
	for round := range 3 {
		stop := r.lead(nil)
		other := r.lead(nil)
		for _, id := range jobs {
			r.waited(id, time.Hour)
		}
		for _, id := range jobs {
			r.awaitState(id, berth.Scheduled)
		}
		stop()
		other()
		taken := value[string](r, `SELECT string_agg(DISTINCT format('%s %s', j.alternative, g.model), ', ' ORDER BY format('%s %s', j.alternative, g.model))
			FROM jobs j
			JOIN allocations a ON a.job = j.id AND a.attempt = j.attempt AND a.state = 'reserved'
			JOIN device_allocations d ON d.alloc_id = a.id
			JOIN gpu_devices g ON g.machine_id = d.machine_id AND g.idx = d.idx`)
		if taken != "0 H100, 1 A100" {
			t.Errorf("in round %d the jobs are on %q", round, taken)
		}
		r.sound()
		for _, id := range jobs {
			r.run(id)
			machine := value[string](r, `SELECT a.machine_id FROM allocations a JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt WHERE j.id = $1`, id)
			r.fails(id, machine, 1)()
		}
	}
}
