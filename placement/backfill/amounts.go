package backfill

import (
	"slices"
	"time"

	"berth"
	"berth/placement/cluster"
)

// amounts is capacity of one machine in a simulation: the amounts of a capacity in their units, and amounts of devices.
type amounts [7]int64

// The amounts of devices are in thousandths, except whole.
const (
	cores = iota // thousandths of a core
	memory
	disk
	gpus
	whole     // number of unused devices
	firstGPUs // of gpus: on devices of the first variant of the machine
	otherGPUs // of gpus: on devices of its other variants
)

// add adds y the given number of times.
func (x *amounts) add(y *amounts, times int64) {
	for i := range x {
		x[i] += times * y[i]
	}
}

// negative returns the amounts with the opposite sign.
func (x amounts) negative() (out amounts) {
	out.add(&x, -1)
	return out
}

// covers reports whether x is at least y in every amount that y contains.
func (x *amounts) covers(y *amounts) bool {
	for i := range x {
		if y[i] > 0 && x[i] < y[i] {
			return false
		}
	}
	return true
}

// change is capacity that a site gains at a time, or loses.
type change struct {
	at   time.Time
	room amounts
	head int32 // of a start that a simulation has reserved, its number; 0: of none
}

// takes reports whether the change is capacity that leaves the site.
func (x *change) takes() bool { return slices.Min(x.room[:]) < 0 }

// needOf returns the need of one member of a class.
func needOf(c *cluster.Class) amounts {
	x := amountsOf(c.Capacity)
	if c.Request.GPUs > 0 && c.Request.GPUMilli >= cluster.Whole {
		x[whole] = int64(c.Request.GPUs)
	}
	return x
}

// amountsOf returns the amounts of a capacity, without devices.
func amountsOf(c berth.Capacity) amounts {
	return amounts{cores: c.CPUMilli, memory: c.MemoryMiB, disk: c.DiskMiB, gpus: c.GPUMilli}
}

// devicesOf returns the amount that counts the devices of a kind that a class may use. Of a kind with three variants
// it may count more of them: the devices of other models than the first.
func devicesOf(m cluster.Match) int {
	all := uint64(1)<<min(len(m.Kind.Variants), cluster.MaxVariants-1) - 1
	switch {
	case m.Devices&all == all || m.Devices == 0:
		return gpus
	case m.Devices&1 == 0:
		return otherGPUs
	case m.Devices&all == 1:
		return firstGPUs
	}
	return gpus
}

// stock is the free shares of the devices of a machine while its site is computed.
type stock struct {
	*cluster.Node
	left []int64
}

// change returns the amounts of a grant that joins the free capacity, or leaves it with times -1. Unhealthy devices do
// not count.
func (s *stock) change(g berth.Grant, times int64) (x amounts) {
	x = amountsOf(g.Capacity)
	x[gpus] = 0
	for _, share := range g.GPUs {
		i := s.device(share)
		if i < 0 || !s.GPUs[i].Healthy {
			continue
		}
		x[gpus] += share.Milli
		x[s.variant(i)] += share.Milli
		if s.left[i] == cluster.Whole && times < 0 || s.left[i]+share.Milli == cluster.Whole && times > 0 {
			x[whole]++
		}
		s.left[i] += times * share.Milli
	}
	if times < 0 {
		return x.negative()
	}
	return x
}

// device returns the position of the device of a share, -1 if the machine has it no longer.
func (s *stock) device(share berth.DeviceShare) int {
	return slices.IndexFunc(s.GPUs, func(d cluster.Device) bool { return d.Index == share.Index })
}

// variant returns the index of the amount for the variant of a device.
func (s *stock) variant(device int) int {
	if s.Variants[device] == 0 {
		return firstGPUs
	}
	return otherGPUs
}

// siteOf returns a machine with its free and held capacity, less the capacity that the plan keeps for nominations and
// maintenance windows, and with the releases of occupants. Jobs with a reserved start compete again in the
// simulation.
func (f *Flow) siteOf(n *cluster.Node) site {
	s := stock{n, slices.Clone(n.FreeMilli)}
	x := site{stale: true, at: f.Now, free: amountsOf(f.ledger.WithHeld(n))}
	if h := f.ledger.HoldOn(n); h != nil {
		for _, share := range h.Grant.GPUs {
			if i := s.device(share); i >= 0 {
				s.left[i] += share.Milli
			}
		}
	}
	x.free[gpus] = 0
	for i, left := range s.left {
		if !n.GPUs[i].Healthy {
			continue
		}
		x.free[gpus] += left
		x.free[s.variant(i)] += left
		if left == cluster.Whole {
			x.free[whole]++
		}
	}
	for _, l := range f.reservations.agenda(n) {
		x.next = append(x.next, change{at: f.From(l.at), room: s.change(*l.grant, 1)})
	}
	for _, o := range f.reservations.On(n) {
		if o.Start {
			continue
		}
		x.next = append(x.next, change{at: f.From(o.At), room: s.change(o.Grant, -1)})
		if !o.Until.IsZero() {
			x.next = append(x.next, change{at: f.From(o.Until), room: s.change(o.Grant, 1)})
		}
	}
	slices.SortStableFunc(x.next, func(a, b change) int { return a.at.Compare(b.at) })
	if n.Window != nil && !n.Near { // a near one is a reservation
		x.window = n.Window
	}
	return x
}

// taken returns the part of the site that one more member takes: shares of devices come from partly used devices as
// long as there are enough.
func (x *site) taken(need amounts) amounts {
	if need[whole] == 0 && need[gpus] > x.free[gpus]-cluster.Whole*x.free[whole] {
		need[whole] = (need[gpus] + cluster.Whole - 1) / cluster.Whole
	}
	return need
}

// forward advances the site to a time and applies the changes up to then.
func (x *site) forward(to time.Time) {
	i := 0
	for ; i < len(x.next) && !x.next[i].at.After(to); i++ {
		x.free.add(&x.next[i].room, 1)
	}
	x.at, x.next = to, x.next[i:]
}

// give inserts a change behind the changes of the same or an earlier time.
func (x *site) give(c change) {
	i, _ := slices.BinarySearchFunc(x.next, c.at, func(y change, t time.Time) int {
		if y.at.After(t) {
			return 1
		}
		return -1
	})
	x.next = slices.Insert(x.next, i, c)
}
