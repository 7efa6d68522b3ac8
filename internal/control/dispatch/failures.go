package dispatch

import (
	"context"
	"math/rand/v2"
	"time"

	"berth"
	"berth/internal/lib/overload"
)

// failure is a job whose start, or poke, has failed.
type failure struct {
	times int
	next  time.Time // not before
}

// Pauses after a failed call: doubled each time and drawn at random from the upper
// half, so that calls that failed together are not repeated together.
const (
	firstPause  = time.Second
	longest     = time.Minute
	againEvery  = time.Second // looks for failed starts that are due
	slowMoments = 8           // times Temporal's latency is given to the process that stored a job
)

// pause is that after a number of failures in a row.
func pause(times int) time.Duration {
	d := min(firstPause<<min(times-1, 10), longest)
	return d/2 + rand.N(d/2)
}

// claim marks a job as being started; false if it is already, or its start has
// failed and is not due again.
func (d *Dispatcher) claim(id berth.JobID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.started[id]; ok {
		return false
	}
	if f := d.failed[id]; f != nil && time.Now().Before(f.next) {
		return false
	}
	d.started[id] = time.Time{}
	return true
}

// unclaim lets the sweep try a job again.
func (d *Dispatcher) unclaim(id berth.JobID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.started, id)
}

// succeed remembers that a job was started, so that the sweep leaves it alone
// while its first step is late.
func (d *Dispatcher) succeed(id berth.JobID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.started[id] = time.Now()
	delete(d.failed, id)
}

// fail remembers a failed start, and returns the pause until its next try.
func (d *Dispatcher) fail(id berth.JobID) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.started, id)
	f := d.failed[id]
	if f == nil {
		f = &failure{}
		d.failed[id] = f
	}
	f.times++
	in := pause(f.times)
	f.next = time.Now().Add(in)
	return in
}

// postpone lets a start that was not made be tried again in a moment.
func (d *Dispatcher) postpone(id berth.JobID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.started, id)
	f := d.failed[id]
	if f == nil {
		f = &failure{}
		d.failed[id] = f
	}
	f.next = time.Now().Add(pause(1))
}

// hasFailed reports whether the job's last start was made and has failed.
func (d *Dispatcher) hasFailed(id berth.JobID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.failed[id]
	return f != nil && f.times > 0
}

// isQueued reports whether the job waits in this process for its turn.
func (d *Dispatcher) isQueued(id berth.JobID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, ok := d.started[id]
	return ok && at.IsZero()
}

// forgive makes failed calls due again, since Temporal answers.
func (d *Dispatcher) forgive() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.failed {
		f.next = time.Time{}
	}
}

// repeatFailed queues failed starts that are due again.
func (d *Dispatcher) repeatFailed(ctx context.Context) {
	if !d.health.isUp() || d.gate.Pressure().Paused {
		return
	}
	var due []berth.JobID
	d.mu.Lock()
	for id, f := range d.failed {
		if _, claimed := d.started[id]; !claimed && !time.Now().Before(f.next) {
			if due = append(due, id); len(due) == sweepBatch {
				break
			}
		}
	}
	d.mu.Unlock()
	if len(due) == 0 {
		return
	}
	rows, err := d.db.Submitted(overload.As(ctx, overload.Sweep), due)
	if err != nil {
		if ctx.Err() == nil {
			d.log.Warn("submitted jobs not read", "err", err)
		}
		return
	}
	there := make(map[berth.JobID]bool, len(rows))
	for _, r := range rows {
		there[r.Job] = true
	}
	for _, id := range due {
		if !there[id] { // it was started after all, or has ended
			d.succeed(id)
		}
	}
	d.queue(ctx, rows)
}

// forget drops old marks.
func (d *Dispatcher) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, at := range d.started {
		if !at.IsZero() && time.Since(at) > remembered {
			delete(d.started, id)
		}
	}
}
