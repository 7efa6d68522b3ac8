package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"berth"
	"berth/e2e/faultproxy"
)

// strikeEngine kills the Docker engine of the machine that has its own. It
// keeps containers alive, so nothing is lost but by a power cut.
func (s *stack) strikeEngine(c cell) error {
	ctx := context.Background()
	agent, engine := s.agents[engineLane][0], s.engine
	if c.point == beforeCreate {
		if err := agent.arm("agent.create.before", "delay 1s"); err != nil {
			return err
		}
		defer agent.disarm("agent.create.before")
	}
	const steps = 5 * trainSteps
	spec := s.training(engineLane, steps)
	attempts := []int{1}
	if c.loses() {
		spec.LostAfter, attempts = berth.Duration(lost), []int{2, 3, 4}
	}
	job, err := s.submit(spec)
	if err != nil {
		return err
	}
	switch c.point {
	case beforeCreate:
		err = await("the container is about to be created", func() error {
			if !agent.hit("agent.create.before") {
				return errors.New("it is not")
			}
			return nil
		})
	default:
		// An engine that dies in the middle of a start may never start that
		// container again, which costs the attempt. That is another story.
		err = await("the container is started", func() error { return engine.wantStarted(berth.ContainerName(job, 0, 1)) })
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
	time.Sleep(c.down)
	if err := engine.daemon.Restart(ctx); err != nil {
		return err
	}
	outlived := c.point == beforeCreate || engine.runs(berth.ContainerName(job, 0, 1))
	if c.point == powerCut {
		agent.env = append(agent.env, "BERTH_HOST_BOOT="+berth.NewSecret())
		if err := agent.up(); err != nil {
			return err
		}
	}
	if !outlived {
		// What a container prints into an engine's absence, and does not live to see
		// the end of, Docker itself loses; all else must be as ever.
		return s.wantEnded(job, attempts...)
	}
	return s.wantTrained(job, steps, attempts...)
}

// strikeAll does something to what everything needs, with jobs in all states.
func (s *stack) strikeAll(c cell) error {
	if c.point == submitReplyCut {
		return s.cutSubmit()
	}
	const steps = 2 * trainSteps
	var jobs []berth.JobID
	const n = 4
	for i := range n {
		id, err := s.submit(s.training(calmLane, steps))
		if err != nil {
			return err
		}
		jobs = append(jobs, id)
		if i == n/2 { // the later ones are on their way
			if _, err := s.becomes(jobs[0], berth.Running); err != nil {
				return err
			}
		}
	}
	heal, err := s.break_(c)
	if err != nil {
		return err
	}
	time.Sleep(c.down)
	if err := heal(); err != nil {
		return err
	}
	for _, id := range jobs {
		if err := s.wantTrained(id, steps, 1); err != nil {
			return err
		}
	}
	return nil
}

// break_ does what the cell says, and returns what undoes it.
func (s *stack) break_(c cell) (heal func() error, err error) {
	mend := func(p *faultproxy.Proxy) func() error { return func() error { p.Heal(); return nil } }
	switch {
	case c.process == postgresProcess:
		s.postgres.Kill()
		return func() error { return s.postgres.Restart(context.Background()) }, nil
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

// cutSubmit loses the database's answer to a committed submit: the client is
// told of an error, asks again under its key, and there is one job.
func (s *stack) cutSubmit() error {
	spec := s.training(calmLane, trainSteps)
	cut := s.databaseProxy.CutReply([]byte(spec.Name))
	defer s.databaseProxy.Heal()
	first, _, err := s.api.Submit(context.Background(), spec, "")
	if err == nil {
		return fmt.Errorf("the cut submit was answered with job %s", first.ID)
	}
	select {
	case <-cut:
	case <-time.After(patience):
		return errors.New("the reply was never cut")
	}
	var n int
	err = s.database.QueryRow(context.Background(), `SELECT count(*) FROM jobs WHERE name = $1`, spec.Name).Scan(&n)
	if err != nil || n != 1 {
		return fmt.Errorf("the submit was applied %d times before its reply was cut, want once: %v", n, err)
	}
	// The same under a key: asked twice, applied once.
	spec = s.training(calmLane, trainSteps)
	s.databaseProxy.CutReply([]byte(spec.Name))
	id, err := s.submit(spec)
	if err != nil {
		return err
	}
	err = s.database.QueryRow(context.Background(), `SELECT count(*) FROM jobs WHERE name = $1`, spec.Name).Scan(&n)
	if err != nil || n != 1 {
		return fmt.Errorf("the submit under a key made %d jobs, want one: %v", n, err)
	}
	return s.wantTrained(id, trainSteps, 1)
}
