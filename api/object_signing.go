package api

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"berth/internal/control/blob"
)

// signing is the proof that the store keeps the conditions of signed addresses. Until then no address is signed: a
// condition that a store ignores protects nothing. Objects in parts have a proof of their own.
type signing struct {
	log   *slog.Logger
	limit time.Duration // of one proof

	mu           sync.Mutex
	whole, parts proof
}

const (
	proofTime    = 8 * time.Second // of one proof, and blob.CleanUpTime more to remove its objects
	proofPause   = time.Minute     // after a proof without a result
	unboundPause = time.Hour       // after the proof that the store ignores a condition
)

// newSigning returns an unproven store's signing, or nil if the operator does not want signed addresses.
func newSigning(d Deps) *signing {
	if !d.Agent.Direct {
		return nil
	}
	p := &signing{log: d.Logger, limit: d.Agent.ProofLimit}
	if p.limit <= 0 {
		p.limit = proofTime
	}
	return p
}

// proof is the state of one proof.
type proof struct {
	held    bool
	unbound bool          // the store ignores a condition
	warned  bool          // of the failure that lasts
	next    time.Time     // of the next try
	running chan struct{} // closed at the end of the try that a call makes now; nil: none
}

// holds reports whether the store is proven, and proves it if the last proof is long ago. Callers whose end must not
// cut the proof off pass a context without cancellation.
func (p *signing) holds(ctx context.Context, store *blob.Store) bool {
	return p.try(ctx, &p.whole, store.ProveSigning,
		"object store keeps the conditions of signed addresses, machines use it directly",
		"object store not proven fit for signed addresses, machines move objects through this server")
}

// inParts reports whether the store is proven for objects in parts, too.
func (p *signing) inParts(ctx context.Context, store *blob.Store) bool {
	return p.holdsNow() && p.try(ctx, &p.parts, store.InParts().Prove,
		"object store keeps the conditions of parts, machines store large objects directly",
		"object store not proven fit for objects in parts, machines move large objects through this server")
}

// holdsNow reports whether the store is proven, without a proof.
func (p *signing) holdsNow() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.whole.held
}

// ignores reports whether the store was found to ignore a condition. An object of such a store is compared with no
// report: its answers prove nothing.
func (p *signing) ignores() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.whole.unbound
}

// try returns the result of a proof, after a new one if it is due. One call at a time carries out a proof, without the
// lock. Others wait for the first proof of this process or for the end of their ctx; the proof takes p.limit and
// blob.CleanUpTime at most. During later proofs they use the last result. try warns once for a failure, however often
// the proof is repeated.
func (p *signing) try(
	ctx context.Context, of *proof, prove func(context.Context) error, good, bad string,
) bool {
	p.mu.Lock()
	first := of.next.IsZero()
	running := of.running
	switch {
	case of.held || running == nil && time.Now().Before(of.next) || running != nil && !first:
		defer p.mu.Unlock()
		return of.held
	case running != nil:
		p.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		return of.held
	}
	running = make(chan struct{})
	of.running = running
	p.mu.Unlock()
	defer func() { // after a panic, too
		p.mu.Lock()
		defer p.mu.Unlock()
		if of.running == running {
			of.running = nil
		}
		close(running)
	}()
	limited, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	err := prove(limited)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil && ctx.Err() != nil { // the server closes
		return false
	}
	p.record(ctx, of, err, good, bad)
	return of.held
}

// record keeps the result of a proof, which may be an error, and logs it. The caller holds p.mu.
func (p *signing) record(ctx context.Context, of *proof, err error, good, bad string) {
	if err == nil {
		*of = proof{held: true}
		p.log.Info(good)
		return
	}
	pause := proofPause
	_, unbound := errors.AsType[blob.UnboundError](err)
	if unbound {
		pause = unboundPause
	}
	level := slog.LevelWarn
	if of.warned && of.unbound == unbound {
		level = slog.LevelDebug
	}
	of.unbound, of.warned, of.next = unbound, true, time.Now().Add(pause)
	p.log.Log(ctx, level, bad, "err", err, "next_try", pause)
}
