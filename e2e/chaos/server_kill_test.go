package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"berth"
	"berth/e2e/faultproxy"
	"berth/spec"
)

// strikeEngine kills the Docker engine of the machine that has its own. It
// keeps containers alive, so nothing is lost but by a power cut.
func (s *stack) strikeEngine(c cell) error {
	ctx := context.Background()
	agent, engine := s.agents[enginePlace][0], s.engine
	if c.point == beforeCreate {
		// Stopped, the agent creates nothing before the engine is gone.
		if err := agent.arm("agent.create.before", "freeze"); err != nil {
			return err
		}
		defer agent.signal(syscall.SIGCONT)
		defer agent.disarm("agent.create.before")
	}
	const steps = 5 * trainSteps
	jobSpec := s.training(enginePlace, steps)
	attempts := once
	if c.loses() {
		jobSpec.LostAfter, attempts = spec.Duration(lost), tries{2, true}
	}
	job, err := s.submit(jobSpec)
	if err != nil {
		return err
	}
	var container string
	switch c.point {
	case beforeCreate:
		err = await("the container is about to be created", func() error {
			if !agent.hit("agent.create.before") || !agent.stopped() {
				return errors.New("it is not")
			}
			return nil
		})
	default:
		// An engine that dies in the middle of a start may never start that
		// container again, which costs the attempt. That is another story.
		err = await("the container is started", func() error {
			now, err := s.api.Job(ctx, job)
			container = berth.ContainerName(job, 0, now.Attempt)
			return errors.Join(err, engine.wantStarted(container))
		})
	}
	if err != nil {
		return err
	}
	if c.point == powerCut {
		if err := errors.Join(agent.end(syscall.SIGKILL), engine.daemon.KillMachine(ctx)); err != nil {
			return err
		}
	} else if err := engine.daemon.KillDaemon(ctx); err != nil {
		return err
	}
	agent.signal(syscall.SIGCONT)
	time.Sleep(c.down)
	if err := engine.daemon.Restart(ctx); err != nil {
		return slowness{err} // Docker's doing, not Berth's
	}
	outlived := c.point == beforeCreate || engine.runs(container)
	if c.point == powerCut {
		agent.env = append(agent.env, "BERTH_HOST_BOOT="+berth.NewSecret())
		if err := agent.up(); err != nil {
			return err
		}
	}
	if !outlived {
		// Docker loses the output that a container prints while the engine is away, if the
		// container also ends in that time; everything else must be as usual.
		return s.wantEnded(job, attempts)
	}
	return s.wantTrained(job, steps, attempts)
}

// strikeAll breaks something that all jobs need, with jobs in all states.
func (s *stack) strikeAll(c cell) error {
	if c.point == submitReplyCut {
		return s.cutSubmit()
	}
	jobs, err := s.breakUnderWork(c)
	if err != nil {
		return err
	}
	for id, steps := range jobs {
		if err := s.wantTrained(id, steps, once); err != nil {
			return err
		}
	}
	return nil
}

// Steps of jobs whose machine stays untouched: of jobs that start and end meanwhile, and of jobs
// that run most of the time.
const (
	calmSteps = 2 * trainSteps
	longSteps = 8 * trainSteps
)

// breakUnderWork breaks and repairs the thing that the cell names, and returns the jobs that were
// under way, with their steps. One thing is broken at a time.
func (s *stack) breakUnderWork(c cell) (map[berth.JobID]int, error) {
	jobs := map[berth.JobID]int{}
	submit := func(steps int) (berth.JobID, error) {
		id, err := s.submit(s.training(calmPlace, steps))
		if err == nil {
			jobs[id] = steps
		}
		return id, err
	}
	long, err := submit(longSteps)
	if err != nil {
		return nil, err
	}
	if _, err := submit(calmSteps); err != nil {
		return nil, err
	}
	s.breaking.Lock()
	defer s.breaking.Unlock()
	err = await("a job runs", func() error {
		job, err := s.api.Job(context.Background(), long)
		switch {
		case err != nil || job.Status == berth.Running:
			return err
		case job.Status.Terminal(): // the break before has taken so long
			long, err = submit(longSteps)
		}
		return errors.Join(err, fmt.Errorf("job %s is %s", job.ID, job.Status))
	})
	if err != nil {
		return nil, err
	}
	for range 2 { // on their way to a machine
		if _, err := submit(calmSteps); err != nil {
			return nil, err
		}
	}
	heal, err := s.break_(c)
	if err != nil {
		return nil, err
	}
	time.Sleep(c.down)
	return jobs, heal()
}

// break_ breaks the thing that the cell names, and returns the function that repairs it.
func (s *stack) break_(c cell) (heal func() error, err error) {
	mend := func(p *faultproxy.Proxy) func() error { return func() error { p.Heal(); return nil } }
	switch {
	case c.process == postgresProcess:
		s.postgres.Kill()
		return func() error {
			if err := s.postgres.Restart(context.Background()); err != nil {
				return slowness{err} // PostgreSQL's doing, not Berth's
			}
			return nil
		}, nil
	case c.process == temporalProcess:
		return s.temporal.up, s.temporal.end(syscall.SIGKILL)
	case c.point == databaseCut:
		s.databaseProxy.Cut(faultproxy.ToClient)
		return mend(s.databaseProxy), nil
	case c.point == databaseSlow:
		s.databaseProxy.Delay(100 * time.Millisecond)
		return mend(s.databaseProxy), nil
	case c.point == temporalCut:
		s.temporalProxy.Cut(faultproxy.ToServer)
		return mend(s.temporalProxy), nil
	case c.point == frontDown:
		s.front.Drop()
		return mend(s.front), nil
	}
	return nil, fmt.Errorf("cell %s: nothing is known of it", c)
}

// cutSubmit loses the database's answer to a committed submit: the client gets an
// error, asks again under its key, and there is one job.
func (s *stack) cutSubmit() error {
	id, err := s.submitCut()
	if err != nil {
		return err
	}
	return s.wantTrained(id, trainSteps, once)
}

// submitCut returns the job of the submit under a key.
func (s *stack) submitCut() (berth.JobID, error) {
	s.breaking.Lock()
	defer s.breaking.Unlock()
	defer s.databaseProxy.Heal()
	var jobSpec spec.Job
	err := await("the reply to a submit is cut", func() error {
		jobSpec = s.training(calmPlace, trainSteps)
		cut := s.databaseProxy.CutReply([]byte(jobSpec.Name))
		first, _, err := s.api.Submit(context.Background(), jobSpec, "")
		if err == nil {
			return fatal{fmt.Errorf("the cut submit was answered with job %s", first.ID)}
		}
		select {
		case <-cut:
			return nil
		case <-time.After(otherwise):
			return err // of a submit that did not reach the database, which was broken a moment ago
		}
	})
	if err != nil {
		return "", err
	}
	var n int
	err = s.database.QueryRow(context.Background(), `SELECT count(*) FROM jobs WHERE name = $1`, jobSpec.Name).Scan(&n)
	if err != nil || n != 1 {
		return "", fmt.Errorf("the submit was applied %d times before its reply was cut, want once: %v", n, err)
	}
	// The same under a key: asked twice, applied once.
	jobSpec = s.training(calmPlace, trainSteps)
	s.databaseProxy.CutReply([]byte(jobSpec.Name))
	id, err := s.submit(jobSpec)
	if err != nil {
		return "", err
	}
	err = s.database.QueryRow(context.Background(), `SELECT count(*) FROM jobs WHERE name = $1`, jobSpec.Name).Scan(&n)
	if err != nil || n != 1 {
		return "", fmt.Errorf("the submit under a key made %d jobs, want one: %v", n, err)
	}
	return id, nil
}
