package scale_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"golang.org/x/time/rate"
)

// The pace of berthd's answers to a tenant that is refused often (api/refusals.go).
const (
	refusedRate    = 200
	refusedBurst   = 400
	longestRefusal = 3 * time.Second
)

// null is a listener that costs a generator as much as a berthd under overload does, without any work: it accepts some
// submits at once, and holds the answers to the others as berthd holds refusals. So the generator has as many calls and
// connections open at rest as under load.
type null struct {
	accepted, refused *rate.Limiter
}

// newNull returns a listener that accepts so many submits a second.
func newNull(accept float64) *null {
	return &null{rate.NewLimiter(rate.Limit(accept), max(1, int(accept))), rate.NewLimiter(refusedRate, refusedBurst)}
}

func (n *null) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	accepted, wait := n.decide(time.Now())
	if accepted {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "{}")
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Context().Done():
	}
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(http.StatusTooManyRequests)
	_, _ = io.WriteString(w, "{}")
}

// decide reports whether a submit at this time is accepted, and otherwise how long its refusal is held.
func (n *null) decide(now time.Time) (accepted bool, wait time.Duration) {
	if n.accepted.AllowN(now, 1) {
		return true, 0
	}
	turn := n.refused.ReserveN(now, 1)
	if wait = turn.DelayFrom(now); wait > longestRefusal {
		turn.CancelAt(now)
		wait = longestRefusal
	}
	return false, wait
}

func TestNullListenerHoldsAnswersAsBerthdHoldsRefusals(t *testing.T) {
	t.Parallel()
	n, now := newNull(10), time.Now()
	for i := range 10 {
		if accepted, wait := n.decide(now); !accepted || wait != 0 {
			t.Fatalf("submit %d: accepted %v, held for %s; want it accepted at once", i, accepted, wait)
		}
	}
	for i := range refusedBurst {
		if accepted, wait := n.decide(now); accepted || wait != 0 {
			t.Fatalf("submit %d beyond: accepted %v, held for %s; want it refused at once", i, accepted, wait)
		}
	}
	last := time.Duration(0)
	for i := range 1000 {
		accepted, wait := n.decide(now)
		if accepted || wait < last || wait == 0 || wait > longestRefusal {
			t.Fatalf("submit %d of the held: accepted %v, held for %s after one for %s", i, accepted, wait, last)
		}
		last = wait
	}
	if last != longestRefusal {
		t.Errorf("the last of 1,000 refusals is held for %s, want %s", last, longestRefusal)
	}
	if accepted, _ := n.decide(now.Add(time.Second)); !accepted {
		t.Error("a second later no submit is accepted")
	}
}
