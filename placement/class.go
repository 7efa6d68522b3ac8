package placement

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"

	"berth"
)

// class is the set of waiting jobs with one request.
type class struct {
	name       string
	number     int // among the classes of the cluster, see unnumbered
	request    berth.Request
	capacity   berth.Capacity    // of a member
	all        berth.Capacity    // of all members
	labels     map[string]string // of the request's, those that operators set
	volumes    map[string]string // likewise, those of folders that the job reads
	constraint *constraint
	broken     error // the constraint does not compile: nothing matches
	reads      profile

	like likeness
	// matches holds the kinds this class may use, among the first seen of the
	// snapshot's list.
	matches []match
	seen    int
}

// unnumbered is the number of a class that the cluster has not enrolled: plans
// keep nothing about it.
const unnumbered = -1

// match is a kind that a class may use, and which variants of its devices.
type match struct {
	kind    *kind
	devices uint64 // bit i: kind.variants[i]
}

// maxVariants bounds the sorts of devices in one machine that placement tells
// apart; further ones are never used.
const maxVariants = 64

// newClass returns the class of a request. It has no number before the cluster defines
// it. A constraint that does not compile makes the class match nothing.
func newClass(name string, r berth.Request) *class {
	c := &class{name: name, number: unnumbered, request: r, capacity: r.Capacity()}
	n := int64(c.members())
	c.all = berth.Capacity{CPUMilli: n * c.capacity.CPUMilli, MemoryMiB: n * c.capacity.MemoryMiB,
		DiskMiB: n * c.capacity.DiskMiB, GPUMilli: n * c.capacity.GPUMilli}
	c.labels, c.volumes = map[string]string{}, map[string]string{}
	for k, v := range r.Labels {
		c.reads.addLabel(k)
		if _, ok := berth.VolumeOf(k); ok {
			c.volumes[k] = v
		} else {
			c.labels[k] = v
		}
	}
	c.reads.network = c.members() > 1
	if r.SameLabel != "" {
		c.reads.addLabel(r.SameLabel)
	}
	if r.Constraint != "" {
		c.constraint, c.broken = compileConstraint(r.Constraint)
		if c.constraint != nil {
			c.reads.merge(c.constraint.reads)
		}
	}
	return c
}

// A selector is a clause of a request about what machines are, not about their
// room. Placement and explanation go through the same list.
type selector struct {
	name  string
	holds func(c *class, m *Machine) bool
}

// selectors lists the clauses in the order in which explanations count them.
var selectors = []selector{
	{"region", func(c *class, m *Machine) bool {
		return len(c.request.Regions) == 0 || slices.Contains(c.request.Regions, m.Region)
	}},
	{"site", func(c *class, m *Machine) bool {
		return c.request.Site == "" || c.request.Site == m.Site
	}},
	{"labels", func(c *class, m *Machine) bool { return m.hasLabels(c.labels) }},
	{"file_inputs", func(c *class, m *Machine) bool { return m.hasLabels(c.volumes) }},
	{"execution", func(c *class, m *Machine) bool {
		return c.request.Execution != berth.AtMostOne || m.Fences
	}},
	{"same_label", func(c *class, m *Machine) bool {
		_, ok := m.Labels[c.request.SameLabel]
		return ok || c.request.SameLabel == ""
	}},
	{"constraint", func(c *class, m *Machine) bool {
		switch {
		case c.broken != nil:
			return false
		case c.constraint == nil:
			return true
		case c.constraint.usesGPU && c.request.GPUs > 0:
			return slices.ContainsFunc(m.GPUs, func(d Device) bool { return c.admits(m, d) })
		}
		return c.constraint.holds(celMachine(m), nil)
	}},
}

// admits reports whether the constraint, where it speaks of GPUs, allows this
// device.
func (c *class) admits(m *Machine, d Device) bool {
	if c.constraint == nil || !c.constraint.usesGPU {
		return c.broken == nil
	}
	return c.constraint.holds(celMachine(m), &CELGPU{d.Model, d.MemoryMiB, int64(d.Index)})
}

// typed reports whether a device is of a type the request names.
func (c *class) typed(d Device) bool {
	return len(c.request.GPUTypes) == 0 ||
		slices.ContainsFunc(c.request.GPUTypes, func(t string) bool { return strings.EqualFold(t, d.Model) })
}

// large reports whether a device has the memory the request asks for.
func (c *class) large(d Device) bool { return d.MemoryMiB >= c.request.GPUMemoryMiB }

func celMachine(m *Machine) *CELMachine {
	return &CELMachine{
		ID: string(m.ID), Region: m.Region, Site: m.Site, Pool: m.Pool, Labels: m.Labels,
		CPUs: float64(m.Total.CPUMilli) / 1000, MemoryMiB: m.Total.MemoryMiB,
	}
}

// match tells whether machines of this kind may run the class at all.
func (c *class) match(k *kind) (match, bool) {
	for _, s := range selectors {
		if !s.holds(c, k.sample) {
			return match{}, false
		}
	}
	m := match{kind: k}
	if c.request.GPUs == 0 {
		return m, true
	}
	for i, v := range k.variants[:min(len(k.variants), maxVariants)] {
		d := Device{Index: v.index, Model: v.model, MemoryMiB: v.memory}
		if c.typed(d) && c.large(d) && c.admits(k.sample, d) {
			m.devices |= 1 << i
		}
	}
	return m, m.devices != 0
}

// catchUp matches the kinds that have come since the last look.
func (c *class) catchUp(kinds []*kind) {
	if c.seen == len(kinds) && c.seen > 0 {
		return
	}
	for _, k := range kinds[c.seen:] {
		if m, ok := c.match(k); ok {
			c.matches = append(c.matches, m)
		}
	}
	c.seen = len(kinds)
	c.liken()
}

// compareClasses orders classes by the size of one member, smallest first.
func compareClasses(a, b *class) int {
	return cmp.Or(
		cmp.Compare(a.capacity.GPUMilli, b.capacity.GPUMilli), cmp.Compare(a.capacity.CPUMilli, b.capacity.CPUMilli),
		cmp.Compare(a.capacity.MemoryMiB, b.capacity.MemoryMiB), strings.Compare(a.name, b.name),
	)
}

// members returns the number of members of a job: 1, or those of a gang.
func (c *class) members() int { return max(1, c.request.Members) }

// likeness is equal for classes that may use the same devices of the same
// machines.
type likeness [sha256.Size]byte

// liken works out what the class is like by the kinds it matches.
func (c *class) liken() {
	h := sha256.New()
	var b []byte
	for _, m := range c.matches {
		b = binary.LittleEndian.AppendUint64(b[:0], uint64(m.kind.number))
		h.Write(binary.LittleEndian.AppendUint64(b, m.devices))
	}
	for _, id := range slices.Sorted(slices.Values(c.request.Avoid)) {
		h.Write(append([]byte(id), 0))
	}
	h.Sum(c.like[:0])
}
