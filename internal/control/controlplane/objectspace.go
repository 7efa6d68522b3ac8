package controlplane

import (
	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/control/blob"
)

// objectSpace collects the free space of an object store in a folder. Other stores have no limit
// that this process could measure. store is nil without an object store.
type objectSpace struct {
	store *blob.Store
}

var objectFreeDesc = prometheus.NewDesc("berth_object_store_free_ratio",
	"Free share of the file system of an object store in a folder, in bytes or inodes, the smaller one; no series for "+
		"other stores.", nil, nil)

// Describe implements prometheus.Collector.
func (o *objectSpace) Describe(ch chan<- *prometheus.Desc) { ch <- objectFreeDesc }

// Collect implements prometheus.Collector.
func (o *objectSpace) Collect(ch chan<- prometheus.Metric) {
	if o.store == nil {
		return
	}
	if free, ok := o.store.FreeShare(); ok {
		ch <- prometheus.MustNewConstMetric(objectFreeDesc, prometheus.GaugeValue, free)
	}
}
