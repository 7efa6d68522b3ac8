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
// condition that a store ignores protects nothing. Objects in parts have a proof of their own. After the proof,
// signatures may still fail, for example since the login has lost the right to sign.
type signing struct {
	log   *slog.Logger
	limit time.Duration // of one proof, and of one signature

	mu           sync.Mutex
	whole, parts proof
	again        time.Time // after a failed signature: when the next one is tried; zero: the last signature was made
}

const (
	proofTime    = 8 * time.Second // of one proof, and blob.CleanUpTime more to remove its objects
	proofPause   = time.Minute     // after a proof without a result
	unboundPause = time.Hour       // after the proof that the store ignores a condition
	signPause    = time.Minute     // after a failed signature
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

// sign returns the address that a function signs. While signatures fail, ok is false and the object goes through this
// server. One call in each signPause tries again, and the others do not wait for it. A try takes p.limit at most; its
// result counts for later calls, so the end of ctx does not cut it off. An error has another cause than the signature.
func (p *signing) sign(
	ctx context.Context, try func(context.Context) (blob.SignedAddress, error),
) (a blob.SignedAddress, ok bool, err error) {
	if !p.mayTry() {
		return a, false, nil
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.limit)
	defer cancel()
	a, err = try(limited)
	_, unsigned := errors.AsType[blob.SigningError](err)
	switch {
	case err == nil:
		p.succeeded()
	case unsigned:
		p.failed(ctx, err)
		err = nil
	}
	return a, err == nil && !unsigned, err
}

// pauses reports whether no address is signed now, since the last signature has failed.
func (p *signing) pauses() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Before(p.again)
}

// mayTry is the opposite of pauses. After a pause it grants one try, and another pause begins.
func (p *signing) mayTry() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Before(p.again) {
		return false
	}
	if !p.again.IsZero() {
		p.again = now.Add(signPause)
	}
	return true
}

// succeeded ends the pauses after failed signatures.
func (p *signing) succeeded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.again.IsZero() {
		p.again = time.Time{}
		p.log.Info("signing addresses of the object store again, machines use it directly")
	}
}

// failed begins a pause, and warns of the first failure in a row.
func (p *signing) failed(ctx context.Context, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	level := slog.LevelDebug
	if p.again.IsZero() {
		level = slog.LevelWarn
	}
	p.again = time.Now().Add(signPause)
	p.log.Log(ctx, level, "cannot sign addresses of the object store, machines move objects through this server",
		"err", err, "next_try", signPause)
}
