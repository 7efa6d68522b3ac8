package api

import (
	"cmp"
	"context"
	"html"
	"maps"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/internal/lib/overload"
)

// metrics are the measurements of HTTP calls.
type metrics struct {
	seconds *prometheus.HistogramVec
}

func newMetrics(r *prometheus.Registry, d *db.DB, version string) *metrics {
	m := &metrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "berth_http_request_seconds",
			Help:    "Duration of calls, by method, route and status.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"method", "route", "status"}),
	}
	r.MustRegister(m.seconds, &population{db: d, version: version})
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
type population struct {
	db      *db.DB
	version string
}

var (
	jobsDesc     = prometheus.NewDesc("berth_jobs", "Live jobs by status.", []string{"status"}, nil)
	machinesDesc = prometheus.NewDesc("berth_machines", "Machines by state.", []string{"state"}, nil)

	tenantJobsDesc = prometheus.NewDesc("berth_tenant_jobs",
		"Live jobs of a tenant, without tenants below it: waiting for a place, or running.",
		[]string{"tenant", "state"}, nil)
	oldestDesc = prometheus.NewDesc("berth_oldest_waiting_job_seconds",
		"Age of the longest wait of a job that may be placed, in its present status; 0 if none waits.", nil, nil)
	tenantOldestDesc = prometheus.NewDesc("berth_tenant_oldest_waiting_job_seconds",
		"Age of the longest wait of a tenant's job that may be placed; 0 if none waits.", []string{"tenant"}, nil)
	buildDesc = prometheus.NewDesc("berth_build_info", "1, with the version of this process.",
		[]string{"version", "go_version"}, nil)

	silentEnginesDesc = prometheus.NewDesc("berth_machines_engine_silent",
		"Machines that get no work because their container engine does not answer.", nil, nil)

	credentialsDesc = prometheus.NewDesc("berth_machine_credentials",
		"Machines in service by the condition of their credential: ended, late (its renewal is overdue), current, or "+
			"keyless (of an agent without a key).", []string{"state"}, nil)

	renewalsDesc = prometheus.NewDesc("berth_machine_renewals_overdue",
		"Machines in contact whose credential is late: their agents do not renew it.", nil, nil)
	silentDesc = prometheus.NewDesc("berth_machines_silent",
		"Machines that are suspect or lost, without drained machines that hold no work and machines in maintenance.",
		nil, nil)

	cpusDesc = prometheus.NewDesc("berth_cpu_cores",
		"CPU cores of the machines that are not retired: total, reserved, and used by jobs.", []string{"kind"}, nil)
	memoryDesc = prometheus.NewDesc("berth_memory_bytes",
		"Memory of the machines that are not retired: total, reserved, and used by jobs.", []string{"kind"}, nil)
	diskDesc = prometheus.NewDesc("berth_disk_bytes",
		"Disk of the machines that are not retired: total, and reserved.", []string{"kind"}, nil)
	gpusDesc = prometheus.NewDesc("berth_gpus",
		"GPUs by model: total, reserved (shares as parts of one), unhealthy (out of use), and busy as measured.",
		[]string{"model", "kind"}, nil)

	storedDesc = prometheus.NewDesc("berth_tenant_storage_bytes",
		"Stored data of tenants, without tenants below them, by kind.", []string{"tenant", "kind"}, nil)

	ledDesc = prometheus.NewDesc("berth_leader_present",
		"1 while any process has the lead, else 0.", nil, nil)
	webhooksDesc = prometheus.NewDesc("berth_webhooks_waiting",
		"Calls of webhooks that are still to be made, those after failed tries among them.", nil, nil)
	overdueDesc = prometheus.NewDesc("berth_webhooks_overdue_seconds",
		"Delay of the webhook call that is overdue the longest; 0 if none is overdue.", nil, nil)
	notificationsDesc = prometheus.NewDesc("berth_notifications_waiting",
		"Notifications of channels that are not delivered yet, those after failed tries among them.", nil, nil)
	lateDesc = prometheus.NewDesc("berth_notifications_overdue_seconds",
		"Delay of the message to a channel that is overdue the longest; 0 if none is overdue.", nil, nil)
	backupDesc = prometheus.NewDesc("berth_backup_age_seconds",
		"Time since the start of the newest complete backup by berthd backup create; without one, since the creation "+
			"of the cluster.", nil, nil)
	diskFreeDesc = prometheus.NewDesc("berth_machine_disk_free_ratio",
		"Free share of a machine's disk, in bytes or inodes, the smaller one: of the file systems of jobs and images.",
		[]string{"machine"}, nil)
	spendDesc = prometheus.NewDesc("berth_cloud_spend_dollars",
		"Spend of a tenant with a burst policy, and of all tenants below it, for machines of clouds in the present "+
			"period, in US dollars: reserved, settled, and if there is a limit the limit, and its levels warn and "+
			"stop_new.", []string{"tenant", "kind"}, nil)

	endsDesc = prometheus.NewDesc("berth_attempts_ended_total",
		"Attempts that this process has settled, by the job's next status and the reason's code.",
		[]string{"next", "reason"}, nil)
	lostDesc = prometheus.NewDesc("berth_lost_gpu_seconds_total",
		"Lost GPU time of repeated attempts that this process has settled, by the reason's code.",
		[]string{"reason"}, nil)
)

// scrapeTimeout bounds the queries of one scrape.
const scrapeTimeout = 3 * time.Second

// scraping returns the context of a scrape's queries. They are reads: as work they would go before
// the first steps of jobs, on the connections that an overload keeps busy.
func scraping() context.Context { return overload.As(context.Background(), overload.Read) }

// Describe sends the descriptions of all exported metrics.
func (p *population) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		jobsDesc, machinesDesc, tenantJobsDesc, oldestDesc, tenantOldestDesc, buildDesc, silentEnginesDesc,
		silentDesc, credentialsDesc, renewalsDesc, cpusDesc, memoryDesc, diskDesc, gpusDesc, storedDesc, spendDesc,
		ledDesc, webhooksDesc, overdueDesc, notificationsDesc, lateDesc, backupDesc, diskFreeDesc,
		endsDesc, lostDesc,
	} {
		ch <- d
	}
}

// maxSpenders bounds the tenants whose spend is exported. Beyond it, those with the smallest spend are left out.
const maxSpenders = 500

// collectSpend sends the spend of each tenant, also if it is 0.
func collectSpend(ch chan<- prometheus.Metric, spent map[berth.TenantID]db.Spent) {
	tenants := slices.SortedFunc(maps.Keys(spent), func(a, b berth.TenantID) int {
		x, y := spent[a], spent[b]
		return cmp.Or(cmp.Compare(y.Reserved+y.Settled, x.Reserved+x.Settled), cmp.Compare(a, b))
	})
	for _, tenant := range tenants[:min(len(tenants), maxSpenders)] {
		s := spent[tenant]
		kinds := map[string]float64{"reserved": s.Reserved, "settled": s.Settled}
		if s.Limit > 0 {
			kinds["limit"], kinds["warn"], kinds["stop_new"] = s.Limit, s.Warn, s.StopNew
		}
		for kind, dollars := range kinds {
			ch <- prometheus.MustNewConstMetric(spendDesc, prometheus.GaugeValue, dollars, string(tenant), kind)
		}
	}
}

// Collect leaves out metrics that the database does not return in time: a gap is correct,
// a zero would not be.
func (p *population) Collect(ch chan<- prometheus.Metric) {
	p.collectEnds(ch)
	ch <- prometheus.MustNewConstMetric(buildDesc, prometheus.GaugeValue, 1, p.version, runtime.Version())
	ctx, cancel := context.WithTimeout(scraping(), scrapeTimeout)
	defer cancel()
	counts, err := p.db.Cluster.Population(ctx)
	if err != nil {
		return
	}
	stored, err := p.db.Storage.Amounts(ctx)
	if err != nil {
		return
	}
	backlog, err := p.db.Outbox.Backlog(ctx)
	if err != nil {
		return
	}
	messages, err := p.db.Channels.Backlog(ctx)
	if err != nil {
		return
	}
	use, err := p.db.Machines.FleetUse(ctx)
	if err != nil {
		return
	}
	backup, err := p.db.Backups.Age(ctx)
	if err != nil {
		return
	}
	ch <- prometheus.MustNewConstMetric(backupDesc, prometheus.GaugeValue, backup.Seconds())
	ch <- prometheus.MustNewConstMetric(webhooksDesc, prometheus.GaugeValue, float64(backlog.Waiting))
	ch <- prometheus.MustNewConstMetric(overdueDesc, prometheus.GaugeValue, backlog.Overdue.Seconds())
	ch <- prometheus.MustNewConstMetric(notificationsDesc, prometheus.GaugeValue, float64(messages.Waiting))
	ch <- prometheus.MustNewConstMetric(lateDesc, prometheus.GaugeValue, messages.Overdue.Seconds())
	collectUse(ch, use)
	credentials, err := p.db.Tokens.Credentials(ctx)
	if err != nil {
		return
	}
	for state, n := range credentials.States {
		ch <- prometheus.MustNewConstMetric(credentialsDesc, prometheus.GaugeValue, float64(n), state)
	}
	ch <- prometheus.MustNewConstMetric(renewalsDesc, prometheus.GaugeValue, float64(credentials.Overdue))
	for _, s := range stored {
		if s.Kind != db.StoredSecrets {
			ch <- prometheus.MustNewConstMetric(storedDesc, prometheus.GaugeValue,
				float64(s.Amount), string(s.Tenant), s.Kind)
		}
	}
	spent, err := p.db.Spend.Of(ctx, time.Now())
	if err != nil {
		return
	}
	collectSpend(ch, spent)
	collectPopulation(ch, counts)
}

// collectPopulation exports the numbers of jobs and machines, and the capacity of the machines.
func collectPopulation(ch chan<- prometheus.Metric, counts db.Population) {
	for state, n := range counts.Jobs {
		ch <- prometheus.MustNewConstMetric(jobsDesc, prometheus.GaugeValue, float64(n), string(state))
	}
	collectTenants(ch, counts.Tenants, time.Now())
	for state, n := range counts.Machines {
		ch <- prometheus.MustNewConstMetric(machinesDesc, prometheus.GaugeValue, float64(n), string(state))
	}
	led := 0.0
	if counts.Led {
		led = 1
	}
	ch <- prometheus.MustNewConstMetric(ledDesc, prometheus.GaugeValue, led)
	ch <- prometheus.MustNewConstMetric(silentDesc, prometheus.GaugeValue, float64(counts.Silent))
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

// collectUse exports the measured use of the machines.
func collectUse(ch chan<- prometheus.Metric, use db.FleetUse) {
	const mib = 1 << 20
	ch <- prometheus.MustNewConstMetric(cpusDesc, prometheus.GaugeValue, float64(use.CPUMilli)/1000, "used")
	ch <- prometheus.MustNewConstMetric(memoryDesc, prometheus.GaugeValue, float64(use.MemoryMiB)*mib, "used")
	for model, busy := range use.BusyGPUs {
		ch <- prometheus.MustNewConstMetric(gpusDesc, prometheus.GaugeValue, busy, model, "busy")
	}
	for machine, share := range use.FreeDisk {
		ch <- prometheus.MustNewConstMetric(diskFreeDesc, prometheus.GaugeValue, share, string(machine))
	}
}

// collectTenants exports the live jobs of each tenant and the longest waits.
func collectTenants(ch chan<- prometheus.Metric, tenants map[berth.TenantID]db.TenantPopulation, now time.Time) {
	longest := 0.0
	jobs := func(tenant berth.TenantID, n int, state string) {
		ch <- prometheus.MustNewConstMetric(tenantJobsDesc, prometheus.GaugeValue, float64(n), string(tenant), state)
	}
	for id, t := range tenants {
		age := 0.0
		if !t.Oldest.IsZero() {
			age = max(0, now.Sub(t.Oldest).Seconds())
		}
		longest = max(longest, age)
		ch <- prometheus.MustNewConstMetric(tenantOldestDesc, prometheus.GaugeValue, age, string(id))
		jobs(id, t.Waiting, "waiting")
		jobs(id, t.Running, "running")
	}
	ch <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, longest)
}

// plannedEnds are the outcomes that the rules of the failure classification lead to. They are
// exported as 0 before the first attempt with that outcome, so that a rate sees its start.
func plannedEnds() map[db.End]db.EndCount {
	ends := map[db.End]db.EndCount{}
	for _, r := range failure.Rules {
		ends[db.End{Next: r.Next, Reason: r.Reason}] = db.EndCount{}
		// A retry whose budget is spent fails with the reason of the rule.
		if r.Next == berth.Retrying {
			ends[db.End{Next: berth.Failed, Reason: r.Reason}] = db.EndCount{}
		}
	}
	return ends
}

// collectEnds exports the number of attempts that this process has settled; the sum over
// all processes is the cluster's number. Only attempts that are retried count as lost GPU
// time.
func (p *population) collectEnds(ch chan<- prometheus.Metric) {
	lost := map[berth.ReasonCode]float64{}
	ends := plannedEnds()
	maps.Copy(ends, p.db.Attempts.EndCounts())
	for end, n := range ends {
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
