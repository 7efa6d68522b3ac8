package digest

import (
	"math/rand/v2"
	"sync"
	"time"
)

// hosts bounds the questions to each registry, to each registry of one tenant, and to each registry with one login: a
// registry that limits the rate of one login (429) serves others. Failures of one tenant's questions close a registry
// for this tenant only, since a tenant can choose questions that fail. Failures of two tenants close it for all.
//
//	state of a registry   questions                                   ends with
//	open                  up to maxAbreast at once                    ailing failures in a row, of two tenants if the
//	                                                                  name is a registry's, or a pause asked for
//	closed                none; they are put off                      the end of the pause
//	on trial              one at a time                               an answer: open; a failure: closed for longer
//
// The state belongs to one process. A registry that is not in the map is open.
type hosts struct {
	mu    sync.Mutex
	known map[string]*host
}

// host is one registry, one of a tenant, or one with a login; see names.
type host struct {
	asked  int       // questions in flight
	failed int       // in a row
	by     string    // tenant of the first of these failures
	shared bool      // these failures close the name: they are of two tenants, or the name serves one
	until  time.Time // closed until then by failures
	pause  time.Time // closed until then by Retry-After, whatever other questions in flight achieve
}

// closed reports whether failures have closed the name. It may be on trial.
func (h *host) closed() bool { return h.failed >= ailing && h.shared }

// names returns the names of a question: its registry, the registry of its tenant, and its callers.
func names(registry, tenant, login string) (host, mine, limit string) {
	return registry, registry + " " + tenant, callers(registry, tenant, login)
}

const (
	maxAbreast = 4
	ailing     = 3 // failures in a row that close a registry
	maxHosts   = 4096

	shortestPause = 15 * time.Second // doubles with each further failure
	longestPause  = 10 * time.Minute
	crowdedPause  = time.Second
)

// callers is the name, in hosts, of the callers whose rate a registry limits together: those with one login, or all
// without a login.
func callers(registry, tenant, login string) string {
	if login == "" {
		tenant = ""
	}
	return registry + " " + tenant + " " + login // names of registries have no space
}

// enter takes a place for a question with each of the names, which leave gives back. Otherwise it takes none, and
// returns how long to wait.
func (h *hosts) enter(now time.Time, names ...string) (wait time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, name := range names {
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
		case now.Before(one.until), now.Before(one.pause):
			wait = jitter(max(one.until.Sub(now), one.pause.Sub(now)))
		case one.asked >= maxAbreast, one.closed() && one.asked > 0:
			wait = jitter(crowdedPause)
		}
		if wait > 0 {
			for _, taken := range names[:i] {
				h.known[taken].asked--
			}
			return wait, false
		}
		one.asked++
	}
	return 0, true
}

// leave notes the end of a question. ill says whether err counts against the name, and by is the tenant of the
// question; "": the failure counts for all that use the name. leave returns whether it has closed or opened the name.
func (h *hosts) leave(name, by string, err *answerError, ill bool, now time.Time) (closed, opened bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	one := h.known[name]
	one.asked--
	before := one.closed()
	if !ill {
		one.failed, one.shared, one.until = 0, false, time.Time{}
		return false, before
	}
	if one.failed == 0 {
		one.by = by
	}
	one.failed++
	one.shared = one.shared || by == "" || by != one.by
	if !one.shared {
		return false, false
	}
	if one.closed() {
		one.until = now.Add(jitter(min(shortestPause<<min(one.failed-ailing, 10), longestPause)))
	}
	if asked := now.Add(jitter(err.after)); err.after > 0 && asked.After(one.pause) {
		one.pause = asked
	}
	return !before && one.closed(), false
}

// makeRoom forgets names without a question in flight: first healthy ones, and only if all are ill, any. h.mu is
// held.
func (h *hosts) makeRoom(now time.Time) {
	for _, ill := range []bool{false, true} {
		for name, one := range h.known {
			if len(h.known) < maxHosts {
				return
			}
			if one.asked == 0 && (ill || !one.closed() && !now.Before(one.pause)) {
				delete(h.known, name)
			}
		}
	}
}

// jitter adds up to a fifth to a pause, so that processes do not ask a registry at the same moment.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/5+1) }
