package scheduler

import (
	"time"

	"berth/db"
)

// pace spaces the pokes of one attempt that makes no progress: the first goes out at once, the
// next after pokePause, and so on with doubled pauses. A poke is cheap for one job, but not for
// ten thousand jobs whose machine, or Temporal, is slow. The zero value is ready for use.
type pace struct{ told map[paced]*poked }

// paced is one attempt poked for one reason. Each reason has a pace of its own.
type paced struct {
	kind string
	job  attempt
}

// attempt identifies an attempt of a job: a new attempt is poked at once again.
type attempt struct {
	job     string
	attempt int
}

// poked holds the earliest next poke of an attempt, and the pause after that one.
type poked struct {
	next  time.Time
	pause time.Duration
}

const (
	pokePause    = 15 * time.Second
	maxPokePause = 5 * time.Minute
)

// due reports whether a job is to be poked now, and counts the poke.
func (p *pace) due(kind string, j db.Aged, now time.Time) bool {
	key := paced{kind, attempt{string(j.ID), j.Attempt}}
	t := p.told[key]
	if t == nil {
		if p.told == nil {
			p.told = map[paced]*poked{}
		}
		t = &poked{pause: pokePause}
		p.told[key] = t
	} else if now.Before(t.next) {
		return false
	}
	t.next = now.Add(t.pause)
	t.pause = min(2*t.pause, maxPokePause)
	return true
}

// forget drops entries of jobs that are no longer in the list: they made progress.
func (p *pace) forget(kind string, jobs []db.Aged) {
	present := make(map[attempt]bool, len(jobs))
	for _, j := range jobs {
		present[attempt{string(j.ID), j.Attempt}] = true
	}
	for key := range p.told {
		if key.kind == kind && !present[key.job] {
			delete(p.told, key)
		}
	}
}
