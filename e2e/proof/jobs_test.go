package proof_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// job is a small job of the test program. No silence of its machine loses it within a test: the agent of a crowded
// machine may take minutes to come back.
func (s *stack) job(name string, command ...string) spec.Job {
	grace, cpus, memory := spec.Duration(5*time.Second), spec.MilliCPU(300), spec.MiB(32)
	return spec.Job{
		Name: name, Image: s.image, Command: command, StopGrace: &grace, LostAfter: spec.Duration(patience),
		Resources: spec.Resources{CPUs: &cpus, Memory: &memory},
	}
}

// loseAfter changes the silence after which a job is lost: short for as long as a loss is meant, and else longer than
// any silence of a crowded machine.
func (s *stack) loseAfter(silence time.Duration, jobs ...berth.JobID) {
	s.t.Helper()
	for _, id := range jobs {
		s.query(`UPDATE jobs SET lost_after_ms = $2 WHERE id = $1`, id, silence.Milliseconds())
	}
}

// shift is a job that prints numbered lines for a while, then goes on until its
// container is sent a SIGTERM, prints the rest, and exits 0. It never ends
// before the test is ready, however busy the machine is.
func (s *stack) shift(name string) spec.Job {
	return s.job(name, "do", fmt.Sprintf("lines %d 150ms", shiftLines), "trap-term 0", "lines 3 0s")
}

const shiftLines = 60

// engineTries is how often a job is submitted that a slow container engine does not start: 30 s after the first call
// that fails, the machine gives an attempt up.
const engineTries = 5

var errSilent = errors.New("its log is empty")

func shiftLog() []string {
	var want []string
	for i := range shiftLines {
		want = append(want, fmt.Sprintf("line %d", i+1))
	}
	return append(want, "ready", "term", "line 1", "line 2", "line 3")
}

// startShifts submits shifts and returns when all run in their first attempt and have printed. A shift that an engine
// did not start in time runs in a later attempt, and another one takes its place.
func (s *stack) startShifts(n int) []berth.JobID {
	s.t.Helper()
	ids := make([]berth.JobID, n)
	for i := range ids {
		ids[i] = s.submit(s.shift(fmt.Sprintf("shift-%d", i)))
	}
	for i := range ids {
		for again := range engineTries {
			if job := s.becomes(ids[i], berth.Running); job.Attempt == 1 {
				break
			} else if again == engineTries-1 {
				s.t.Fatalf("shift %d does not run in its first attempt, time and again: %+v", i, job.Attempts)
			}
			s.dismiss(ids[i])
			ids[i] = s.submit(s.shift(fmt.Sprintf("shift-%d", i)))
		}
	}
	for _, id := range ids {
		until(s.t, "job "+string(id)+" prints", func(ctx context.Context) error {
			printed := errSilent
			err := s.api.Logs(ctx, id, client.LogsQuery{Tail: 1}, func(wire.LogLine) error { printed = nil; return nil })
			return errors.Join(err, printed)
		})
	}
	if running := s.engine.running(); len(running) != n {
		s.t.Fatalf("%d containers run, want %d", len(running), n)
	}
	return ids
}

// endShifts lets shifts come to their end by themselves. A job whose log stands
// at its last line but one waits for the signal; one that is still printing
// would die of it.
func (s *stack) endShifts(ids []berth.JobID) {
	s.t.Helper()
	for _, id := range ids {
		s.engine.awaitLine(id, "ready")
		s.engine.signal(id, "SIGTERM")
	}
}

// wantShiftsDone waits for the end of all shifts and checks the properties that an outage must
// not change: one attempt, one container, every line once.
func (s *stack) wantShiftsDone(ids []berth.JobID) {
	s.t.Helper()
	for _, id := range ids {
		job := s.becomes(id, berth.Succeeded)
		if len(job.Attempts) != 1 || job.Attempt != 1 || job.Losses != 0 {
			s.t.Errorf("job %s took %d attempts, %d of them lost: %+v", id, len(job.Attempts), job.Losses, job.Attempts)
		}
		if diff := cmp.Diff(shiftLog(), s.log(id)); diff != "" {
			s.t.Errorf("log of job %s (-want +got):\n%s", id, diff)
		}
	}
	s.engine.wantEmpty()
	s.engine.wantOneEach(ids)
	s.wantNothingReserved()
}

func (s *stack) submit(jobSpec spec.Job) berth.JobID {
	s.t.Helper()
	key := berth.NewSecret() // makes it safe to repeat the call
	var job wire.Job
	s.accepts("submit "+jobSpec.Name, func(ctx context.Context) (err error) {
		job, _, err = s.api.Submit(ctx, jobSpec, key)
		return err
	})
	return job.ID
}

// accepts repeats a call while the server answers that it is unavailable, or not at all.
func (s *stack) accepts(what string, call func(context.Context) error) {
	s.t.Helper()
	until(s.t, what, func(ctx context.Context) error {
		err := call(ctx)
		if err != nil && berth.CodeOf(err) != berth.CodeUnavailable && !client.Unreachable(err) {
			s.t.Fatalf("%s: %v", what, err)
		}
		return err
	})
}

// becomes waits until a job has this status and returns it. Ending in another
// is a failure at once.
func (s *stack) becomes(id berth.JobID, want berth.State) wire.Job {
	s.t.Helper()
	var job wire.Job
	until(s.t, fmt.Sprintf("job %s is %s", id, want), func(ctx context.Context) (err error) {
		job, err = s.api.Job(ctx, id)
		if err == nil && job.Status != want {
			err = fmt.Errorf("it is %s: %+v", job.Status, job.Reason)
		}
		if job.Status.Terminal() && job.Status != want {
			s.t.Fatalf("job %s ended as %s, want %s: %+v", id, job.Status, want, job.Reason)
		}
		return err
	})
	return job
}

// log is all that a job's last attempt has printed.
func (s *stack) log(id berth.JobID) []string {
	s.t.Helper()
	var got []string
	s.accepts("read the log of job "+string(id), func(ctx context.Context) error {
		got = nil
		return s.api.Logs(ctx, id, client.LogsQuery{}, func(l wire.LogLine) error {
			got = append(got, l.Text)
			return nil
		})
	})
	return got
}

// wantNothingReserved waits until every machine is wholly free.
func (s *stack) wantNothingReserved() {
	s.t.Helper()
	until(s.t, "every reservation is given back", func(ctx context.Context) error {
		page, err := s.api.Machines(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(page.Items, func(m wire.Machine) bool { return m.Used != (berth.Capacity{}) })
		if i >= 0 {
			return fmt.Errorf("machine %s still uses %+v", page.Items[i].ID, page.Items[i].Used)
		}
		return nil
	})
}

// history is a job's whole history.
func (s *stack) history(id berth.JobID) []wire.Event {
	s.t.Helper()
	var all []wire.Event
	s.accepts("read the history of job "+string(id), func(ctx context.Context) error {
		page, err := s.api.Events(ctx, id, 0)
		all = page.Items
		return err
	})
	return all
}
