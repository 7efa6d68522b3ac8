package controlplane

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"berth/activities/wait"
	"berth/api"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/digest"
	"berth/internal/control/notify"
	"berth/internal/control/scheduler"
	"berth/internal/control/webhook"
	"berth/internal/lib/golden"
	"berth/internal/lib/metricsdoc"
)

// newRegistered returns the metrics of a process with all roles before the first call.
func newRegistered(t *testing.T) []metricsdoc.Metric {
	t.Helper()
	d, err := db.Open(t.Context(), dbtest.URL(t), db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	a := &assembly{ControlPlane: &ControlPlane{log: slog.New(slog.DiscardHandler)}, db: d}
	a.newRegistry()
	collectors := []prometheus.Collector{scheduler.NewMetrics(), &waiting{wait.New(nil, nil, wait.Options{})}}
	a.registry.MustRegister(collectors...)
	webhook.New(webhook.Options{DB: d, Logger: a.log, Metrics: a.registry})
	digest.New(digest.Options{DB: d, Registries: &digest.Registries{}, Logger: a.log, Metrics: a.registry})
	notify.New(notify.Options{DB: d, Logger: a.log, Metrics: a.registry})
	server, err := api.New(api.Deps{DB: d, Control: d.Jobs, Logger: a.log, Version: "1.2.3", Metrics: a.registry})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return metricsdoc.List(t, a.registry)
}

// absentAtStart are the metrics without a series at the start, with their kinds: series of
// labels that only rows or calls can name.
var absentAtStart = map[string]string{
	"berth_gpus":                 "gauge",     // by model
	"berth_tenant_storage_bytes": "gauge",     // by tenant with stored data
	"berth_http_request_seconds": "histogram", // by route

	"berth_machine_disk_free_ratio":     "gauge", // by machine
	"berth_object_store_free_ratio":     "gauge", // of a store in a folder
	"berth_tls_certificate_end_seconds": "gauge", // of an API with TLS
	"berth_cloud_spend_dollars":         "gauge", // by tenant with a burst policy

	"berth_cloud_sweeps_total": "counter", // by provider of the cloud file
}

// TestReferenceOfMetrics writes and compares docs/reference/metrics.md. A metric with known
// labels has all its series from the start: a rate over a series that appears with its first
// event misses that event.
func TestReferenceOfMetrics(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("# Metrics\n\nGenerated from the code by `go test ./internal/control/controlplane -run Reference -update`.\n" +
		"[../operate/metrics.md](../operate/metrics.md) explains access and alarms. The standard metrics `go_*` and `process_*` are served too.\n" +
		"[agent-metrics.md](agent-metrics.md) has the metrics of agents.\n\n" +
		"All series of a metric exist from the start of a process, as 0 before the first event. Exceptions, whose labels only rows or calls\n" +
		"can name: `berth_cloud_spend_dollars`, `berth_gpus`, `berth_tenant_storage_bytes`, `berth_machine_disk_free_ratio` and `berth_http_request_seconds`.\n" +
		"`berth_object_store_free_ratio`, `berth_tls_certificate_end_seconds` and `berth_cloud_sweeps_total` exist where there is a folder, a\n" +
		"certificate or a cloud file, the last one as 0 for each provider of the file.\n" +
		"Metrics by tenant name at most 500 tenants.\n\n")
	b.WriteString(metricsdoc.Table(t, newRegistered(t), absentAtStart))
	golden.Check(t, "../../../docs/reference/metrics.md", b.String())
}
