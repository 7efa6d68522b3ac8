package berth

// Measured summarizes the samples of a member's resource usage in one attempt. Means are
// over Seconds, the sampled part of the run.
type Measured struct {
	Member        int      `json:"member"`
	Seconds       float64  `json:"seconds" doc:"sampled part of the run"`
	CPUMean       float64  `json:"cpu_mean" doc:"cores"`
	MemoryPeak    int64    `json:"memory_peak,omitempty" doc:"bytes"`
	DiskRead      int64    `json:"disk_read,omitempty" doc:"bytes"`
	DiskWritten   int64    `json:"disk_written,omitempty" doc:"bytes"`
	Received      int64    `json:"network_received,omitempty" doc:"bytes"`
	Sent          int64    `json:"network_sent,omitempty" doc:"bytes"`
	GPUMean       *float64 `json:"gpu_mean,omitempty" doc:"part of the time in which its GPUs were busy, 0 to 1"`
	GPUMemoryPeak int64    `json:"gpu_memory_peak,omitempty" doc:"bytes, of the device that had most in use"`
}
