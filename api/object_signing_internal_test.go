package api

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/control/blob"
)

// TestASlowProofHoldsUpNoOtherAnswer lets proofs last. Calls wait for the first proof of a process alone. During a
// later one they get the last result at once, as calls about objects that need no parts do during a proof of parts.
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

// TestSignaturesAreTriedAgainOnceAMinute lets signatures fail, by refusals and by calls without an answer. One call in
// each minute tries again, for the limit at most, and no other call waits for it.
func TestSignaturesAreTriedAgainOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p := &signing{log: slog.New(slog.NewTextHandler(&log, nil)), limit: proofTime}
		tries := 0
		asks := func(ctx context.Context, result error) chan bool {
			answer := make(chan bool, 1)
			go func() {
				_, ok, err := p.sign(ctx, func(ctx context.Context) (blob.SignedAddress, error) {
					tries++
					if result == errHangs {
						<-ctx.Done()
						return blob.SignedAddress{}, blob.SigningError{}
					}
					return blob.SignedAddress{}, result
				})
				if _, unsigned := errors.AsType[blob.SigningError](err); unsigned || result == nil && err != nil {
					t.Errorf("the result %v is answered by the error %v", result, err)
				}
				answer <- ok
			}()
			synctest.Wait()
			return answer
		}
		other := errors.New("the upload is gone")
		if !<-asks(t.Context(), nil) || <-asks(t.Context(), other) || p.pauses() || tries != 2 {
			t.Errorf("an error that is no signature's begins a pause; %d tries", tries)
		}
		if <-asks(t.Context(), blob.SigningError{}) || <-asks(t.Context(), nil) || !p.pauses() || tries != 3 {
			t.Errorf("a signature is tried in the pause; %d tries", tries)
		}
		time.Sleep(signPause)
		if p.pauses() {
			t.Error("the pause goes on")
		}
		ctx, cancel := context.WithCancel(t.Context())
		hangs := asks(ctx, errHangs)
		cancel()
		synctest.Wait()
		if beside := asks(t.Context(), nil); len(beside) != 1 || <-beside || tries != 4 || len(hangs) != 0 {
			t.Errorf("a call waits for the try of another one, or the try ends with its caller; %d tries", tries)
		}
		time.Sleep(proofTime)
		synctest.Wait()
		if len(hangs) != 1 || <-hangs {
			t.Error("a try lasts longer than the limit, or has an address")
		}
		time.Sleep(signPause - time.Nanosecond)
		if !p.pauses() {
			t.Error("the pause after the last try is too short")
		}
		time.Sleep(time.Nanosecond)
		for range 2 {
			if !<-asks(t.Context(), nil) {
				t.Error("signatures do not go on")
			}
		}
		if p.pauses() || tries != 6 {
			t.Errorf("signatures do not go on; %d tries", tries)
		}
		for _, text := range []string{"cannot sign addresses", "signing addresses of the object store again"} {
			if n := strings.Count(log.String(), text); n != 1 {
				t.Errorf("%q is logged %d times, want 1:\n%s", text, n, log.String())
			}
		}
	})
}

// errHangs stands for a try without an answer.
var errHangs = errors.New("no answer")
