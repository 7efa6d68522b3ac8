package fit

import (
	"slices"

	"berth"
	"berth/placement/cluster"
)

// AsksForAll reports whether class c requests at least as much as class o of every
// resource, so that a place for c is one for o. Shares of different tenants do not compare: each
// tenant may share other devices. Neither do classes of tenants that may use other machines.
func AsksForAll(c *cluster.Class, o *cluster.Class) bool {
	return o.Capacity.Fits(c.Capacity) && o.Request.GPUs <= c.Request.GPUs &&
		o.Request.GPUMilli <= c.Request.GPUMilli &&
		(o.Sharer == cluster.NoSharer || o.Sharer == c.Sharer || c.Request.GPUMilli == cluster.Whole) &&
		(o.OfTenant == "" || o.OfTenant == c.OfTenant)
}

// UsableDevices returns the number of devices that the request could use on an empty
// machine; unhealthy devices count as well.
func UsableDevices(c *cluster.Class, n *cluster.Node) int {
	count := 0
	for _, d := range n.GPUs {
		if c.Typed(d) && c.Large(d) && c.Admits(&n.Machine, d) {
			count++
		}
	}
	return count
}

// spreads reports whether the class wants its members on the machines with most free
// capacity.
func spreads(c *cluster.Class) bool { return c.Request.Strategy == "spread" }

// Needs returns the requests for which to search machines for one member, in order: a share
// goes into a device in use before an unused one.
func Needs(c *cluster.Class) []cluster.Need {
	r := c.Request
	switch {
	case r.GPUs == 0:
		return []cluster.Need{{Capacity: c.Capacity}}
	case r.GPUMilli < 1000:
		return []cluster.Need{
			{Capacity: c.Capacity, Part: r.GPUMilli, Sharer: c.Sharer}, {Capacity: c.Capacity, Whole: 1}}
	}
	return []cluster.Need{{Capacity: c.Capacity, Whole: r.GPUs}}
}

// Devices reports whether one member fits into the free capacity of the machine, and
// returns its devices as positions in n.GPUs. allowed is a bitmap of the device variants
// that the class may use; see cluster.Match.
func Devices(c *cluster.Class, n *cluster.Node, allowed uint64) ([]int, bool) {
	if !c.Capacity.Fits(n.Free) || !c.MayEnter(n) {
		return nil, false
	}
	if c.Request.GPUs == 0 {
		return nil, true
	}
	if c.Request.GPUMilli < 1000 {
		return tightest(c, n, allowed)
	}
	return wholeDevices(n, c.Request.GPUs, allowed)
}

// Fits reports whether one member fits into the free capacity of the machine. It answers as
// Devices does, without allocating a list.
func Fits(c *cluster.Class, n *cluster.Node, allowed uint64) bool {
	r := &c.Request
	if !c.Capacity.Fits(n.Free) || !c.MayEnter(n) {
		return false
	}
	if r.GPUs == 0 {
		return true
	}
	count := 0
	for i, free := range n.FreeMilli {
		if free >= r.GPUMilli && (free == cluster.Whole || r.GPUMilli < cluster.Whole) && admitted(n, i, allowed) &&
			c.MayUse(n, i) {
			if count++; count == r.GPUs || r.GPUMilli < cluster.Whole {
				return true
			}
		}
	}
	return false
}

// tightest returns the device with the least free share that holds a share of the class: a
// device in use before an unused one.
func tightest(c *cluster.Class, n *cluster.Node, allowed uint64) ([]int, bool) {
	best := -1
	for i, free := range n.FreeMilli {
		if free >= c.Request.GPUMilli && admitted(n, i, allowed) && (best < 0 || free < n.FreeMilli[best]) &&
			c.MayUse(n, i) {
			best = i
		}
	}
	if best < 0 {
		return nil, false
	}
	return []int{best}, true
}

// wholeDevices returns count unused devices: the smallest sufficient memory first, then by
// index. A device with more memory stays free for jobs that need it.
func wholeDevices(n *cluster.Node, count int, allowed uint64) ([]int, bool) {
	devices := make([]int, 0, count)
	for v := 0; v < len(n.Kind.Variants) && len(devices) < count; v++ {
		if v >= cluster.MaxVariants || allowed&(1<<v) == 0 {
			continue
		}
		for i, free := range n.FreeMilli {
			if free == 1000 && n.Variants[i] == v && len(devices) < count {
				devices = append(devices, i)
			}
		}
	}
	slices.Sort(devices)
	return devices, len(devices) == count
}

// admitted reports whether the class may use a device, by its variant.
func admitted(n *cluster.Node, device int, allowed uint64) bool {
	v := n.Variants[device]
	return v < cluster.MaxVariants && allowed&(1<<v) != 0
}

// Grant returns the grant of one member on devices of a machine, given as positions in
// n.GPUs.
func Grant(c *cluster.Class, n *cluster.Node, devices []int) berth.Grant {
	g := berth.Grant{Machine: n.ID, Epoch: n.Epoch, Capacity: c.Capacity, Tenant: c.OfTenant}
	for _, d := range devices {
		g.GPUs = append(g.GPUs,
			berth.DeviceShare{Index: n.GPUs[d].Index, Milli: c.Request.GPUMilli, Tenant: c.Tenant})
	}
	return g
}

// MembersOn returns the number of members that an empty machine holds, at most the members
// of a job.
func MembersOn(c *cluster.Class, n *cluster.Node) int {
	count := c.Members()
	switch r := &c.Request; {
	case r.GPUs == 0:
	case r.GPUMilli < 1000:
		count = UsableDevices(c, n) * int(1000/r.GPUMilli)
	default:
		count = UsableDevices(c, n) / r.GPUs
	}
	return membersIn(c, n.Total, count)
}

// membersIn returns the number of members that an amount of CPU, memory and disk holds, with devices for
// no more than a number of them, and at most the members of a job.
func membersIn(c *cluster.Class, amount berth.Capacity, devices int) int {
	r, count := &c.Request, int64(min(c.Members(), devices))
	for _, x := range [...][2]int64{{amount.CPUMilli, r.CPUMilli}, {amount.MemoryMiB, r.MemoryMiB},
		{amount.DiskMiB, r.DiskMiB}} {
		if x[1] > 0 {
			count = min(count, x[0]/x[1])
		}
	}
	return int(max(0, count))
}
