package dispatch

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.temporal.io/api/serviceerror"

	"berth"
	"berth/db"
	"berth/internal/lib/failpoint"
	"berth/internal/lib/overload"
)

// maxPokes bounds the pokes remembered while Temporal is away. The reconciler
// repeats the ones beyond.
const maxPokes = 100_000

// pokes is a queue of jobs with a signal to send, each once, in the order of the first
// request.
type pokes struct {
	mu     sync.Mutex
	change *sync.Cond
	queue  []berth.JobID
	wanted map[berth.JobID]struct{} // jobs in queue
	failed map[berth.JobID]int      // consecutive failures of pokes that wait for their repeat
	paused bool                     // Temporal does not answer
	closed bool
}

// init makes the zero value usable.
func (p *pokes) init() {
	p.change = sync.NewCond(&p.mu)
	p.wanted = map[berth.JobID]struct{}{}
	p.failed = map[berth.JobID]int{}
}

// add adds a poke, unless the job has one already. It returns false if the queue is full.
func (p *pokes) add(id berth.JobID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.wanted[id]; ok {
		return true
	}
	if len(p.queue) >= maxPokes {
		return false
	}
	p.wanted[id] = struct{}{}
	p.queue = append(p.queue, id)
	p.change.Signal()
	return true
}

// next waits for a job to poke; false when closed.
func (p *pokes) next() (berth.JobID, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.closed && (p.paused || len(p.queue) == 0) {
		p.change.Wait()
	}
	if p.closed {
		return "", false
	}
	id := p.queue[0]
	p.queue = p.queue[1:]
	delete(p.wanted, id) // before the signal: a request from now on is a new one
	return id, true
}

// pause holds back all pokes while Temporal does not answer.
func (p *pokes) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = true
}

// resume lets held pokes go.
func (p *pokes) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused {
		p.paused = false
		p.change.Broadcast()
	}
}

// close makes each present and later next return false.
func (p *pokes) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.change.Broadcast()
}

// later adds a job again after a pause that grows with its failures. A poke requested
// meanwhile is sent at once, and replaces this one.
func (p *pokes) later(id berth.JobID, failed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if failed {
		p.failed[id]++
	}
	time.AfterFunc(pause(max(1, p.failed[id])), func() { p.add(id) })
}

// failures is how often in a row a poke of the job has failed.
func (p *pokes) failures(id berth.JobID) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed[id]
}

// succeed ends the row of a job's failures.
func (p *pokes) succeed(id berth.JobID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.failed, id)
}

// Poke notifies the workflows of jobs to read their rows. It returns at once and
// reports no result.
func (d *Dispatcher) Poke(ids ...berth.JobID) {
	for _, id := range ids {
		if !d.handOver(id) && !d.pokes.add(id) {
			d.log.Warn("workflow notification dropped, will be reconciled", "job_id", id, "waiting", maxPokes)
		}
	}
}

// hearPokes pokes workflows for writes of this process by code without access to
// the dispatcher: parents of jobs that ended, elements of parents.
func (d *Dispatcher) hearPokes(ctx context.Context) {
	sub := d.db.Hub().SubscribeFrom(db.TopicPoke, "*", db.Here)
	defer sub.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sub.C:
			d.Poke(jobs(sub.Keys())...)
		}
	}
}

// sendPokes sends pokes until the queue is closed. Several goroutines run it.
func (d *Dispatcher) sendPokes(ctx context.Context) {
	for {
		id, ok := d.pokes.next()
		if !ok {
			return
		}
		if err := d.signal(ctx, id); err != nil && ctx.Err() == nil {
			d.log.Debug("poke failed", "job_id", id, "err", err)
		}
	}
}

// signal pokes one workflow. A job without an open workflow needs no poke. If
// Temporal does not answer, the poke is kept for later.
func (d *Dispatcher) signal(ctx context.Context, id berth.JobID) error {
	// The points lie outside of the limited call to Temporal: an injected error loses the poke, and
	// neither the limit nor the health of Temporal may count it.
	if err := failpoint.Hit("dispatch.poke.before"); err != nil {
		return err // and the poke is lost
	}
	repeat := d.pokes.failures(id) > 0
	if repeat && !d.repeats.Repeat() {
		d.pokes.later(id, false)
		return nil
	}
	err := d.Call(ctx, overload.End, func(ctx context.Context) error {
		return d.temporal.SignalWorkflow(ctx, berth.JobWorkflowID(id), "", berth.SignalPoke, nil)
	})
	switch {
	case ctx.Err() != nil:
		return err
	case errors.Is(err, overload.ErrShed):
		d.pokes.later(id, false)
	case !answered(err):
		if !d.health.isUp() {
			d.pokes.pause()
		}
		d.pokes.later(id, true)
	default:
		d.pokes.succeed(id)
		if repeat {
			d.repeats.Refund()
		}
		d.repeats.Succeeded()
	}
	if _, gone := errors.AsType[*serviceerror.NotFound](err); gone {
		return nil
	}
	if err != nil {
		return err
	}
	return failpoint.Hit("dispatch.poke.after")
}

// waiter is a first step that waits in this process for news of its job.
type waiter struct{ sub *db.Subscription }

// Expect registers a wait for news of a job: pokes of this process, which are
// handed over instead of signalled, and hints of others. done ends it and
// reports whether news came since the last receive.
func (d *Dispatcher) Expect(id berth.JobID) (news <-chan struct{}, done func() (poked bool)) {
	w := &waiter{d.db.Hub().SubscribeFrom(db.TopicJob, string(id), db.Elsewhere)}
	d.mu.Lock()
	d.waiters[id] = w // of two, the older is a step that was given up
	d.mu.Unlock()
	return w.sub.C, func() bool {
		d.mu.Lock()
		if d.waiters[id] == w {
			delete(d.waiters, id)
		}
		d.mu.Unlock()
		w.sub.Close()
		select {
		case <-w.sub.C:
			return true
		default:
			return false
		}
	}
}

// handOver gives a poke to a step of this process that waits for the job, and returns false
// without such a step.
func (d *Dispatcher) handOver(id berth.JobID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	w, ok := d.waiters[id]
	if !ok {
		return false
	}
	select {
	case w.sub.C <- struct{}{}:
	default: // it has not yet read the previous poke
	}
	return true
}
