package api

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"berth"
)

// limits hold a token bucket for each principal, and for each address that sends wrong
// tokens. The bucket that was unused for longest is forgotten first: the bucket of a
// quiet caller is full anyway.
type limits struct {
	rate  rate.Limit
	burst int
	now   func() time.Time

	refused *prometheus.CounterVec

	mu      sync.Mutex
	calls   *recent[string, *rate.Limiter]
	guesses map[guesser]*recent[netip.Prefix, *rate.Limiter]
}

// guesser is the kind of caller that a wrong token came from. Each kind has separate
// buckets: wrong tokens of users do not use up agents' buckets, which share an address
// where a job runs on the network of its machine.
type guesser string

const (
	guessUser  guesser = "user"
	guessAgent guesser = "agent"
	guessJoin  guesser = "join"
)

// A wrong token costs its address a tenth of a second; guessBurst wrong tokens are
// answered 401 before the first 429.
const (
	guessRate  = 10
	guessBurst = 100
	limitRoom  = 50_000 // buckets of each kind
)

func newLimits(registry *prometheus.Registry, r float64, burst int) *limits {
	l := &limits{
		rate: rate.Limit(r), burst: max(burst, 1), now: time.Now,
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_http_wrong_tokens_total",
			Help: "Calls without a good token, by kind of caller (user, agent, join) and status: 401, or 429 once " +
				"their address has sent too many.",
		}, []string{"caller", "status"}),
		calls:   newRecent[string, *rate.Limiter](limitRoom),
		guesses: map[guesser]*recent[netip.Prefix, *rate.Limiter]{},
	}
	for _, kind := range []guesser{guessUser, guessAgent, guessJoin} {
		l.guesses[kind] = newRecent[netip.Prefix, *rate.Limiter](limitRoom)
		for _, status := range []string{"401", "429"} {
			l.refused.WithLabelValues(string(kind), status) // shown as 0 from the start
		}
	}
	registry.MustRegister(l.refused)
	return l
}

// call charges a call to a principal. The error names the time after which a call may
// succeed.
func (l *limits) call(principal string) error {
	l.mu.Lock()
	b := bucket(l.calls, principal, l.rate, l.burst)
	now := l.now()
	l.mu.Unlock()
	if b.AllowN(now, 1) {
		return nil
	}
	wait := time.Duration((1 - b.TokensAt(now)) / float64(l.rate) * float64(time.Second))
	return limited(wait, "the token makes more than %g calls a second, which is its limit", float64(l.rate))
}

// guessed charges a call without a good token to its address and returns the answer:
// refusal, or, once the address has spent its guesses, rate_limited. A good token is
// never refused for the guesses of others at its address.
func (l *limits) guessed(kind guesser, from netip.Prefix, refusal error) error {
	l.mu.Lock()
	b := bucket(l.guesses[kind], from, guessRate, guessBurst)
	now := l.now()
	l.mu.Unlock()
	if b.AllowN(now, 1) {
		l.refused.WithLabelValues(string(kind), "401").Inc()
		return refusal
	}
	l.refused.WithLabelValues(string(kind), "429").Inc()
	return limited(time.Second, "too many calls without a good token from this address; allowed are %d a second",
		guessRate)
}

// bucket returns the bucket of a key, and creates a full one for a new key. The caller
// holds limits.mu.
func bucket[K comparable](of *recent[K, *rate.Limiter], key K, r rate.Limit, burst int) *rate.Limiter {
	b, ok := of.get(key)
	if !ok {
		b = rate.NewLimiter(r, burst)
		of.put(key, b)
	}
	return b
}

// isLimited reports whether err is the answer rate_limited.
func isLimited(err error) bool {
	p, ok := errors.AsType[*Problem](err)
	return ok && p.Code == slugRateLimited
}

// longestRetry bounds Retry-After: a client that sleeps longer would not notice a raised
// limit.
const longestRetry = time.Minute

// limited returns the answer rate_limited: 429 with Retry-After, in whole seconds and at
// least one.
func limited(wait time.Duration, format string, args ...any) error {
	p := problemOf(&berth.Error{Code: berth.CodeCapacity, Slug: slugRateLimited, Message: fmt.Sprintf(format, args...)})
	seconds := (min(max(wait, time.Second), longestRetry) + time.Second - 1) / time.Second
	p.retryAfter = strconv.Itoa(int(seconds))
	return p
}
