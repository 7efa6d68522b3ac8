package spec

import "time"

// Defaults of a job file.
const (
	DefaultCPUs        MilliCPU = 1000
	DefaultMemory      MiB      = 2048
	DefaultStopGrace            = 30 * time.Second
	DefaultLostAfter            = 90 * time.Second
	DefaultKeep                 = 2
	DefaultMaxRetries           = 1
	DefaultMaxRequeues          = 10 // with retry.on_time_limit: requeue
)

// WithDefaults returns the spec with a value in every unset field that has a default, and with a valid
// array.grid written out as array.each. It does not change s, is idempotent, and reports no faults; see
// Validate. Afterwards the pointer fields CPUs, Memory, Priority, Preemptible and StopGrace are not
// nil. A default must not depend on the cluster: the stored spec has to mean the same everywhere.
// Settings of the cluster, such as secrets_as, are resolved at the claim.
func (s Job) WithDefaults() Job {
	if s.Resources.CPUs == nil {
		s.Resources.CPUs = ptr(DefaultCPUs)
	}
	if s.Resources.Memory == nil {
		s.Resources.Memory = ptr(DefaultMemory)
	}
	s = withGroupDefaults(s)
	if s.Members == 0 {
		s.Members = 1
	}
	if s.Priority == nil {
		s.Priority = ptr(PriorityNormal)
	}
	if s.Execution == "" {
		s.Execution = AtLeastOnce
	}
	if s.Preemptible == nil { // after Execution, on which the default depends
		s.Preemptible = ptr(s.Execution != AtMostOne)
	}
	if s.StopGrace == nil {
		s.StopGrace = ptr(Duration(DefaultStopGrace))
	}
	if s.LostAfter == 0 {
		s.LostAfter = Duration(DefaultLostAfter)
	}
	if s.Placement.Site == "" {
		s.Placement.Site = "any"
	}
	if s.Placement.Strategy == "" {
		s.Placement.Strategy = "pack"
	}
	if s.Retry.MaxAttempts == 0 {
		s.Retry.MaxAttempts = DefaultMaxRetries
	}
	if s.Retry.OnOOM == "" {
		s.Retry.OnOOM = "fail"
	}
	// These return copies, as everything below: specs may share pointers.
	s.Retry.Backoff = s.Retry.Backoff.withDefaults()
	s.Stall = s.Stall.withDefaults(s.Checkpoint != nil)
	if s.Checkpoint != nil {
		c := *s.Checkpoint // a copy: the caller's spec stays as it is
		if c.Keep == 0 {
			c.Keep = DefaultKeep
		}
		if c.Best != nil && c.Best.Count == 0 {
			c.Best = &KeepBest{Metric: c.Best.Metric, Mode: c.Best.Mode, Count: 1}
		}
		s.Checkpoint = &c
	}
	if s.Array != nil {
		s.Array = ptr(s.Array.expanded()) // a copy, as above
	}
	s.Notify = withNotifyDefaults(s.Notify)
	return s
}

// ptr returns a pointer to a copy of v, for optional fields.
func ptr[T any](v T) *T { return &v }
