package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/activities/node/runtimetest/prog"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// Trainings of cells: short, but long enough to log, save and report.
const (
	trainSteps = 6
	trainSave  = 2
	trainEvery = 120 * time.Millisecond
)

var jobNumber atomic.Int64

// patient is the lost_after of jobs whose machine stays, or is back in time: on
// however slow a machine the test runs, its agent is not silent for that long.
const patient = 10 * time.Minute

// spec is a job for a lane.
func (s *stack) spec(lane string, command ...string) spec.Job {
	grace, cpus, memory := spec.Duration(5*time.Second), spec.MilliCPU(100), spec.MiB(32)
	image := s.shared.image
	return spec.Job{
		Name: fmt.Sprintf("chaos-%d-%s", jobNumber.Add(1), berth.NewSecret()[:6]), Image: image, Command: command, StopGrace: &grace,
		Resources:  spec.Resources{CPUs: &cpus, Memory: &memory},
		Placement:  spec.Placement{Constraint: "machine.labels.lane == " + strconv.Quote(lane)},
		Checkpoint: &spec.CheckpointPolicy{Path: "/checkpoint"},
		LostAfter:  spec.Duration(patient),
	}
}

func (s *stack) training(lane string, steps int) spec.Job {
	return s.spec(lane, "train", "/checkpoint", strconv.Itoa(steps), trainEvery.String(), strconv.Itoa(trainSave))
}

// submit submits a job as a careful client does: with a key, again and again until the response
// names the job.
func (s *stack) submit(jobSpec spec.Job) (id berth.JobID, err error) {
	err = await("the submit is answered", func() error {
		job, _, err := s.api.Submit(context.Background(), jobSpec, jobSpec.Name)
		id = job.ID
		return lasting(err)
	})
	return id, err
}

// lasting marks refusals that waiting does not cure.
func lasting(err error) error {
	switch berth.CodeOf(err) {
	case berth.CodeInvalid, berth.CodeForbidden, berth.CodeUnauthorized, berth.CodeConflict:
		return fatal{err}
	}
	return err
}

// cancelAll cancels the jobs of this name that have not ended, and does not wait
// for their end.
func (s *stack) cancelAll(name string) error {
	return await("jobs "+name+" are canceled", func() error {
		rows, err := s.database.Query(context.Background(), `
			SELECT id::text
			FROM jobs
			WHERE name = $1 AND cancel_requested_at IS NULL AND state NOT IN ('succeeded', 'failed', 'canceled')`, name)
		if err != nil {
			return err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[berth.JobID])
		for _, id := range ids {
			_, fault := s.api.Cancel(context.Background(), id)
			err = errors.Join(err, fault)
		}
		return err
	})
}

func (s *stack) cancel(id berth.JobID) error {
	return await("the cancel is answered", func() error {
		_, err := s.api.Cancel(context.Background(), id)
		return lasting(err)
	})
}

// becomes waits until the job is in this state.
func (s *stack) becomes(id berth.JobID, want berth.State) (job wire.Job, err error) {
	err = await(fmt.Sprintf("job %s is %s", id, want), func() (err error) {
		job, err = s.api.Job(context.Background(), id)
		switch {
		case err != nil:
			return err
		case job.Status == want:
			return nil
		case want == berth.Running && job.Status == berth.Succeeded:
			return fatal{slowness{overtaken{fmt.Errorf("it has succeeded: %s", describe(job))}}}
		case job.Status.Terminal():
			return fatal{fmt.Errorf("it ended as %s: %+v", job.Status, job.Reason)}
		}
		return fmt.Errorf("it is %s in attempt %d: %+v", job.Status, job.Attempt, job.Reason)
	})
	return job, err
}

// tries is how many attempts a job takes.
type tries struct {
	least int  // and just as many, unless it loses machines
	loses bool // machines that are silent for long: on a busy one, more than were killed
}

// once is of jobs that nothing takes along.
var once = tries{least: 1}

// check compares a job's attempts with them: each one more was ended by its
// machine.
func (w tries) check(job wire.Job) error {
	lost := 0
	for _, a := range job.Attempts {
		if a.Outcome != nil && slices.Contains([]berth.ReasonCode{berth.ReasonMachineLost, berth.ReasonMachineError, berth.ReasonUnclaimed, berth.ReasonPoison}, a.Outcome.Code) {
			lost++
		}
	}
	n := len(job.Attempts)
	if n >= w.least && (n == w.least || w.loses && lost >= n-w.least) {
		return nil
	}
	err := fmt.Errorf("job %s took %d attempts, %d of them ended by their machine, want %+v: %s", job.ID, n, lost, w, describe(job))
	if n < w.least {
		return slowness{overtaken{err}} // it was done before it was struck
	}
	return err
}

// poisoned reports whether a job was failed because one machine after another died under it, as
// far as the record shows, and returns check's verdict on the job.
func (w tries) poisoned(job wire.Job) (is bool, err error) {
	if !w.loses || job.Status != berth.Failed || job.Reason == nil || job.Reason.Code != berth.ReasonPoison {
		return false, nil
	}
	if err := (tries{least: 2, loses: true}).check(job); err != nil {
		return true, fmt.Errorf("given up too early: %v", err) // however slow the machine is
	}
	return true, nil
}

// wantEnded waits for a job's success in so many attempts.
func (s *stack) wantEnded(id berth.JobID, want tries) error {
	job, err := s.becomes(id, berth.Succeeded)
	if is, err := want.poisoned(job); is {
		return err
	}
	switch {
	case err != nil:
		return err
	case want.check(job) != nil:
		return want.check(job)
	case job.Failures != 0:
		return fmt.Errorf("job %s: its user pays for %d failures: %s", id, job.Failures, describe(job))
	}
	return nil
}

// describe describes a job's attempts.
func describe(job wire.Job) string {
	var b strings.Builder
	for _, a := range job.Attempts {
		fmt.Fprintf(&b, "attempt %d on %s, placed %s", a.Number, a.Machines, a.PlacedAt.Format(time.StampMilli))
		if a.Outcome != nil {
			fmt.Fprintf(&b, ", %s: %s", a.Outcome.Code, a.Outcome.Message)
		}
		b.WriteString("; ")
	}
	return b.String()
}

// wantTrained is wantEnded, and checks that the training lost, repeated or
// invented no step, and no line of its log.
func (s *stack) wantTrained(id berth.JobID, steps int, want tries) error {
	if err := s.wantEnded(id, want); err != nil {
		return err
	}
	job, err := s.becomes(id, berth.Succeeded)
	if is, err := want.poisoned(job); is {
		return err
	}
	if err != nil {
		return err
	}
	var lines []string
	err = await("the log of job "+string(id)+" is read", func() error {
		lines = nil
		return s.api.Logs(context.Background(), id, client.LogsQuery{}, func(l wire.LogLine) error {
			lines = append(lines, l.Text)
			return nil
		})
	})
	if err != nil {
		return err
	}
	log := trainLog(steps)
	short := len(lines) < len(log) && slices.Equal(lines, log[:len(lines)])
	if job.Attempt > 1 { // it starts at a checkpoint
		lines, log = lines[max(0, len(lines)-1):], log[len(log)-1:]
		short = len(lines) == 0 || lines[0] != log[0] && slices.Contains(trainLog(steps), lines[0])
	}
	if short {
		warned, err := s.lastLogsGivenUp(id)
		if err != nil || warned {
			return err
		}
	}
	if !slices.Equal(lines, log) {
		return fmt.Errorf("job %s in attempt %d: its log is %q, want %q", id, job.Attempt, lines, log)
	}
	return nil
}

// lastLogsGivenUp reports whether the job's events say that its machine fell
// silent with its end on record and the rest of its log not yet stored.
func (s *stack) lastLogsGivenUp(id berth.JobID) (warned bool, err error) {
	err = await("the events of job "+string(id)+" are read", func() error {
		return s.database.QueryRow(context.Background(), `
			SELECT EXISTS (
				SELECT 1
				FROM job_events
				WHERE job = $1 AND kind = $2 AND detail LIKE '%stopped responding before its last logs%')`, id, wire.EventWarning).Scan(&warned)
	})
	return warned, err
}

// trainLog is the output of a training without interruption.
func trainLog(steps int) []string {
	var want []string
	for i := 1; i <= steps; i++ {
		want = append(want, fmt.Sprintf("step %d", i))
		if i%trainSave == 0 {
			want = append(want, fmt.Sprintf("saved step %d", i))
		}
	}
	return append(want, prog.TrainResult(steps))
}

// givenUp returns nil once an attempt of the job was given up, or no longer needs its machine.
func (s *stack) givenUp(id berth.JobID, attempt int) error {
	job, err := s.api.Job(context.Background(), id)
	if err == nil && job.Attempt <= attempt && !job.Status.Terminal() && job.Status != berth.Retrying {
		err = fmt.Errorf("job %s is %s in attempt %d", id, job.Status, job.Attempt)
	}
	return err
}

// forgotten returns nil once a job has ended and no machine has anything left of
// it, or of its steps.
func (s *stack) forgotten(id berth.JobID) error {
	var state berth.State
	var left int
	err := s.database.QueryRow(context.Background(), `
		SELECT state, (
			SELECT count(*)
			FROM allocations
			WHERE job IN (SELECT j.id UNION ALL SELECT c.id FROM jobs c WHERE c.parent = j.id) AND forgotten_at IS NULL)
		FROM jobs j
		WHERE id = $1`, id).Scan(&state, &left)
	if err == nil && (!state.Terminal() || left > 0) {
		err = fmt.Errorf("job %s is %s with %d allocations", id, state, left)
	}
	return err
}
