package digest

import (
	"math/rand/v2"
	"sync"
	"time"
)

// hosts bounds the questions to each registry.
//
//	state of a registry   questions                                   ends with
//	open                  up to maxAbreast at once                    ailing failures in a row, or a pause asked for
//	closed                none; they are put off                      the end of the pause
//	on trial              one at a time                               an answer: open; a failure: closed for longer
//
// The state belongs to one process. A registry that is not in the map is open.
type hosts struct {
	mu    sync.Mutex
	known map[string]*host
}

// host is one registry.
type host struct {
	asked  int       // questions in flight
	failed int       // in a row
	until  time.Time // closed until then
}

const (
	maxAbreast = 4
	ailing     = 3 // failures in a row that close a registry
	maxHosts   = 4096

	shortestPause = 15 * time.Second // doubles with each further failure
	longestPause  = 10 * time.Minute
	crowdedPause  = time.Second
)

// enter takes a place for a question, which leave gives back. Otherwise it returns how long to wait.
func (h *hosts) enter(name string, now time.Time) (wait time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.known[name]
	if one == nil {
		h.makeRoom(now)
		one = &host{}
		if h.known == nil {
			h.known = map[string]*host{}
		}
		h.known[name] = one
	}
	switch {
	case now.Before(one.until):
		return jitter(one.until.Sub(now)), false
	case one.asked >= maxAbreast, one.failed >= ailing && one.asked > 0:
		return jitter(crowdedPause), false
	}
	one.asked++
	return 0, true
}

// leave notes the end of a question. It returns whether the registry was closed or opened by it.
func (h *hosts) leave(name string, err *answerError, now time.Time) (closed, opened bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.known[name]
	one.asked--
	if err == nil || !err.ill {
		opened = one.failed >= ailing
		one.failed, one.until = 0, time.Time{}
		return false, opened
	}
	one.failed++
	pause := err.after
	if one.failed >= ailing {
		pause = max(pause, min(shortestPause<<min(one.failed-ailing, 10), longestPause))
	}
	if pause > 0 {
		one.until = now.Add(jitter(pause))
	}
	return one.failed == ailing, false
}

// makeRoom forgets registries without a question in flight: first healthy ones, and only if all are ill, any. h.mu is
// held.
func (h *hosts) makeRoom(now time.Time) {
	for _, ill := range []bool{false, true} {
		for name, one := range h.known {
			if len(h.known) < maxHosts {
				return
			}
			if one.asked == 0 && (ill || one.failed < ailing && !now.Before(one.until)) {
				delete(h.known, name)
			}
		}
	}
}

// jitter adds up to a fifth to a pause, so that processes do not ask a registry at the same moment.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/5+1) }
