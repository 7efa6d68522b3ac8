package api

import (
	"context"
	"html"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

	"berth/db"
)

type metrics struct {
	seconds *prometheus.HistogramVec
}

func newMetrics(r *prometheus.Registry, d *db.DB) *metrics {
	m := &metrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "berth_http_request_seconds",
			Help:    "How long calls took, by method, route and status.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"method", "route", "status"}),
	}
	r.MustRegister(m.seconds, &population{db: d})
	return m
}

// middleware times every call. Streams and long-polls count too, under routes
// of their own.
func (m *metrics) middleware(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		began := time.Now()
		err := next(c)
		if err != nil {
			c.Error(err) // so that the status is known
		}
		route := c.Path()
		if route == "" {
			route = "none"
		}
		m.seconds.WithLabelValues(method(c.Request().Method), route, strconv.Itoa(c.Response().Status)).Observe(time.Since(began).Seconds())
		return nil
	}
}

// method bounds the label: anybody may send a word of his own.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return m
	}
	return "other"
}

// population counts rows when it is asked.
type population struct{ db *db.DB }

var (
	jobsDesc     = prometheus.NewDesc("berth_jobs", "Live jobs by status.", []string{"status"}, nil)
	machinesDesc = prometheus.NewDesc("berth_machines", "Machines by state.", []string{"state"}, nil)
)

const scrapeTimeout = 3 * time.Second

func (p *population) Describe(ch chan<- *prometheus.Desc) {
	ch <- jobsDesc
	ch <- machinesDesc
}

// Collect leaves out what the database does not answer in time: a gap is true,
// a zero would not be.
func (p *population) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	counts, err := p.db.Population(ctx)
	if err != nil {
		return
	}
	for state, n := range counts.Jobs {
		ch <- prometheus.MustNewConstMetric(jobsDesc, prometheus.GaugeValue, float64(n), string(state))
	}
	for state, n := range counts.Machines {
		ch <- prometheus.MustNewConstMetric(machinesDesc, prometheus.GaugeValue, float64(n), string(state))
	}
}

// local reports whether a request comes from this host, and not through a
// proxy on it.
func local(r *http.Request) bool {
	if r.Header.Get("X-Forwarded-For") != "" || r.Header.Get("Forwarded") != "" {
		return false
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}

func htmlText(s string) string { return html.EscapeString(s) }
