package scheduler

import (
	"time"

	"berth/db"
)

// pace spaces the pokes of one attempt that stays as it is: the first goes out
// at once, the next after pokePause, and so on in doubled pauses. A poke is
// cheap for one job and not for ten thousand whose machine, or Temporal, is
// slow. Its zero value is ready.
type pace struct{ told map[paced]*poked }

type paced struct {
	kind string
	job  attempt
}

type attempt struct {
	job     string
	attempt int
}

type poked struct {
	next  time.Time
	pause time.Duration
}

const (
	pokePause    = 15 * time.Second
	maxPokePause = 5 * time.Minute
)

// due reports whether it is time to poke a job, and counts on that being done.
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
