package api

import (
	"context"
	_ "embed"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/swaggest/swgui/v5emb"

	"berth"
)

//go:embed landing.html
var landing string

// registerPages mounts what needs no token: the pages, the documentation, and
// what probes and scrapers ask.
func (s *Server) registerPages() {
	page := strings.ReplaceAll(landing, "{{version}}", htmlText(s.Version))
	probed := []string{http.MethodGet, http.MethodHead} // probes ask for heads
	s.echo.Match(probed, "/", func(c echo.Context) error {
		c.Response().Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		return c.HTML(http.StatusOK, page)
	})
	docs := v5emb.New("Berth", "/openapi.json", "/docs/")
	s.echo.GET("/docs", func(c echo.Context) error { return c.Redirect(http.StatusMovedPermanently, "/docs/") })
	s.echo.GET("/docs/*", func(c echo.Context) error {
		c.Response().Header().Set("Content-Security-Policy", "default-src 'self'; style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline'; img-src 'self' data:")
		docs.ServeHTTP(c.Response(), c.Request())
		return nil
	})
	s.echo.Match(probed, "/healthz", func(c echo.Context) error { return c.String(http.StatusOK, "ok\n") })
	s.echo.Match(probed, "/readyz", s.ready)
	s.echo.GET("/metrics", s.scrape(promhttp.HandlerFor(s.Metrics, promhttp.HandlerOpts{})))
}

// Readiness is the answer of /readyz.
type Readiness struct {
	Ready  bool              `json:"ready"`
	Checks map[string]string `json:"checks"` // by dependency: ok, or what is wrong
}

const readyTimeout = 3 * time.Second

// ready asks every dependency at once. 503 means: send traffic elsewhere.
func (s *Server) ready(c echo.Context) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), readyTimeout)
	defer cancel()
	checks := append([]Check{{Name: "database", Run: s.DB.Ping}}, s.Checks...)
	results := make([]error, len(checks))
	done := make(chan struct{})
	for i, check := range checks {
		go func() {
			results[i] = check.Run(ctx)
			done <- struct{}{}
		}()
	}
	for range checks {
		<-done
	}
	r := Readiness{Ready: true, Checks: map[string]string{}}
	for i, check := range checks {
		r.Checks[check.Name] = "ok"
		if results[i] != nil {
			r.Ready = r.Ready && check.Optional
			r.Checks[check.Name] = "does not answer"
			s.Logger.Warn("not ready", "dependency", check.Name, "err", results[i])
		}
	}
	status := http.StatusOK
	if !r.Ready {
		status = http.StatusServiceUnavailable
		c.Response().Header().Set("Retry-After", "2")
	}
	return writeJSON(c, status, r)
}

// scrape opens the metrics to this host, and to an admin's token from anywhere
// else: they tell of every tenant's load.
func (s *Server) scrape(h http.Handler) echo.HandlerFunc {
	return func(c echo.Context) error {
		if !local(c.Request()) {
			p, err := s.identify(c.Request())
			if err != nil {
				return err
			}
			if p.Role != berth.RoleAdmin {
				return berth.Errorf(berth.CodeForbidden, "metrics are for tokens of role admin")
			}
		}
		h.ServeHTTP(c.Response(), c.Request())
		return nil
	}
}
