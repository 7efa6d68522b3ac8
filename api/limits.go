package api

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/labstack/echo/v4"
	"golang.org/x/time/rate"

	"berth"
)

// maxBody is the longest body of a user's call; job files are far smaller
// (berth.MaxSpecBytes). drainBody is how much of a longer one is read away, so
// that the client gets to see the answer instead of a broken connection.
const (
	maxBody   = 1 << 20
	drainBody = 32 << 20
)

var tooLarge = fmt.Sprintf("the body is longer than %d bytes", maxBody)

// limitBody refuses bodies of users' calls above maxBody. The agents' routes
// carry objects and set limits of their own.
func limitBody(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if strings.HasPrefix(r.URL.Path, "/agent/") || carriesData(r) {
			return next(c)
		}
		if r.ContentLength > maxBody {
			_, _ = io.CopyN(io.Discard, r.Body, drainBody)
			return &berth.Error{Code: berth.CodeInvalid, Slug: slugTooLarge, Message: tooLarge}
		}
		r.Body = &drained{r.Body}
		return next(c)
	}
}

// carriesData reports whether a user's call carries archives: those have limits
// of their own, and take their time.
func carriesData(r *http.Request) bool {
	return r.Method == http.MethodPost && r.URL.Path == "/v1/uploads" ||
		r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/v1/jobs/") && strings.Contains(r.URL.Path, "/outputs/")
}

// drained reads away what is left of a body when it is closed.
type drained struct{ io.ReadCloser }

func (d *drained) Close() error {
	_, _ = io.CopyN(io.Discard, d.ReadCloser, drainBody)
	return d.ReadCloser.Close()
}

// limits hold one token bucket for each principal, and one for each address
// that sends wrong tokens.
type limits struct {
	rate  rate.Limit
	burst int

	mu      sync.Mutex
	calls   map[string]*rate.Limiter
	guesses map[string]*rate.Limiter
}

const (
	guessRate  = 10
	guessBurst = 100
	limitRoom  = 50_000
)

func newLimits(r float64, burst int) *limits {
	return &limits{rate: rate.Limit(r), burst: max(burst, 1), calls: map[string]*rate.Limiter{}, guesses: map[string]*rate.Limiter{}}
}

func (l *limits) allow(principal string) bool {
	return l.bucket(l.calls, principal, l.rate, l.burst).Allow()
}

// guessing reports whether an address has spent its wrong tokens.
func (l *limits) guessing(host string) bool {
	l.mu.Lock()
	b, ok := l.guesses[host]
	l.mu.Unlock()
	return ok && b.Tokens() < 1
}

func (l *limits) guessed(host string) {
	l.bucket(l.guesses, host, guessRate, guessBurst).Allow()
}

// bucket forgets everybody when there are too many: a full bucket is the state
// of whoever has been quiet, so little is lost.
func (l *limits) bucket(of map[string]*rate.Limiter, key string, r rate.Limit, burst int) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := of[key]
	if !ok {
		if len(of) >= limitRoom {
			clear(of)
		}
		b = rate.NewLimiter(r, burst)
		of[key] = b
	}
	return b
}
