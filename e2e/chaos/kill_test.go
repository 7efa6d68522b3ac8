package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth"
	"berth/internal/lib/failpoint"
	"berth/spec"
)

// do runs one cell; lane is the label of the machines where its job runs. After a failure the
// caller must call undo, unless nil, to remove the cell's leftovers.
func (s *stack) do(c cell, lane string) (undo func() error, err error) {
	switch c.process {
	case string(failpoint.Agent):
		// The removal of the last cell's leftovers must not hit this cell's failpoint.
		if err := await("the lane is idle", func() error { return s.idle(lane) }); err != nil {
			return nil, err
		}
		suspects := s.agents[lane]
		if c.ofGang() {
			suspects = suspects[:1] // of the two that its ranks are on
		}
		return s.strike(c, lane, suspects)
	case string(failpoint.API), string(failpoint.Leader), string(failpoint.Worker):
		return s.strike(c, lane, s.plane[failpoint.Process(c.process)])
	case dockerdProcess:
		return nil, s.strikeEngine(c)
	}
	return nil, s.strikeAll(c)
}

// strike makes processes hit a failpoint, keeps the processes that did stopped for the downtime,
// and waits for the end of the job that hit the failpoint.
func (s *stack) strike(c cell, lane string, suspects []*program) (undo func() error, err error) {
	w, struck, err := s.provoke(c, lane, suspects)
	if err == nil {
		err = errors.Join(s.fell(c, w, struck), w.wait())
	}
	return func() error { return s.abandon(w, struck) }, err
}

// abandon undoes a slow cell: its processes come back, and a job that runs until
// the cell ends it is canceled. All other jobs must still end by themselves.
func (s *stack) abandon(w *work, struck []*program) error {
	w.rest()
	var faults []error
	for _, p := range struck {
		p.signal(syscall.SIGCONT)
		faults = append(faults, p.up())
	}
	if w.undo != nil {
		faults = append(faults, w.undo())
	}
	return errors.Join(faults...)
}

// provoke arms a failpoint in all processes that may hit it, since the choice among them is
// random, and drives jobs through until one does.
func (s *stack) provoke(c cell, lane string, suspects []*program) (w *work, struck []*program, err error) {
	// Two cells of one failpoint would disarm each other.
	turn, _ := s.turns.LoadOrStore(suspects[0].name+" "+c.point, &sync.Mutex{})
	turn.(*sync.Mutex).Lock()
	defer turn.(*sync.Mutex).Unlock()
	defer func() {
		for _, p := range suspects {
			if p.disarm(c.point) {
				struck = append(struck, p)
			}
		}
	}()
	w = s.workFor(c, lane)
	if err := w.prepare(); err != nil {
		return w, nil, err
	}
	for _, p := range suspects {
		if err := p.arm(c.point, c.action); err != nil {
			return w, nil, err
		}
	}
	for began := time.Now(); ; w = s.workFor(c, lane) {
		w.begin()
		err := awaitAtMost(hitLook, c.point+" is hit", func() error { return s.hitOrMissed(c, w, suspects) })
		if _, missed := errors.AsType[missed](err); missed {
			var hit bool
			if hit, err = waitOrHit(c, w, suspects); hit {
				return w, nil, nil
			}
		} else if err == nil {
			return w, nil, nil
		}
		if _, is := errors.AsType[overtaken](err); is && onlySlow(err) {
			err = nil // the next job may last
		}
		if err == nil && time.Since(began) > patience {
			err = slowness{fmt.Errorf("never: %s is hit by a job", c.point)}
		}
		if err != nil {
			return w, nil, err
		}
	}
}

// waitOrHit waits for the end of a job that has missed the failpoint, or until another job hits the failpoint: the
// processes that died of it may be all that could answer the wait.
func waitOrHit(c cell, w *work, suspects []*program) (hit bool, err error) {
	ended := make(chan error, 1)
	go func() { ended <- w.wait() }() // the caller waits for it too
	look := time.NewTicker(hitLook)
	defer look.Stop()
	for {
		select {
		case err := <-ended:
			return false, err
		case <-look.C:
			if slices.ContainsFunc(suspects, func(p *program) bool { return p.hit(c.point) }) {
				return true, nil
			}
		}
	}
}

// hitLook is the longest pause between looks for a hit, which cost little: the
// fewer processes die of one failpoint, the better.
const hitLook = 50 * time.Millisecond

// missed is that a job ended without having come by the failpoint, as when a
// poke that is to be struck was not needed.
type missed struct{ error }

// hitOrMissed returns nil once one of the processes has hit the cell's failpoint.
func (s *stack) hitOrMissed(c cell, w *work, suspects []*program) error {
	over := w.over()
	for _, p := range suspects {
		if p.hit(c.point) {
			return nil
		}
	}
	if over {
		return fatal{missed{errors.New("the job is over")}}
	}
	return errors.New("it is not")
}

// fell runs from the hit on until all processes are back.
func (s *stack) fell(c cell, w *work, struck []*program) error {
	for _, p := range struck {
		if c.action == "kill" {
			p.wait()
		} else {
			p.halt()
		}
	}
	if err := s.stayAway(c, w); err != nil {
		return err
	}
	for _, p := range struck {
		if c.action == "freeze" {
			p.signal(syscall.SIGCONT)
		} else if err := p.up(); err != nil {
			return err
		}
	}
	return nil
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
func (s *stack) stayAway(c cell, w *work) error {
	if c.process == string(failpoint.Agent) && c.down == beyond {
		<-w.submitted
		return await("the silent machine's work is given up", w.left)
	}
	time.Sleep(c.down)
	return nil
}

// work is a cell's job.
type work struct {
	job     berth.JobID
	attempt int          // in which the failpoint is hit
	ready   func() error // the condition for arming the failpoint; nil: none
	submit  func() error // and fill in job
	drive   func() error // a further action that makes a process hit the failpoint
	ended   func() error // waits for the job's end and checks it
	left    func() error // nil once it has left the machine where the failpoint is hit
	gone    func() error // nil once nothing of the job is left

	undo func() error // removes the leftovers of an abandoned cell; nil: none

	submitted chan struct{}
	driven    chan struct{}
	fault     error     // of submit or drive; read only after driven is closed
	asked     time.Time // whether it is over

	waiting sync.Once
	result  error // of wait
}

func (w *work) prepare() error {
	if w.ready == nil {
		return nil
	}
	return w.ready()
}

// begin submits and drives in the background: the submit itself may hit the failpoint.
func (w *work) begin() {
	w.submitted, w.driven, w.asked = make(chan struct{}), make(chan struct{}), time.Now()
	go func() {
		defer close(w.driven)
		w.fault = w.submit()
		close(w.submitted)
		if w.fault == nil {
			w.fault = w.drive()
		}
	}()
}

// rest returns once nothing is submitted or driven, if ever it was.
func (w *work) rest() {
	if w.driven != nil {
		<-w.driven
	}
}

// over reports whether the job can no longer hit any failpoint. It asks the database, which other
// cells need too, only now and then.
func (w *work) over() bool {
	select {
	case <-w.submitted:
	default:
		return false
	}
	if time.Since(w.asked) < 2*time.Second {
		return false
	}
	w.asked = time.Now()
	return w.job != "" && w.gone() == nil
}

// wait waits for the job's end, and checks it once for all callers.
func (w *work) wait() error {
	w.waiting.Do(func() {
		if w.rest(); w.fault != nil {
			w.result = w.fault
			return
		}
		w.result = w.ended()
	})
	return w.result
}

// workFor is the job that comes by the cell's failpoint.
func (s *stack) workFor(c cell, lane string) *work {
	attempts := tries{1, c.loses()}
	if c.process == string(failpoint.Agent) && c.down == beyond {
		attempts.least = attemptsBeyond(c.point)
	}
	steps := trainSteps
	if c.process != string(failpoint.Agent) {
		steps *= 2
	}
	w := &work{attempt: 1, drive: func() error { return nil }}
	jobSpec := s.training(lane, steps)
	switch {
	case c.ofGang():
		return s.together(c, lane, attempts)
	case c.ofArray():
		return s.sweep(lane)
	case c.ofClock():
		return s.clock(c, lane)
	case c.ofFire():
		return s.fireByHand(c)
	case c.ofNeed():
		return s.waiting(c, lane)
	case c.of == aNotice:
		return s.noticed(c, lane)
	case c.of == aBranch:
		return s.branching(c, lane)
	case c.ofList():
		return s.listed(lane)
	case c.ofLaunch():
		return s.launched(c)
	case c.ofScaler():
		return s.scaled()
	case c.ofSession():
		return s.entered(c, lane)
	case strings.Contains(c.point, ".cancel.") || strings.HasPrefix(c.point, "agent.stop."):
		jobSpec = s.spec(lane, "trap-term", "0")
		w.drive = func() error { return s.cancelRunning(c, w.job) }
		w.ended = func() error { return s.wantCanceled(w.job, attempts) }
		w.left = func() error { return s.givenUp(w.job, math.MaxInt) } // a canceled job begins no other attempt
		w.undo = func() error { return s.cancelAll(jobSpec.Name) }
	case strings.HasPrefix(c.point, "leader.lost."):
		attempts.least = attemptsBeyond(c.point)
		steps = 10 * trainSteps // the machine must be lost while the job runs
		jobSpec = s.training(lane, steps)
		w.drive = func() error { return s.loseMachine(w.job, lane) }
	case strings.HasPrefix(c.point, "api.register."):
		w.drive = func() error { return s.restartAgent(lane) }
	case strings.HasPrefix(c.point, "agent.restore."):
		jobSpec = s.training(lane, endless)
		w.drive = func() (err error) {
			w.attempt, err = s.moveAway(w.job)
			return err
		}
		w.left = func() error {
			w.rest() // w.attempt is known then
			return s.givenUp(w.job, w.attempt)
		}
		w.ended = func() error { return s.wantResumed(w.job, w.attempt, c) }
		w.undo = func() error { return s.cancelAll(jobSpec.Name) }
	case strings.HasPrefix(c.point, "worker.stop."):
		jobSpec = s.spec(lane, "trap-term", "3")
		jobSpec.Members = 2
		jobSpec.Retry = spec.RetryPolicy{MaxAttempts: 2, Backoff: spec.Backoff{Initial: spec.Duration(time.Hour), Max: spec.Duration(time.Hour)}}
		w.drive = func() error { return s.endOneRank(w.job) }
		w.ended = func() error { return s.wantGangStopped(w.job) }
		w.undo = func() error { return s.cancelAll(jobSpec.Name) }
	case slices.ContainsFunc(handing, func(prefix string) bool { return strings.HasPrefix(c.point, prefix) }):
		return s.handingOn(c, lane, attempts)
	case strings.HasPrefix(c.point, "worker.escalate."):
		jobSpec = s.spec(lane, "trap-term", "0")
		*jobSpec.StopGrace = spec.Duration(time.Second)
		w.drive = func() error { return s.cancelUnheard(w.job, lane) }
		w.ended = func() error { return s.wantEscalated(w.job, lane) }
		w.undo = func() error {
			s.agents[lane][0].signal(syscall.SIGCONT)
			return s.cancelAll(jobSpec.Name)
		}
	}
	if c.loses() {
		jobSpec.LostAfter = spec.Duration(lost)
	}
	w.submit = func() (err error) {
		w.job, err = s.submit(jobSpec)
		return err
	}
	w.gone = func() error { return s.forgotten(w.job) }
	if w.left == nil {
		w.left = func() error { return s.givenUp(w.job, w.attempt) }
	}
	if w.ended == nil {
		w.ended = func() error { return s.wantTrained(w.job, steps, attempts) }
	}
	return w
}

// attemptsBeyond is how many attempts a job takes at least whose agent died there
// and stayed away for too long: its end was on record, or not.
func attemptsBeyond(point string) int {
	switch {
	case strings.HasPrefix(point, "agent.stop."), // it is not begun again
		strings.HasPrefix(point, "agent.remove."), strings.HasPrefix(point, "agent.seal."),
		slices.Contains([]string{"agent.exit.before", "agent.report.after"}, point),
		slices.ContainsFunc(uploads, func(prefix string) bool { return strings.HasPrefix(point, prefix) }):
		return 1
	}
	return 2
}

// uploads are the failpoints that an agent hits independently of its reports: on a busy machine
// the container has ended, and its end is on record, before the first piece of its log or its
// first checkpoint is stored.
var uploads = []string{"agent.file.", "agent.manifest.", "agent.checkpoint.", "agent.log.", "agent.output."}

// cancelRunning cancels a job once it runs, from the side that the cell is
// about.
func (s *stack) cancelRunning(c cell, id berth.JobID) error {
	if err := s.started(id, 0); err != nil {
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

func (s *stack) wantCanceled(id berth.JobID, want tries) error {
	job, err := s.becomes(id, berth.Canceled)
	if is, err := want.poisoned(job); is {
		return err
	}
	if err != nil {
		return err
	}
	return want.check(job)
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
	err = await("the lost machine's work is given up", func() error { return s.givenUp(id, job.Attempt) })
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
