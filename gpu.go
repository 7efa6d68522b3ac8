package berth

// GPU is one device of a machine, or one MIG slice of a device.
type GPU struct {
	Index     int    `json:"index"`
	UUID      string `json:"uuid"`
	Model     string `json:"model"` // short: H100, A100, H200
	MemoryMiB int64  `json:"memory_mib"`
	Healthy   bool   `json:"healthy"`
	Reason    string `json:"reason,omitempty"` // the fault of an unhealthy device
	// Quarantine reports that the device's fault affects its whole machine. The machine
	// gets no work until an operator makes it available again.
	Quarantine bool `json:"quarantine,omitempty"`
}
