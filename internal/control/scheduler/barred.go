package scheduler

import (
	"time"

	"berth"
	"berth/placement"
)

// barred holds the jobs that preempt no others for a while, because the database has rejected
// the data of their last preemption. The pause doubles with each rejection in a row, so that
// such a job costs the leader little. The zero value is ready for use.
type barred struct{ jobs map[berth.JobID]*bar }

// bar holds the end of a job's pause, and its length.
type bar struct {
	until time.Time
	pause time.Duration
}

const (
	barPause    = 10 * time.Second
	maxBarPause = 10 * time.Minute
)

// fail records a rejected preemption and returns the pause before the next one.
func (b *barred) fail(id berth.JobID, now time.Time) time.Duration {
	x := b.jobs[id]
	if x == nil {
		if b.jobs == nil {
			b.jobs = map[berth.JobID]*bar{}
		}
		x = &bar{pause: barPause / 2}
		b.jobs[id] = x
	}
	x.pause = min(2*x.pause, maxBarPause)
	x.until = now.Add(x.pause)
	return x.pause
}

// forget ends the pauses of a job: the database has processed a preemption for it.
func (b *barred) forget(id berth.JobID) { delete(b.jobs, id) }

// present returns the jobs that must not preempt now, nil if there are none. It forgets jobs
// that no longer wait.
func (b *barred) present(s *placement.Snapshot, now time.Time) map[berth.JobID]bool {
	var list map[berth.JobID]bool
	for id, x := range b.jobs {
		if _, waits := s.Job(id); !waits {
			delete(b.jobs, id)
		} else if now.Before(x.until) {
			if list == nil {
				list = map[berth.JobID]bool{}
			}
			list[id] = true
		}
	}
	return list
}
