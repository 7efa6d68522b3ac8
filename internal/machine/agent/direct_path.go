package agent

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// errUnusable is a failure that the next try would meet again: the store cannot be reached from this machine, or
// refuses the address.
type errUnusable struct{ error }

// Unwrap returns the failure.
func (e errUnusable) Unwrap() error { return e.error }

// errContent is a failure of one object: the store does not have it, or its content is not as announced or recorded. It
// says nothing about the path to the store.
type errContent struct{ error }

// Unwrap returns the failure.
func (e errContent) Unwrap() error { return e.error }

// errNoUpload is the failure of a part whose upload the store does not have.
type errNoUpload struct{ error }

// Unwrap returns the failure.
func (e errNoUpload) Unwrap() error { return e.error }

// storePath judges the path between this machine and the object store. Failures are counted by kind:
//
//	unusable   all objects pause at once
//	broken     after directTries in a row, objects of at least the least length that broke pause: a path may break
//	           large transfers alone
//	content    the object alone goes through the server; see avoid
//	local      a file of this machine cannot be read: counts nowhere
//
// Each pause is twice as long as the one before, up to most, until a transfer of such a length succeeds. A random part
// keeps machines from returning at the same time. All methods may be called concurrently.
type storePath struct {
	first, most time.Duration // pause
	now         func() time.Time
	random      func() float64 // from 0 to 1
	log         *slog.Logger

	mu     sync.Mutex
	broken int           // transfers in a row
	least  int64         // shortest of them, in bytes; 0 after an unusable path
	until  time.Time     // end of the pause
	last   time.Duration // pause, before its random part

	avoided map[string]contentFaults // by key
}

// contentFaults are the faults of one object.
type contentFaults struct {
	count int
	last  time.Time
}

// newStorePath returns the judge of an unknown path.
func newStorePath(first, most time.Duration, log *slog.Logger) *storePath {
	return &storePath{first: first, most: most, now: time.Now, random: rand.Float64, log: log,
		avoided: map[string]contentFaults{}}
}

// pauses reports whether transfers of this length pause now.
func (p *storePath) pauses(bytes int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now().Before(p.until) && bytes >= p.least
}

// worked notes a transfer that succeeded. Only one that is as long as the broken ones proves that the path is good.
func (p *storePath) worked(bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if bytes >= p.least {
		p.broken, p.least, p.last, p.until = 0, 0, 0, time.Time{}
	}
}

// failed notes a transfer of this length that failed on its way. It reports whether such transfers pause now.
func (p *storePath) failed(bytes int64, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, unusable := errors.AsType[errUnusable](err); unusable {
		p.broken, p.least = 0, 0
		p.pause(err)
		return true
	}
	if p.broken == 0 && p.last == 0 {
		p.least = bytes
	}
	p.least = min(p.least, bytes)
	if p.broken++; p.broken < directTries {
		return false
	}
	p.broken = 0
	p.pause(err)
	return true
}

// pause begins a pause that is longer than the last one. The caller holds the lock.
func (p *storePath) pause(err error) {
	if p.now().Before(p.until) {
		return // transfers that began before the pause
	}
	p.last = min(max(2*p.last, p.first), p.most)
	pause := p.last/2 + time.Duration(p.random()*float64(p.last)/2)
	p.until = p.now().Add(pause)
	p.log.Warn("object store not usable from this machine, objects go through the server", "err", err,
		"pause", pause, "from_bytes", p.least)
}

// maxAvoided bounds the objects that a storePath knows to avoid.
const maxAvoided = 10_000

// avoid makes an object go through the server after a fault of its content.
func (p *storePath) avoid(key string, faults int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.avoided) >= maxAvoided {
		clear(p.avoided)
	}
	p.avoided[key] = contentFaults{p.avoided[key].count + faults, p.now()}
}

// avoids reports whether an object goes through the server, since its content was at fault within the longest pause.
func (p *storePath) avoids(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.avoided[key]
	return f.count >= directTries && p.now().Before(f.last.Add(p.most))
}

// forget forgets the faults of an object, after it was moved.
func (p *storePath) forget(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.avoided, key)
}
