package api

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// TestASlowProofHoldsUpNoOtherAnswer lets proofs last. Calls wait for the first proof of a process alone. During a later
// one they get the last result at once, as calls about objects that need no parts do during a proof of parts.
func TestASlowProofHoldsUpNoOtherAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &signing{log: slog.New(slog.DiscardHandler), limit: time.Hour}
		release := make(chan error)
		proofs := 0
		asks := func(of *proof) chan bool {
			answer := make(chan bool, 1)
			go func() {
				answer <- p.try(t.Context(), of, func(context.Context) error {
					proofs++
					return <-release
				}, "good", "bad")
			}()
			synctest.Wait()
			return answer
		}
		first, second := asks(&p.whole), asks(&p.whole)
		if len(first)+len(second) > 0 {
			t.Error("a call is answered before the first proof has a result")
		}
		if p.ignores() || p.holdsNow() {
			t.Error("the store counts as proven, or as one that ignores conditions")
		}
		release <- errors.New("no answer")
		if <-first || <-second || proofs != 1 {
			t.Errorf("after a proof without a result the store counts as proven; %d proofs", proofs)
		}
		if <-asks(&p.whole) || proofs != 1 {
			t.Errorf("a proof is repeated at once; %d proofs", proofs)
		}
		time.Sleep(proofPause + time.Second)
		again, meanwhile := asks(&p.whole), asks(&p.whole)
		if len(again) != 0 || len(meanwhile) != 1 || <-meanwhile {
			t.Error("a call waits for a later proof, or the store counts as proven")
		}
		release <- nil
		if !<-again || !<-asks(&p.whole) || proofs != 2 {
			t.Errorf("after a good proof the store does not count as proven; %d proofs", proofs)
		}
		parts := asks(&p.parts)
		if whole := asks(&p.whole); len(whole) != 1 || !<-whole || len(parts) != 0 {
			t.Error("a proof of parts holds up other answers")
		}
		release <- nil
		if !<-parts {
			t.Error("parts do not count as proven")
		}
	})
}

// TestAProofThatPanicsHoldsUpNobody lets the first proof of a process panic, while one call waits for it and the caller
// of another has gone.
func TestAProofThatPanicsHoldsUpNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &signing{log: slog.New(slog.DiscardHandler), limit: time.Hour}
		release := make(chan struct{})
		asks := func(ctx context.Context, prove func(context.Context) error) chan bool {
			answer := make(chan bool, 1)
			go func() {
				defer func() { _ = recover() }() // as the server's handler does
				answer <- p.try(ctx, &p.whole, prove, "good", "bad")
			}()
			synctest.Wait()
			return answer
		}
		asks(t.Context(), func(context.Context) error { <-release; panic("a fault of a library") })
		waits := asks(t.Context(), nil)
		ctx, cancel := context.WithCancel(t.Context())
		left := asks(ctx, nil)
		cancel()
		synctest.Wait()
		if len(waits) != 0 || len(left) != 1 || <-left {
			t.Error("a call waits on after its caller has gone, or the store counts as proven")
		}
		close(release)
		synctest.Wait()
		if len(waits) != 1 || <-waits {
			t.Error("a call waits for a proof that panicked, or the store counts as proven")
		}
		if !<-asks(t.Context(), func(context.Context) error { return nil }) {
			t.Error("no proof follows one that panicked")
		}
	})
}
