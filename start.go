package berth

// Start is the leader's decision to begin one attempt of a job: the data that the
// commit writes, and the versions of the rows behind the decision. It is committed
// only while all these versions are current.
type Start struct {
	Job     JobID
	Version int64 // of the job's row
	Attempt int   // that begins
	Ranks   []Grant
}

// Grant is the place of one member.
type Grant struct {
	Machine  MachineID
	Epoch    int64 // of the machine
	Capacity Capacity
	GPUs     []DeviceShare
}

// DeviceShare is a part of one device of a machine; 1000 is the whole.
type DeviceShare struct {
	Index int
	Milli int64
}

// Fits reports whether c can be taken from free.
func (c Capacity) Fits(free Capacity) bool {
	return c.CPUMilli <= free.CPUMilli && c.MemoryMiB <= free.MemoryMiB && c.DiskMiB <= free.DiskMiB &&
		c.GPUMilli <= free.GPUMilli
}
