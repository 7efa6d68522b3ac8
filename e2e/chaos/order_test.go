package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"berth"
	"berth/wire"
)

// endless is for trainings that are stopped.
const endless = 1 << 20

// running waits until the job runs in this attempt or a later one.
func (s *stack) running(id berth.JobID, attempt int) (job wire.Job, err error) {
	err = await(fmt.Sprintf("job %s runs in attempt %d", id, attempt), func() (err error) {
		job, err = s.api.Job(context.Background(), id)
		switch {
		case err != nil:
			return err
		case job.Status.Terminal():
			return fatal{fmt.Errorf("it ended as %s: %+v", job.Status, job.Reason)}
		case job.Status != berth.Running || job.Attempt < attempt:
			return fmt.Errorf("it is %s in attempt %d: %+v", job.Status, job.Attempt, job.Reason)
		}
		return nil
	})
	return job, err
}

// started waits until the container of a rank has started in the attempt that
// the job is in. That may be a later one than the first: a machine that came back
// a moment ago may fall silent once more before it has started anything.
func (s *stack) started(id berth.JobID, rank int) error {
	return await(fmt.Sprintf("a container of rank %d of job %s is started", rank, id), func() error {
		job, err := s.api.Job(context.Background(), id)
		switch {
		case err != nil:
			return err
		case job.Status.Terminal():
			return fatal{fmt.Errorf("it ended as %s: %+v", job.Status, job.Reason)}
		case job.Status != berth.Running:
			return fmt.Errorf("it is %s in attempt %d: %+v", job.Status, job.Attempt, job.Reason)
		}
		return s.shared.wantStarted(berth.ContainerName(id, rank, job.Attempt))
	})
}

// moveAway drains the machine under a job once there is a checkpoint, so that it
// goes on elsewhere, and opens the machine again. It returns the attempt that the
// job goes on in: the third or a later one if a machine was lost before.
func (s *stack) moveAway(id berth.JobID) (attempt int, err error) {
	ctx := context.Background()
	err = await("job "+string(id)+" has a checkpoint", func() error {
		job, err := s.api.Job(ctx, id)
		if err == nil && len(job.Checkpoints) == 0 {
			err = fmt.Errorf("it is %s and has none", job.Status)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	job, err := s.running(id, 1)
	if err != nil {
		return 0, err
	}
	machine, moved := job.Attempts[len(job.Attempts)-1].Machines[0], job.Attempt
	err = await("machine "+string(machine)+" is drained", func() error {
		now := time.Now()
		_, err := s.api.Drain(ctx, machine, wire.DrainRequest{Reason: "chaos", Deadline: &now})
		return lasting(err)
	})
	if err != nil {
		return 0, err
	}
	err = await("job "+string(id)+" has left machine "+string(machine), func() error {
		job, err := s.api.Job(ctx, id)
		if err == nil && job.Attempt <= moved {
			err = fmt.Errorf("it is %s in attempt %d", job.Status, job.Attempt)
		}
		return err
	})
	return moved + 1, errors.Join(err, await("machine "+string(machine)+" is open again", func() error {
		_, err := s.api.Undrain(ctx, machine)
		return lasting(err)
	}))
}

// wantResumed waits until a job that was moved to another machine in this attempt,
// and lost that one perhaps, works on from a checkpoint, and ends it.
func (s *stack) wantResumed(id berth.JobID, attempt int, c cell) error {
	want := tries{2, c.loses()}
	if c.loses() {
		want.least++
		attempt++
	}
	job, err := s.running(id, attempt)
	if is, err := want.poisoned(job); is {
		return err
	}
	if err != nil {
		return err
	}
	if last := job.Attempts[len(job.Attempts)-1]; last.ResumeFrom == nil || *last.ResumeFrom == 0 {
		return fmt.Errorf("job %s began attempt %d anew: %s", id, last.Number, describe(job))
	}
	if err := s.cancel(id); err != nil {
		return err
	}
	return s.wantCanceled(id, want)
}

// endOneRank ends rank 0 of a gang from within its container, as it were, with
// an exit code that is its user's fault. A signal that comes before the program
// listens is nothing to the first process of a container.
func (s *stack) endOneRank(id berth.JobID) error {
	if err := errors.Join(s.started(id, 0), s.started(id, 1)); err != nil {
		return err
	}
	return s.endContainer(berth.ContainerName(id, 0, 1))
}

// wantGangStopped waits until the attempt of a gang is over, which it is not
// before its last rank was stopped.
func (s *stack) wantGangStopped(id berth.JobID) error {
	job, err := s.becomes(id, berth.Retrying)
	if err != nil {
		return err
	}
	if job.Failures != 1 || len(job.Attempts) != 1 {
		return fmt.Errorf("job %s has %d failures, want one: %s", id, job.Failures, describe(job))
	}
	if err := s.cancel(id); err != nil {
		return err
	}
	return s.wantCanceled(id, once)
}

// cancelUnheard cancels a job whose machine does not hear of it.
func (s *stack) cancelUnheard(id berth.JobID, lane string) error {
	if err := s.started(id, 0); err != nil {
		return err
	}
	s.agents[lane][0].signal(syscall.SIGSTOP)
	return s.cancel(id)
}

// wantEscalated lets the machine hear again, and wants the job killed by order:
// the workflow's, or the leader's if the workflow is late.
func (s *stack) wantEscalated(id berth.JobID, lane string) error {
	var ordered int
	err := await("the kill of job "+string(id)+" is ordered", func() error {
		err := s.database.QueryRow(context.Background(), `
			SELECT count(*)
			FROM job_events
			WHERE job = $1 AND kind = $2 AND detail LIKE 'kill%'`, id, wire.EventOrdered).Scan(&ordered)
		if err == nil && ordered == 0 {
			err = fmt.Errorf("it is not")
		}
		return err
	})
	s.agents[lane][0].signal(syscall.SIGCONT)
	if err != nil {
		return err
	}
	if ordered != 1 {
		return fmt.Errorf("the kill of job %s was ordered %d times, want once", id, ordered)
	}
	return s.wantCanceled(id, once)
}

// runs reports whether the engine runs a container now.
func (e *engine) runs(name string) bool {
	c, err := e.api.ContainerInspect(context.Background(), name)
	return err == nil && c.State.Running
}
