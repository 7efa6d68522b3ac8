package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth"
	"berth/internal/failpoint"
)

// do runs one cell; lane is where its job runs.
func (s *stack) do(c cell, lane string) error {
	switch c.process {
	case string(failpoint.Agent):
		// What the last cell left to remove must not come by this one's failpoint.
		if err := await("the lane is idle", func() error { return s.idle(lane) }); err != nil {
			return err
		}
		if c.down == beyond {
			s.away <- struct{}{}
			defer func() { <-s.away }()
		}
		return s.strike(c, lane, s.agents[lane])
	case string(failpoint.API), string(failpoint.Leader), string(failpoint.Worker):
		return s.strike(c, lane, s.plane[failpoint.Process(c.process)])
	case dockerdProcess:
		return s.strikeEngine(c)
	}
	return s.strikeAll(c)
}

// strike arms a failpoint in all processes that may come by, since nobody can
// tell which one will, and drives a job through. Those that were hit stay away
// for the downtime.
func (s *stack) strike(c cell, lane string, suspects []*program) (err error) {
	// Two cells of one failpoint would disarm each other.
	turn, _ := s.turns.LoadOrStore(suspects[0].name+" "+c.point, &sync.Mutex{})
	turn.(*sync.Mutex).Lock()
	defer turn.(*sync.Mutex).Unlock()
	for _, p := range suspects {
		if err := p.arm(c.point, c.action); err != nil {
			return err
		}
	}
	defer func() {
		for _, p := range suspects {
			p.disarm(c.point)
		}
	}()
	// The submit itself may be what is hit.
	w := s.workFor(c, lane)
	driven, submitted := make(chan error, 1), make(chan struct{})
	go func() {
		err := w.submit()
		close(submitted)
		if err == nil {
			err = w.drive()
		}
		driven <- err
	}()
	err = await(c.point+" is hit", func() error {
		for _, p := range suspects {
			if p.hit(c.point) {
				return nil
			}
		}
		return errors.New("it is not")
	})
	if err != nil {
		return errors.Join(err, <-driven)
	}
	var struck []*program
	for _, p := range suspects {
		if p.disarm(c.point) {
			struck = append(struck, p)
		}
	}
	for _, p := range struck {
		if c.action == "kill" {
			<-p.exited
		}
	}
	if err := s.stayAway(c, w, submitted); err != nil {
		return errors.Join(err, <-driven)
	}
	for _, p := range struck {
		if c.action == "freeze" {
			p.signal(syscall.SIGCONT)
		} else if err := p.up(); err != nil {
			return errors.Join(err, <-driven)
		}
	}
	if err := <-driven; err != nil {
		return err
	}
	return w.ended()
}

// idle returns nil once the machines of a lane have nothing left of any job.
func (s *stack) idle(lane string) error {
	var n int
	err := s.database.QueryRow(context.Background(), `
		SELECT count(*)
		FROM allocations a
		JOIN machines m ON m.id = a.machine_id
		WHERE m.labels ->> 'lane' = $1 AND a.forgotten_at IS NULL`, lane).Scan(&n)
	if err == nil && n > 0 {
		err = fmt.Errorf("%d allocations are not over", n)
	}
	return err
}

// stayAway is the downtime. A machine must be silent until its work was given
// up, which on a busy machine may take longer than lost_after.
func (s *stack) stayAway(c cell, w *work, submitted <-chan struct{}) error {
	if c.process == string(failpoint.Agent) && c.down == beyond {
		<-submitted
		return await("the silent machine's work is given up", func() error { return s.givenUp(w.job) })
	}
	time.Sleep(c.down)
	return nil
}

// work is a cell's job.
type work struct {
	job    berth.JobID
	submit func() error // and fill in job
	drive  func() error // what else must happen for the failpoint to be hit
	ended  func() error // waits for the job's end and checks it
}

// workFor is the job that comes by the cell's failpoint.
func (s *stack) workFor(c cell, lane string) *work {
	attempts := []int{1}
	if c.process == string(failpoint.Agent) && c.down == beyond {
		attempts = attemptsBeyond(c.point)
	}
	steps := trainSteps
	if c.process != string(failpoint.Agent) {
		steps *= 2
	}
	w := &work{drive: func() error { return nil }}
	spec := s.training(lane, steps)
	switch {
	case strings.Contains(c.point, ".cancel.") || strings.HasPrefix(c.point, "agent.stop."):
		spec = s.spec(lane, "trap-term", "0")
		w.drive = func() error { return s.cancelRunning(c, w.job) }
		w.ended = func() error { return s.wantCanceled(w.job) }
	case strings.HasPrefix(c.point, "leader.lost."):
		attempts = []int{2}
		w.drive = func() error { return s.loseMachine(w.job, lane) }
	case strings.HasPrefix(c.point, "api.register."):
		w.drive = func() error { return s.restartAgent(lane) }
	}
	w.submit = func() (err error) {
		w.job, err = s.submit(spec)
		return err
	}
	if w.ended == nil {
		w.ended = func() error { return s.wantTrained(w.job, steps, attempts...) }
	}
	return w
}

// attemptsBeyond is how many attempts a job takes whose agent died there and
// stayed away for too long: its end was on record, or not.
func attemptsBeyond(point string) []int {
	switch point {
	case "agent.remove.before", "agent.remove.after", "agent.seal.after":
		return []int{1}
	case "agent.exit.before", "agent.seal.before", "agent.report.after":
		return []int{1, 2}
	}
	return []int{2}
}

// cancelRunning cancels a job once it runs, from the side that the cell is
// about.
func (s *stack) cancelRunning(c cell, id berth.JobID) error {
	if _, err := s.becomes(id, berth.Running); err != nil {
		return err
	}
	if !strings.HasPrefix(c.point, "worker.cancel.") {
		return s.cancel(id)
	}
	return await("Temporal takes the cancel", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return s.workflows.CancelWorkflow(ctx, berth.JobWorkflowID(id), "")
	})
}

func (s *stack) wantCanceled(id berth.JobID) error {
	job, err := s.becomes(id, berth.Canceled)
	if err == nil && len(job.Attempts) != 1 {
		err = fmt.Errorf("job %s took %d attempts, want one", id, len(job.Attempts))
	}
	return err
}

// loseMachine kills the agent that runs the job and brings it back when the job
// has left it.
func (s *stack) loseMachine(id berth.JobID, lane string) error {
	job, err := s.becomes(id, berth.Running)
	if err != nil {
		return err
	}
	p := s.agentOf(lane, job.Attempts[len(job.Attempts)-1].Machines[0])
	if err := p.end(syscall.SIGKILL); err != nil {
		return err
	}
	err = await("the lost machine's work is given up", func() error { return s.givenUp(id) })
	return errors.Join(err, p.up())
}

func (s *stack) restartAgent(lane string) error {
	p := s.agents[lane][0]
	p.restart.Lock()
	defer p.restart.Unlock()
	return errors.Join(p.end(syscall.SIGKILL), p.up())
}

func (s *stack) agentOf(lane string, m berth.MachineID) *program {
	for _, p := range s.agents[lane] {
		if p.name == string(m) {
			return p
		}
	}
	panic("lane " + lane + " has no machine " + string(m))
}
