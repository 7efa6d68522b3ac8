package resolver

import (
	"net/netip"
	"sync"
	"time"
)

// Limits of the questions of one container, and of all together. The table limits the packets of a container, so that
// a flood costs the agent nothing.
const (
	perSecond    = 50  // questions of a container, in the long run
	burst        = 200 // questions of a container at once
	maxPending   = 32  // questions of a container that wait for an answer
	maxAll       = 512 // questions of all containers that wait for an answer
	maxConns     = 8   // TCP connections of a container
	maxAllConns  = 256 // TCP connections of all containers
	forgetClient = time.Minute
)

// limiter counts the questions and the connections of containers, by address.
type limiter struct {
	now func() time.Time

	mu      sync.Mutex
	pending int
	conns   int
	clients map[netip.Addr]*client
	swept   time.Time
}

// client is the account of one container.
type client struct {
	tokens  float64
	at      time.Time // of tokens
	pending int
	conns   int
}

func newLimiter(now func() time.Time) *limiter {
	return &limiter{now: now, clients: map[netip.Addr]*client{}}
}

// of returns the account of a container. l.mu is held.
func (l *limiter) of(a netip.Addr) *client {
	now := l.now()
	if now.Sub(l.swept) > forgetClient { // a client without questions for this long has all its tokens
		for other, c := range l.clients {
			if c.pending == 0 && c.conns == 0 && now.Sub(c.at) > forgetClient {
				delete(l.clients, other)
			}
		}
		l.swept = now
	}
	c := l.clients[a]
	if c == nil {
		c = &client{tokens: burst, at: now}
		l.clients[a] = c
	}
	c.tokens = min(burst, c.tokens+now.Sub(c.at).Seconds()*perSecond)
	c.at = now
	return c
}

// take reports whether a container may ask a question now. done must be called after the answer.
func (l *limiter) take(a netip.Addr) (done func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.of(a)
	if c.tokens < 1 || c.pending >= maxPending || l.pending >= maxAll {
		return nil, false
	}
	c.tokens--
	c.pending++
	l.pending++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		c.pending--
		l.pending--
	}, true
}

// connect reports whether a container may open a TCP connection now. done must be called after its end.
func (l *limiter) connect(a netip.Addr) (done func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.of(a)
	if c.conns >= maxConns || l.conns >= maxAllConns {
		return nil, false
	}
	c.conns++
	l.conns++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		c.conns--
		l.conns--
	}, true
}
