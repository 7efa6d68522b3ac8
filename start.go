package berth

// Start is the leader's decision to start one attempt of a job: the data that the
// commit writes, and the versions of the rows behind the decision. It is committed
// only while all these versions are current.
type Start struct {
	Job     JobID
	Version int64   // of the job's row
	Attempt int     // number of the new attempt
	Ranks   []Grant // one for each member, by rank

	// Alternative is the number of the hardware that the job gets: 0 for its resources, and from 1 for its
	// alternatives. It is 0 for a job without alternatives.
	Alternative int `json:",omitempty"`

	// Groups are the numbers of members of the groups of unlike members, by rank. It is nil if all members are
	// alike, so that they may exchange their places.
	Groups []int `json:",omitempty"`
}

// Grant is the capacity of one member on one machine.
type Grant struct {
	Machine  MachineID
	Epoch    int64 // of the machine's row; a machine that registered again has another one
	Capacity Capacity
	GPUs     []DeviceShare

	// Tenant is the tenant of the job, in a plan for a cluster in which some machines are used by one tenant at a
	// time; otherwise empty.
	Tenant TenantID `json:"-"`
}

// DeviceShare is a share of one device of a machine.
type DeviceShare struct {
	Index int   // of the device on its machine
	Milli int64 // thousandths; 1000 is the whole device

	// Tenant is the tenant of the job, in a plan in which tenants do not share devices; otherwise
	// empty.
	Tenant TenantID `json:"-"`
}

// Fits reports whether free is at least c in every resource.
func (c Capacity) Fits(free Capacity) bool {
	return c.CPUMilli <= free.CPUMilli && c.MemoryMiB <= free.MemoryMiB && c.DiskMiB <= free.DiskMiB &&
		c.GPUMilli <= free.GPUMilli
}
