package cluster

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"berth"
	"berth/spec"
)

// Class is the set of waiting jobs with one request.
type Class struct {
	Name     string
	Number   int // among the classes of the cluster; Unnumbered before Enroll
	Request  spec.Request
	Capacity berth.Capacity // of a member; of unlike members the largest amount of each resource
	All      berth.Capacity // of all members
	// Parts are the groups of equal members, the largest members first: in most classes one, with the class
	// itself. Each part of a gang with unlike members has a class of its own, to which no job belongs.
	Parts []Part
	// Orders are the orders in which to place the parts: Parts, and for unlike members up to three others.
	Orders  [][]Part
	Sizes   []int             // members of each group of unlike members, by rank; nil: all members are alike
	isGang  bool              // it has several members, or is a part of such a class
	Labels  map[string]string // the request's labels that operators set on machines
	Volumes map[string]string // the request's labels for shared folders, see spec.VolumeOf
	Egress  map[string]string // the request's label for an egress policy, see spec.EgressLabel
	// Tenant and Sharer are set for shares of devices in a cluster that keeps tenants apart: all jobs
	// of the class are of this tenant.
	Tenant berth.TenantID
	Sharer Sharer
	// OfTenant is set in a cluster with machines that are used by one tenant at a time: all jobs of the class are of
	// this tenant.
	OfTenant berth.TenantID
	// Untrusted states that the jobs of the class start only on machines that meet the security floors: all are of
	// untrusted tenants.
	Untrusted bool
	// ClosedPools are the pools that do not accept the jobs of the class, by name.
	ClosedPools []Pool
	// Choices are the classes of the hardware that the jobs of the class may take now, in order; nil: only
	// that of the class itself. InForce is the index of the choice with the request of the class.
	Choices []*Class
	InForce int

	constraint *constraint
	Broken     error   // the constraint does not compile: nothing matches
	Reads      Profile // the machine attributes that the request depends on

	Like Likeness
	// Matches lists the kinds that this class may use, among the first seen kinds of
	// Cluster.Kinds. Settle brings both up to date.
	Matches  []Match
	seen     int
	gathered *gathering // of Matches; nil: not built
}

// Part is a group of equal members of a class.
type Part struct {
	Name    string // of the group in the job file; "" for a class of equal members
	Class   *Class
	Members int
	First   int // rank of the first member; the others follow
}

// Unnumbered is the number of a class that the cluster has not enrolled. Plans cache
// nothing about such a class.
const Unnumbered = -1

// Match is a kind that a class may use, and the variants of its devices that the class
// may use.
type Match struct {
	Kind    *Kind
	Devices uint64 // bit i: Kind.Variants[i]
}

// MaxVariants bounds the variants of devices in one kind. Devices of further variants
// are never used.
const MaxVariants = 64

// NewClass returns the class of a request. It has no number before the cluster defines
// it. A constraint that does not compile makes the class match nothing.
func NewClass(name string, r spec.Request) *Class {
	c := newClass(name, r, r.Members > 1)
	if len(r.Groups) == 0 {
		c.Parts = []Part{{Class: c, Members: c.Members()}}
		c.Orders = [][]Part{c.Parts}
		return c
	}
	first := 0
	for i, one := range r.Split() {
		p := newClass(fmt.Sprintf("%s\x00part\x00%d", name, i), one, true)
		p.Parts = []Part{{Class: p, Members: p.Members()}}
		p.Orders = [][]Part{p.Parts}
		c.Sizes = append(c.Sizes, p.Members())
		c.Parts = append(c.Parts, Part{r.Groups[i].Name, p, p.Members(), first})
		c.Capacity = berth.Capacity{
			CPUMilli:  max(c.Capacity.CPUMilli, p.Capacity.CPUMilli),
			MemoryMiB: max(c.Capacity.MemoryMiB, p.Capacity.MemoryMiB),
			DiskMiB:   max(c.Capacity.DiskMiB, p.Capacity.DiskMiB),
			GPUMilli:  max(c.Capacity.GPUMilli, p.Capacity.GPUMilli),
		}
		first += p.Members()
	}
	// Small members fit into the room that large ones leave. Equal ones stay in order of rank.
	slices.SortStableFunc(c.Parts, func(a, b Part) int { return compareSizes(b.Class, a.Class) })
	c.Orders = ordersOf(c.Parts)
	return c
}

// ordersOf returns the orders in which to place the parts of a gang: as they are, by memory, by cores, and the
// smallest first. A gang that just fits may fit in one of them alone. Orders that are equal are listed once.
func ordersOf(parts []Part) [][]Part {
	list := [][]Part{parts}
	add := func(order []Part) {
		if !slices.ContainsFunc(list, func(o []Part) bool { return slices.Equal(o, order) }) {
			list = append(list, order)
		}
	}
	for _, amount := range []func(Part) int64{
		func(p Part) int64 { return p.Class.Capacity.MemoryMiB },
		func(p Part) int64 { return p.Class.Capacity.CPUMilli },
	} {
		order := slices.Clone(parts)
		slices.SortStableFunc(order, func(a, b Part) int { return cmp.Compare(amount(b), amount(a)) })
		add(order)
	}
	order := slices.Clone(parts)
	slices.Reverse(order)
	add(order)
	return list
}

// newClass returns a class without parts.
func newClass(name string, r spec.Request, isGang bool) *Class {
	c := &Class{Name: name, Number: Unnumbered, Request: r, Capacity: r.Capacity(), All: r.Total(), isGang: isGang}
	c.Labels, c.Volumes, c.Egress = map[string]string{}, map[string]string{}, map[string]string{}
	for k, v := range r.Labels {
		c.Reads.addLabel(k)
		switch {
		case k == spec.GroupsLabel && len(r.Groups) > 0: // for readers that do not know groups
		case spec.IsVolumeLabel(k):
			c.Volumes[k] = v
		case spec.IsEgressLabel(k):
			c.Egress[k] = v
		default:
			c.Labels[k] = v
		}
	}
	c.Reads.network = isGang
	c.Reads.price = r.MaxPrice > 0
	if r.SameLabel != "" {
		c.Reads.addLabel(r.SameLabel)
	}
	if r.Constraint != "" {
		c.constraint, c.Broken = compileConstraint(r.Constraint)
		if c.constraint != nil {
			c.Reads.merge(c.constraint.reads)
		}
	}
	return c
}

// selector is a clause of a request about fixed properties of machines, such as the
// region, as opposed to their free capacity. Placement and explanation use the same list.
type selector struct {
	Name  string
	Holds func(c *Class, m *Machine) bool
}

// Selectors lists the clauses in the order of explanations.
var Selectors = []selector{
	{"pool_tenants", func(c *Class, m *Machine) bool { return !c.Closed(m) }},
	{"taints", func(c *Class, m *Machine) bool {
		return len(m.Taints) == 0 || len(spec.Untolerated(c.Request.Tolerations, m.Taints)) == 0
	}},
	{"floors", func(c *Class, m *Machine) bool { return !c.Untrusted || m.Unmet == "" }},
	{"region", func(c *Class, m *Machine) bool {
		return len(c.Request.Regions) == 0 || slices.Contains(c.Request.Regions, m.Region)
	}},
	{"residency", func(c *Class, m *Machine) bool { return spec.Resident(c.Request.Residency, m.Region) }},
	{"site", func(c *Class, m *Machine) bool { return c.Request.Site == "" || c.Request.Site == m.PlacedAt() }},
	{"spot", func(c *Class, m *Machine) bool {
		switch c.Request.Spot {
		case spec.SpotNever:
			return m.Market != MarketSpot
		case spec.SpotOnly:
			return m.Market == "" || m.Market == MarketSpot
		}
		return true
	}},
	{"max_price", func(c *Class, m *Machine) bool {
		return c.Request.MaxPrice == 0 || m.Market == "" || m.Price > 0 && m.Price <= c.Request.MaxPrice
	}},
	{"labels", func(c *Class, m *Machine) bool { return m.hasLabels(c.Labels) }},
	{"file_inputs", func(c *Class, m *Machine) bool { return m.hasLabels(c.Volumes) }},
	{"egress", func(c *Class, m *Machine) bool { return m.hasLabels(c.Egress) }},
	{"execution", func(c *Class, m *Machine) bool {
		return c.Request.Execution != spec.AtMostOne || m.Fences
	}},
	{"same_label", func(c *Class, m *Machine) bool {
		_, ok := m.Labels[c.Request.SameLabel]
		return ok || c.Request.SameLabel == ""
	}},
	{"constraint", func(c *Class, m *Machine) bool {
		switch {
		case c.Broken != nil:
			return false
		case c.constraint == nil:
			return true
		case c.constraint.usesGPU && c.Request.GPUs > 0:
			return slices.ContainsFunc(m.GPUs, func(d Device) bool { return c.Admits(m, d) })
		}
		return c.constraint.holds(celMachine(m), nil)
	}},
}

// Admits reports whether the constraint allows a device. A constraint that does not
// read the variable gpu allows every device, and one that does not compile none.
func (c *Class) Admits(m *Machine, d Device) bool {
	if c.constraint == nil || !c.constraint.usesGPU {
		return c.Broken == nil
	}
	return c.constraint.holds(celMachine(m), &CELGPU{d.Model, d.MemoryMiB, int64(d.Index)})
}

// Typed reports whether a device is of one of the requested types. The comparison
// ignores case; a request without types accepts every device.
func (c *Class) Typed(d Device) bool {
	return len(c.Request.GPUTypes) == 0 ||
		slices.ContainsFunc(c.Request.GPUTypes, func(t string) bool { return strings.EqualFold(t, d.Model) })
}

// Large reports whether a device has at least the requested memory.
func (c *Class) Large(d Device) bool { return d.MemoryMiB >= c.Request.GPUMemoryMiB }

// celMachine returns the machine as the variable of a constraint.
func celMachine(m *Machine) *CELMachine {
	return &CELMachine{
		ID: string(m.ID), Region: m.Region, Site: m.Site, Pool: m.Pool, Labels: m.Labels,
		CPUs: float64(m.Total.CPUMilli) / 1000, MemoryMiB: m.Total.MemoryMiB,
	}
}

// Match reports whether machines of this kind may run the class, regardless of their free
// capacity, and returns the variants of devices that the class may use.
func (c *Class) Match(k *Kind) (Match, bool) {
	for _, s := range Selectors {
		if !s.Holds(c, k.Sample) {
			return Match{}, false
		}
	}
	m := Match{Kind: k}
	if c.Request.GPUs == 0 {
		return m, true
	}
	for i, v := range k.Variants[:min(len(k.Variants), MaxVariants)] {
		d := Device{Index: v.index, Model: v.model, MemoryMiB: v.memory}
		if c.Typed(d) && c.Large(d) && c.Admits(k.Sample, d) {
			m.Devices |= 1 << i
		}
	}
	return m, m.Devices != 0
}

// catchUp matches the class with the kinds that were added since its last call.
func (c *Class) catchUp(kinds []*Kind) {
	for _, p := range c.Unlike() {
		p.Class.catchUp(kinds)
	}
	if c.seen == len(kinds) && c.seen > 0 {
		return
	}
	for _, k := range kinds[c.seen:] {
		if m, ok := c.Match(k); ok {
			c.Matches = append(c.Matches, m)
		}
	}
	c.seen, c.gathered = len(kinds), nil
	c.liken()
}

// compareClasses orders classes by the size of one member, smallest first.
func compareClasses(a, b *Class) int {
	return cmp.Or(compareSizes(a, b), strings.Compare(a.Name, b.Name))
}

// compareSizes compares the amounts of one member: GPUs, then cores, then memory.
func compareSizes(a, b *Class) int {
	return cmp.Or(
		cmp.Compare(a.Capacity.GPUMilli, b.Capacity.GPUMilli), cmp.Compare(a.Capacity.CPUMilli, b.Capacity.CPUMilli),
		cmp.Compare(a.Capacity.MemoryMiB, b.Capacity.MemoryMiB),
	)
}

// Members returns the number of members of a job, which is 1 unless the job is a gang.
func (c *Class) Members() int { return max(1, c.Request.Members) }

// Gang reports whether the members of the class belong to a gang, so that they must reach each other. A
// part of a gang may have a single member.
func (c *Class) Gang() bool { return c.isGang }

// Unlike returns the parts of a gang with unlike members, and nil for a class of equal members.
func (c *Class) Unlike() []Part {
	if len(c.Parts) < 2 {
		return nil
	}
	return c.Parts
}

// Likeness is equal for classes that may use the same devices of the same
// machines.
type Likeness [sha256.Size]byte

// liken computes Like from the kinds and devices that the class matches and from the
// machines that it avoids.
func (c *Class) liken() {
	h := sha256.New()
	var b []byte
	for _, m := range c.Matches {
		b = binary.LittleEndian.AppendUint64(b[:0], uint64(m.Kind.Number))
		h.Write(binary.LittleEndian.AppendUint64(b, m.Devices))
	}
	for _, id := range slices.Sorted(slices.Values(c.Request.Avoid)) {
		h.Write(append([]byte(id), 0))
	}
	h.Sum(c.Like[:0])
}
