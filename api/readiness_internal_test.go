package api

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestReadinessIsRenewedBesideItsProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r readiness
		var looks atomic.Int64
		var broken atomic.Bool
		look := func(context.Context) Readiness {
			looks.Add(1)
			ready := !broken.Load()
			time.Sleep(700 * time.Millisecond) // a busy system
			return Readiness{Ready: ready}
		}
		probe := func() (ready bool, waited time.Duration) {
			began := time.Now()
			return r.get(t.Context(), look).Ready, time.Since(began)
		}
		if ready, waited := probe(); !ready || waited != 700*time.Millisecond {
			t.Errorf("the first probe: %v after %s", ready, waited)
		}
		for range 20 {
			time.Sleep(time.Second)
			if ready, waited := probe(); !ready || waited > 0 {
				t.Errorf("a probe a second later: %v after %s", ready, waited)
			}
		}
		if n := looks.Load(); n < 7 || n > 21 {
			t.Errorf("%d looks in 20 s", n)
		}
		broken.Store(true)
		began := time.Now()
		for ready := true; ready; time.Sleep(100 * time.Millisecond) {
			ready, _ = probe()
		}
		if took := time.Since(began); took > readyRest {
			t.Errorf("it is seen after %s that a system is gone", took)
		}
		broken.Store(false)
		began = time.Now()
		for ready := false; !ready; time.Sleep(100 * time.Millisecond) {
			ready, _ = probe()
		}
		if took := time.Since(began); took > readyMemory+2*time.Second {
			t.Errorf("it is seen after %s that the system is back", took)
		}
		time.Sleep(time.Minute)
		broken.Store(true)
		if ready, waited := probe(); ready || waited == 0 {
			t.Errorf("after a minute without probes: %v after %s", ready, waited)
		}
	})
}
