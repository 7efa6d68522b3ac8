package api

import (
	"context"
	_ "embed"
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
// optional dependency is shown, but leaves the result positive.
func (h *pageHandlers) checkAll(ctx context.Context) Readiness {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
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
		r.Checks[check.Name] = "ok"
		if results[i] != nil {
			r.Ready = r.Ready && check.Optional
			r.Checks[check.Name] = "does not answer"
			h.log.Warn("not ready", "dependency", check.Name, "err", results[i])
		}
	}
	return r
}

// scrape opens the metrics to this host, and elsewhere to tokens of admins and of role metrics
// only, since the metrics show every tenant's load.
func (h *pageHandlers) scrape(page http.Handler) echo.HandlerFunc {
	return func(c echo.Context) error {
		if !local(c.Request()) {
			p, err := h.gate.identify(c.Request())
			if err != nil {
				return err
			}
			if p.Role != spec.RoleAdmin && p.Role != spec.RoleMetrics {
				return berth.Errorf(berth.CodeForbidden,
					"metrics need a token of role metrics or admin; yours has the role %s", p.Role)
			}
		}
		page.ServeHTTP(c.Response(), c.Request())
		return nil
	}
}
