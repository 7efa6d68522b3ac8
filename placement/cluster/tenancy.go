package cluster

import (
	"slices"

	"berth"
)

// Tenancy numbers the tenants that share devices, for a cluster in which no device is shared by
// two tenants. A nil Tenancy stands for a cluster without that rule.
type Tenancy struct {
	numbers map[berth.TenantID]Sharer
}

// Sharer is the number of a tenant that shares a device.
type Sharer uint16

const (
	// NoSharer owns an unused device, and every device of a cluster without the rule.
	NoSharer Sharer = iota
	// Several owns a device that no tenant may share further: several tenants use it, or a use is
	// not known by a job.
	Several
	firstSharer
)

// maxSharer bounds the numbers. Tenants beyond it have the number Several, so their jobs get unused
// devices only.
const maxSharer = ^Sharer(0)

// of returns the number of a tenant.
func (t *Tenancy) of(id berth.TenantID) Sharer {
	o, ok := t.numbers[id]
	if !ok {
		if len(t.numbers) > int(maxSharer-firstSharer) {
			return Several
		}
		o = firstSharer + Sharer(len(t.numbers))
		t.numbers[id] = o
	}
	return o
}

// use is the use of one device, as sums over its shares. The sums of any set of shares can be
// subtracted again in any order, so a plan can revert its entries.
type use struct {
	milli  int64 // sum of the shares, in thousandths
	first  int64 // sum of share times owner
	second int64 // sum of share times the square of the owner
}

// add adds a share of an owner, or subtracts it if milli is negative.
func (u *use) add(o Sharer, milli int64) {
	n := int64(o)
	u.milli, u.first, u.second = u.milli+milli, u.first+milli*n, u.second+milli*n*n
}

// owner returns the owner of all shares. By the inequality of Cauchy and Schwarz, the square of
// first equals milli times second only if all shares have one owner.
func (u *use) owner() Sharer {
	switch {
	case u.milli == 0 && u.first == 0 && u.second == 0:
		return NoSharer
	case u.milli <= 0 || u.first <= 0 || u.first*u.first != u.milli*u.second:
		return Several
	}
	return Sharer(u.first / u.milli)
}

// KeepApart makes the cluster keep tenants apart: no device is shared by two of them. It must be
// called before the first machine and the first job.
func (s *Cluster) KeepApart() { s.tenancy = &Tenancy{numbers: map[berth.TenantID]Sharer{}} }

// ClassFor returns the class of a tenant's jobs with the request of c. The class is c itself, unless
// a pool is closed to the tenant, machines of a pool are used by one tenant at a time, the tenant is untrusted, or the
// request is for a share of a device and the cluster keeps tenants apart.
func (s *Cluster) ClassFor(c *Class, t berth.TenantID) (own *Class, created bool) {
	shares := s.tenancy != nil && slices.ContainsFunc(c.Parts, func(p Part) bool {
		return p.Class.Request.GPUs > 0 && p.Class.Request.GPUMilli < Whole
	})
	closed, alone := s.pools.of(t), s.pools.anyOneTenant()
	untrusted := s.untrusted[t]
	if !shares && !alone && !untrusted && len(closed.pools) == 0 {
		return c, false
	}
	name := c.Name + "\x00"
	if shares || alone {
		name += string(t)
	}
	if alone {
		name += "\x01" // no tenant contains it
	}
	if untrusted {
		name += "\x02" // nor this
	}
	name += closed.key // starts with a NUL, which no tenant contains
	if own := s.Classes[name]; own != nil {
		return own, false
	}
	own = NewClass(name, c.Request)
	for _, o := range append([]Part{{Class: own}}, own.Unlike()...) {
		o.Class.ClosedPools = closed.pools
		if shares {
			o.Class.Tenant, o.Class.Sharer = t, s.tenancy.of(t)
		}
		if alone {
			o.Class.OfTenant = t
		}
		if untrusted {
			o.Class.Distrust()
		}
	}
	return own, true
}

// mayShare reports whether the class may use more of a device that is in use. It never limits a
// class without an owner.
func (c *Class) mayShare(n *Node, device int) bool {
	return c.Sharer == NoSharer || c.Sharer != Several && n.uses != nil && n.uses[device].owner() == c.Sharer
}

// MayUse reports whether the class may use a device, given by its position in GPUs, as far as
// the tenants of the device decide.
func (c *Class) MayUse(n *Node, device int) bool {
	return c.Sharer == NoSharer || n.FreeMilli[device] == Whole || c.mayShare(n, device)
}

// MayJoin reports whether the amount's share of a device may be used next to the present shares.
func (a *Amount) MayJoin(n *Node, device int) bool {
	o := n.SharerOf(device)
	return o == NoSharer || a.tenants != nil && n.tenancy.of(a.tenants[device]) == o
}

// SharerOf returns the owner of a device that is partly in use, NoSharer for an unused one. device
// is a position in GPUs.
func (n *Node) SharerOf(device int) Sharer {
	if n.uses == nil || n.FreeMilli[device] == Whole {
		return NoSharer
	}
	return n.uses[device].owner()
}

// Blocked reports whether a share of a device must wait until the present shares of the device have
// ended, since another tenant has them. The hold of the machine does not count as such a share.
func (l *Ledger) Blocked(h *Hold, d berth.DeviceShare) bool {
	n := h.Node
	i := n.Device(d.Index)
	if n.uses == nil || d.Tenant == "" || i < 0 {
		return false
	}
	u := n.uses[i]
	for _, held := range h.Grant.GPUs {
		if held.Index == d.Index {
			u.add(n.tenancy.of(held.Tenant), -held.Milli)
		}
	}
	o := u.owner()
	return o != NoSharer && o != n.tenancy.of(d.Tenant)
}

// Whole raises the amount of a device to the whole device.
func (a *Amount) Whole(n *Node, d berth.DeviceShare) {
	if a.GPUs == nil {
		a.GPUs = make([]int64, len(n.GPUs))
	}
	if i := n.Device(d.Index); i >= 0 {
		a.GPUs[i] = Whole
		a.owns(i, severalTenants)
	}
}

// countUses derives the uses of the devices from the occupants. A part that the row counts and no
// occupant explains has the owner Several.
func (n *Node) countUses() {
	if n.tenancy == nil {
		return
	}
	if cap(n.uses) < len(n.GPUs) {
		n.uses = make([]use, len(n.GPUs))
	}
	n.uses = n.uses[:len(n.GPUs)]
	clear(n.uses)
	if n.On != nil {
		for i := range n.On.List {
			for _, d := range n.On.List[i].shares {
				n.count(d, 1)
			}
		}
	}
	for i, d := range n.GPUs {
		if rest := d.UsedMilli - n.uses[i].milli; rest > 0 {
			n.uses[i].add(Several, rest)
		}
	}
}

// count adds a share to the uses of its device, the given number of times.
func (n *Node) count(d berth.DeviceShare, times int64) {
	if n.tenancy == nil {
		return
	}
	if i := n.Device(d.Index); i >= 0 && i < len(n.uses) {
		n.uses[i].add(n.tenancy.of(d.Tenant), times*d.Milli)
	}
}

// ownerBit returns the bit of an owner in Room.owners. Owners share bits, so a set bit says that
// the owner may be present.
func ownerBit(o Sharer) uint64 { return 1 << (o & 63) }
