package api

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/swaggest/swgui/v5emb"

	"berth"
	"berth/internal/lib/overload"
	"berth/spec"
)

//go:embed landing.html
var landing string

// pageHandlers serve the routes without a token: the pages, the documentation, and the
// routes of probes and scrapers.
type pageHandlers struct {
	version   string
	metrics   *prometheus.Registry
	ping      func(context.Context) error // of the database
	checks    []Check
	readiness readiness
	scrapers  scrapers
	gate      *gatekeeper
	log       *slog.Logger
}

func (h *pageHandlers) mount(r *router) {
	page := strings.ReplaceAll(landing, "{{version}}", htmlText(h.version))
	probed := []string{http.MethodGet, http.MethodHead} // some probes send HEAD
	r.echo.Match(probed, "/", func(c echo.Context) error {
		c.Response().Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		return c.HTML(http.StatusOK, page)
	})
	docs := v5emb.New("Berth", "/openapi.json", "/docs/")
	r.echo.GET("/docs", func(c echo.Context) error { return c.Redirect(http.StatusMovedPermanently, "/docs/") })
	r.echo.GET("/docs/*", func(c echo.Context) error {
		c.Response().Header().Set("Content-Security-Policy",
			"default-src 'self'; style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline'; img-src "+
				"'self' data:")
		docs.ServeHTTP(c.Response(), c.Request())
		return nil
	})
	r.echo.Match(probed, "/healthz", func(c echo.Context) error { return c.String(http.StatusOK, "ok\n") })
	r.echo.Match(probed, "/readyz", h.ready)
	r.echo.GET("/metrics", h.scrape(promhttp.HandlerFor(h.metrics, promhttp.HandlerOpts{})))
}

// Readiness is the answer of /readyz.
type Readiness struct {
	Ready  bool              `json:"ready"`
	Checks map[string]string `json:"checks"` // by dependency: ok, or the fault
}

// checkPassed is the text of a check whose dependency answers.
const checkPassed = "ok"

// readyTimeout bounds one check of all dependencies, and the wait of a probe for a check.
const readyTimeout = 3 * time.Second

// readyMemory is how long an answer of /readyz is repeated: the route is open to all
// callers, and each check asks three systems. A positive answer is repeated for
// readyRest, while the next check is under way: under load a check takes half a second.
const (
	readyMemory = time.Second
	readyRest   = 3 * time.Second
)

// readiness remembers the last check of the dependencies.
type readiness struct {
	mu   sync.Mutex
	seen Readiness
	at   time.Time     // when seen was complete; zero: never
	look chan struct{} // closed at the end of the check under way; nil: no check
}

// ready reports whether the dependencies answer. 503 asks the load balancer to send
// traffic to other replicas.
func (h *pageHandlers) ready(c echo.Context) error {
	r := h.readiness.get(c.Request().Context(), h.checkAll)
	status := http.StatusOK
	if !r.Ready {
		status = http.StatusServiceUnavailable
		c.Response().Header().Set("Retry-After", "2")
	}
	return writeJSON(c, status, r)
}

// get returns the result of the last check. If that result is too old or negative, get
// waits for the next check: up to readyTimeout, and no longer than ctx.
func (r *readiness) get(ctx context.Context, check func(context.Context) Readiness) Readiness {
	r.mu.Lock()
	defer r.mu.Unlock()
	age := time.Since(r.at)
	if age < readyMemory {
		return r.seen
	}
	if r.look == nil {
		r.look = make(chan struct{})
		go r.run(context.WithoutCancel(ctx), check) // others wait, even if this caller hangs up
	}
	if !r.seen.Ready || age >= readyRest {
		r.await(ctx, r.look)
	}
	return r.seen
}

// await waits for a check, without the lock.
func (r *readiness) await(ctx context.Context, look <-chan struct{}) {
	r.mu.Unlock()
	defer r.mu.Lock()
	late := time.NewTimer(readyTimeout)
	defer late.Stop()
	select {
	case <-look:
	case <-ctx.Done():
	case <-late.C:
	}
}

// run stores the result of one check and wakes all waiting probes.
func (r *readiness) run(ctx context.Context, check func(context.Context) Readiness) {
	seen := check(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen, r.at = seen, time.Now()
	close(r.look)
	r.look = nil
}

// checkAll asks every dependency at once, and waits for each up to readyTimeout. A failed
// optional dependency is shown, but leaves the result positive. The checks wait for no connection
// of users' calls or of work: a replica that is busy is still ready.
func (h *pageHandlers) checkAll(ctx context.Context) Readiness {
	ctx, cancel := context.WithTimeout(overload.As(ctx, overload.Vital), readyTimeout)
	defer cancel()
	checks := append([]Check{{Name: "database", Run: h.ping}}, h.checks...)
	type result struct {
		of  int
		err error
	}
	results := make([]error, len(checks))
	answers := make(chan result, len(checks)) // room for all, so that a late check can end
	for i, check := range checks {
		results[i] = context.DeadlineExceeded
		go func() { answers <- result{i, check.Run(ctx)} }()
	}
	for left := len(checks); left > 0; left-- {
		select {
		case a := <-answers:
			results[a.of] = a.err
		case <-ctx.Done():
			left = 1 // the rest is late
		}
	}
	r := Readiness{Ready: true, Checks: map[string]string{}}
	for i, check := range checks {
		r.Checks[check.Name] = checkPassed
		if results[i] != nil {
			r.Ready = r.Ready && check.Optional
			r.Checks[check.Name] = "does not answer"
			if check.Fault != nil && errors.Is(results[i], check.Fault) {
				r.Checks[check.Name] = check.Fault.Error()
			}
			h.log.Warn("not ready", "dependency", check.Name, "err", results[i])
		}
	}
	return r
}

// scrape opens the metrics to this host, and elsewhere to tokens of admins and of role metrics
// only, since the metrics show every tenant's load. One scrape at a time collects values, since
// each reads the database a dozen times.
func (h *pageHandlers) scrape(page http.Handler) echo.HandlerFunc {
	turn := make(chan struct{}, 1)
	return func(c echo.Context) error {
		if !local(c.Request()) {
			if err := h.mayScrape(c.Request()); err != nil {
				return err
			}
		}
		held, err := collectInTurn(c, turn, page)
		if err != nil {
			return err
		}
		c.Response().WriteHeader(held.status)
		_, err = held.body.WriteTo(c.Response())
		return err
	}
}

// scrapeWait bounds the wait of a scrape for the ones before it. Prometheus gives up after 10 s by
// default.
const scrapeWait = 2 * scrapeTimeout

// collectInTurn keeps the page in memory, so that a scraper that reads slowly does not keep the turn.
func collectInTurn(c echo.Context, turn chan struct{}, page http.Handler) (*heldAnswer, error) {
	ctx, cancel := context.WithTimeout(c.Request().Context(), scrapeWait)
	defer cancel()
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return nil, berth.Errorf(berth.CodeUnavailable, "other scrapes of the metrics are under way; try again")
	}
	defer func() { <-turn }()
	held := &heldAnswer{ResponseWriter: c.Response()}
	page.ServeHTTP(held, c.Request())
	return held, nil
}

// scrapeMemory is how long a token opens the metrics after its last look-up while the database does
// not answer. Without it, the metrics of a scraper on another host would end with the database, and
// so would the alerts that report this outage.
const scrapeMemory = time.Hour

// scrapers remembers the tokens that have opened the metrics, at most scraperRoom of them.
type scrapers struct {
	mu    sync.Mutex
	until map[tokenKey]time.Time
}

const scraperRoom = 100

// mayScrape returns nil for a token that opens the metrics.
func (h *pageHandlers) mayScrape(r *http.Request) error {
	token, _ := bearer(r)
	key := tokenKey(sha256.Sum256([]byte(token)))
	if h.scrapers.knows(key, time.Now()) { // a scraper gives up before a database that hangs
		ctx, cancel := context.WithTimeout(r.Context(), scrapeTimeout)
		defer cancel()
		r = r.WithContext(ctx)
	}
	p, err := h.gate.identify(r)
	if err == nil && p.Role != spec.RoleAdmin && p.Role != spec.RoleMetrics {
		err = berth.Errorf(berth.CodeForbidden,
			"metrics need a token of role metrics or admin; yours has the role %s", p.Role)
	}
	return h.scrapers.judge(key, err, time.Now())
}

// knows reports whether a token has opened the metrics within scrapeMemory.
func (s *scrapers) knows(key tokenKey, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return now.Before(s.until[key])
}

// judge remembers a token that opens the metrics, forgets one that does not, and returns nil for a
// remembered token that could not be looked up. err is the result of the look-up.
func (s *scrapers) judge(key tokenKey, err error, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch code := berth.CodeOf(err); {
	case err == nil:
		if s.until == nil || len(s.until) >= scraperRoom {
			s.until = map[tokenKey]time.Time{}
		}
		s.until[key] = now.Add(scrapeMemory)
	case code == berth.CodeUnauthorized, code == berth.CodeForbidden:
		delete(s.until, key)
	case code == berth.CodeUnavailable || errors.Is(err, context.DeadlineExceeded):
		if now.Before(s.until[key]) {
			return nil
		}
	}
	return err
}
