package overload

import (
	"sync"
	"time"
)

// Budget bounds repeats of calls that failed to a share of the calls that
// succeeded. A repeat takes a token; one that succeeds gives it back. So repeats
// run at full rate once the dependency answers, and hardly at all before.
//
// The zero value allows no repeats; see NewBudget. All methods may be called
// concurrently.
type Budget struct {
	share float64
	burst float64
	every time.Duration

	mu      sync.Mutex
	tokens  float64
	at      time.Time
	repeats int64
	refused int64
}

// NewBudget returns a budget of burst tokens. A call that succeeds adds share of
// a token, and time one token each every, up to burst.
func NewBudget(share float64, burst int, every time.Duration) *Budget {
	return &Budget{share: share, burst: float64(burst), every: every, tokens: float64(burst), at: time.Now()}
}

// Succeeded notes a call that succeeded.
func (b *Budget) Succeeded() { b.add(b.share) }

// Refund gives back the token of a repeat that succeeded, or was not made.
func (b *Budget) Refund() { b.add(1) }

// add adds tokens, up to the burst.
func (b *Budget) add(n float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(b.burst, b.tokens+n)
}

// Repeat takes a token, and returns false if none is left.
func (b *Budget) Repeat() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(time.Now())
	if b.tokens < 1 {
		b.refused++
		return false
	}
	b.tokens--
	b.repeats++
	return true
}

// refill adds the tokens of the time since the last call. b.mu is held.
func (b *Budget) refill(now time.Time) {
	if b.every > 0 {
		b.tokens = min(b.burst, b.tokens+float64(now.Sub(b.at))/float64(b.every))
	}
	b.at = now
}

// BudgetStats are a Budget's figures.
type BudgetStats struct {
	Tokens  float64
	Repeats int64 // made
	Refused int64 // put off
}

// Stats returns the present figures.
func (b *Budget) Stats() BudgetStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill(time.Now())
	return BudgetStats{b.tokens, b.repeats, b.refused}
}
