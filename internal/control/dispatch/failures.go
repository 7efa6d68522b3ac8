package dispatch

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"berth"
	"berth/internal/lib/overload"
)

// failure records failed starts, or pokes, of a job.
type failure struct {
	times int       // in a row
	next  time.Time // earliest time of the next try
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

// startMarks records this process's starts by job: starts under way, recent starts and failed
// starts.
type startMarks struct {
	mu      sync.Mutex
	started map[berth.JobID]time.Time // zero: under way
	failed  map[berth.JobID]*failure
}

// newStartMarks returns marks without a start.
func newStartMarks() *startMarks {
	return &startMarks{started: map[berth.JobID]time.Time{}, failed: map[berth.JobID]*failure{}}
}

// claim marks a job as being started. It returns false if the job is already marked, or if its
// start has failed and the time for a retry has not come.
func (m *startMarks) claim(id berth.JobID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.started[id]; ok {
		return false
	}
	if f := m.failed[id]; f != nil && time.Now().Before(f.next) {
		return false
	}
	m.started[id] = time.Time{}
	return true
}

// unclaim lets the sweep try a job again.
func (m *startMarks) unclaim(id berth.JobID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.started, id)
}

// succeed records that a job was started, so that the sweep leaves the job alone while its first
// step is late.
func (m *startMarks) succeed(id berth.JobID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.started[id] = time.Now()
	delete(m.failed, id)
}

// fail remembers a failed start, and returns the pause until its next try.
func (m *startMarks) fail(id berth.JobID) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.started, id)
	f := m.failed[id]
	if f == nil {
		f = &failure{}
		m.failed[id] = f
	}
	f.times++
	in := pause(f.times)
	f.next = time.Now().Add(in)
	return in
}

// postpone lets a start that was not made be tried again in a moment.
func (m *startMarks) postpone(id berth.JobID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.started, id)
	f := m.failed[id]
	if f == nil {
		f = &failure{}
		m.failed[id] = f
	}
	f.next = time.Now().Add(pause(1))
}

// hasFailed reports whether the job's last start was made and has failed.
func (m *startMarks) hasFailed(id berth.JobID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.failed[id]
	return f != nil && f.times > 0
}

// isQueued reports whether the job waits in this process for its turn.
func (m *startMarks) isQueued(id berth.JobID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, ok := m.started[id]
	return ok && at.IsZero()
}

// forgive makes failed calls due again, since Temporal answers.
func (m *startMarks) forgive() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.failed {
		f.next = time.Time{}
	}
}

// due returns failed starts that are due again, at most limit.
func (m *startMarks) due(limit int) []berth.JobID {
	var due []berth.JobID
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, f := range m.failed {
		if _, claimed := m.started[id]; !claimed && !time.Now().Before(f.next) {
			if due = append(due, id); len(due) == limit {
				break
			}
		}
	}
	return due
}

// repeatFailed queues failed starts that are due again.
func (d *Dispatcher) repeatFailed(ctx context.Context) {
	if !d.health.isUp() || d.gate.Pressure().Paused {
		return
	}
	due := d.marks.due(sweepBatch)
	if len(due) == 0 {
		return
	}
	rows, err := d.db.Submitted(overload.As(ctx, overload.Sweep), due)
	if err != nil {
		if ctx.Err() == nil {
			d.log.Warn("cannot read submitted jobs, will retry", "err", err)
		}
		return
	}
	there := make(map[berth.JobID]bool, len(rows))
	for _, r := range rows {
		there[r.Job] = true
	}
	for _, id := range due {
		if !there[id] { // it was started after all, or has ended
			d.marks.succeed(id)
		}
	}
	d.queue(rows)
}

// forget drops old marks.
func (m *startMarks) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, at := range m.started {
		if !at.IsZero() && time.Since(at) > remembered {
			delete(m.started, id)
		}
	}
}
