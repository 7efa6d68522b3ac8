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

	"berth"
	"berth/db"
)

// metrics are the measurements of HTTP calls.
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

// middleware times every call. Streams and long-polls count too, under routes of their
// own.
func (m *metrics) middleware(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		began := time.Now()
		err := next(c)
		if err != nil {
			c.Error(err) // so that the status is known
		}
		route := c.Path()
		// A path without a route is one label, or scanners would create a series per
		// path.
		if route == "" {
			route = "none"
		}
		m.seconds.WithLabelValues(method(c.Request().Method), route,
			strconv.Itoa(c.Response().Status)).Observe(time.Since(began).Seconds())
		return nil
	}
}

// method bounds the values of the label: a client may send any word as its method.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodOptions:
		return m
	}
	return "other"
}

// population is a collector that counts rows at the time of a scrape. All replicas export
// the same numbers, except for the counters of collectEnds.
type population struct{ db *db.DB }

var (
	jobsDesc     = prometheus.NewDesc("berth_jobs", "Live jobs by status.", []string{"status"}, nil)
	machinesDesc = prometheus.NewDesc("berth_machines", "Machines by state.", []string{"state"}, nil)

	silentEnginesDesc = prometheus.NewDesc("berth_machines_engine_silent",
		"Machines that get no work because their container engine does not answer.", nil, nil)

	cpusDesc = prometheus.NewDesc("berth_cpu_cores",
		"CPU cores of the machines that are not retired; reserved ones among them.", []string{"kind"}, nil)
	memoryDesc = prometheus.NewDesc("berth_memory_bytes",
		"Memory of the machines that are not retired; what is reserved of it.", []string{"kind"}, nil)
	diskDesc = prometheus.NewDesc("berth_disk_bytes",
		"Disk of the machines that are not retired; what is reserved of it.", []string{"kind"}, nil)
	gpusDesc = prometheus.NewDesc("berth_gpus",
		"GPUs by model: all of them, those that are reserved (shares as parts of one), those out of use.",
		[]string{"model", "kind"}, nil)

	storedDesc = prometheus.NewDesc("berth_tenant_storage_bytes",
		"Stored data of tenants, without tenants below them, by kind.", []string{"tenant", "kind"}, nil)

	endsDesc = prometheus.NewDesc("berth_attempts_ended_total",
		"Attempts that this process has settled, by what became of the job and why.", []string{"next", "reason"}, nil)
	lostDesc = prometheus.NewDesc("berth_lost_gpu_seconds_total",
		"GPU time of attempts that this process has settled which has to be spent again, by why they ended.",
		[]string{"reason"}, nil)
)

// scrapeTimeout bounds the queries of one scrape.
const scrapeTimeout = 3 * time.Second

// Describe sends the descriptions of all exported metrics.
func (p *population) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		jobsDesc, machinesDesc, silentEnginesDesc, cpusDesc, memoryDesc, diskDesc, gpusDesc, storedDesc,
		endsDesc, lostDesc,
	} {
		ch <- d
	}
}

// Collect leaves out metrics that the database does not return in time: a gap is correct,
// a zero would not be.
func (p *population) Collect(ch chan<- prometheus.Metric) {
	p.collectEnds(ch)
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	counts, err := p.db.Cluster.Population(ctx)
	if err != nil {
		return
	}
	stored, err := p.db.Storage.Amounts(ctx)
	if err != nil {
		return
	}
	for _, s := range stored {
		if s.Kind != db.StoredSecrets {
			ch <- prometheus.MustNewConstMetric(storedDesc, prometheus.GaugeValue,
				float64(s.Amount), string(s.Tenant), s.Kind)
		}
	}
	for state, n := range counts.Jobs {
		ch <- prometheus.MustNewConstMetric(jobsDesc, prometheus.GaugeValue, float64(n), string(state))
	}
	for state, n := range counts.Machines {
		ch <- prometheus.MustNewConstMetric(machinesDesc, prometheus.GaugeValue, float64(n), string(state))
	}
	ch <- prometheus.MustNewConstMetric(silentEnginesDesc, prometheus.GaugeValue, float64(counts.SilentEngines))
	gauge := func(d *prometheus.Desc, total, used float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, total, "total")
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, used, "reserved")
	}
	const mib = 1 << 20
	gauge(cpusDesc, float64(counts.Total.CPUMilli)/1000, float64(counts.Used.CPUMilli)/1000)
	gauge(memoryDesc, float64(counts.Total.MemoryMiB)*mib, float64(counts.Used.MemoryMiB)*mib)
	gauge(diskDesc, float64(counts.Total.DiskMiB)*mib, float64(counts.Used.DiskMiB)*mib)
	for model, g := range counts.GPUs {
		for kind, n := range map[string]float64{"total": float64(g.Total), "reserved": float64(g.UsedMilli) / 1000,
			"unhealthy": float64(g.Unhealthy)} {
			ch <- prometheus.MustNewConstMetric(gpusDesc, prometheus.GaugeValue, n, model, kind)
		}
	}
}

// collectEnds exports the number of attempts that this process has settled; the sum over
// all processes is the cluster's number. Only attempts that are retried count as lost GPU
// time.
func (p *population) collectEnds(ch chan<- prometheus.Metric) {
	lost := map[berth.ReasonCode]float64{}
	for end, n := range p.db.Attempts.EndCounts() {
		ch <- prometheus.MustNewConstMetric(endsDesc, prometheus.CounterValue, float64(n.Attempts), string(end.Next),
			string(end.Reason))
		if end.Next == berth.Retrying {
			lost[end.Reason] += n.LostGPUSeconds
		}
	}
	for reason, seconds := range lost {
		ch <- prometheus.MustNewConstMetric(lostDesc, prometheus.CounterValue, seconds, string(reason))
	}
}

// local reports whether a request comes from this host directly, not through a proxy on
// this host. Such a proxy forwards requests of other hosts and adds one of these headers.
func local(r *http.Request) bool {
	if r.Header.Get("X-Forwarded-For") != "" || r.Header.Get("Forwarded") != "" {
		return false
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}

// htmlText escapes a text for HTML.
func htmlText(s string) string { return html.EscapeString(s) }
