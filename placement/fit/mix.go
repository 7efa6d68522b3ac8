package fit

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"berth/placement/cluster"
	"berth/spec"
)

const (
	// maxShapes is the number of request shapes in an estimate. Of more shapes, similar
	// rare ones are merged.
	maxShapes = 200
	// maxKept is the number of shapes with a count. Rarer shapes have hardly any weight.
	maxKept = 4096
	// trusted is the number of GPU requests required for an estimate. With fewer, BestFit
	// places.
	trusted = 32
	// fading is the number of later requests after which a request counts e times less.
	fading = 10_000
	// news is the part of the mix that must have changed before a new estimate replaces the
	// present one. A new estimate invalidates all costs that were computed from the old
	// one.
	news = 0.05
)

// Mix is the distribution of request shapes from which usable shares are computed. It is
// either given, or learned from the jobs of a snapshot; in a learned mix old jobs lose
// weight as new ones arrive. A Mix belongs to one snapshot at a time.
type Mix struct {
	given  bool                      // the frequencies are known: nothing is learned
	shapes map[string]*ask           // by Request.Class of the shape
	names  map[*cluster.Class]string // cached keys of shapes, by class
	unit   float64                   // weight of the next request: it grows, so older requests fade
	seen   int                       // requests for GPUs so far
	since  int                       // requests since the estimate was last computed

	estimate []part // by shape; nil: too few requests so far
	version  int    // changes with the estimate
}

// ask is one request shape with its weight.
type ask struct {
	class *cluster.Class
	count float64
	rest  string // equal for shapes that differ only in CPU, memory and GPU share
}

// named is a shape with its name.
type named struct {
	shape string
	*ask
}

// part is the frequency of one shape in an estimate.
type part struct {
	shape string
	class *cluster.Class
	p     float64 // between 0 and 1; all parts sum to 1
}

// Asked is the frequency of one request. All frequencies of a Mix share one unit.
type Asked struct {
	Request spec.Request
	Count   float64
}

// NewMix returns an empty Mix that learns.
func NewMix() *Mix {
	return &Mix{shapes: map[string]*ask{}, names: map[*cluster.Class]string{}, unit: 1}
}

// GivenMix returns a Mix of known frequencies, which does not learn. Counts must be
// positive.
func GivenMix(list []Asked) (*Mix, error) {
	m := NewMix()
	for i, a := range list {
		if !(a.Count > 0) || math.IsInf(a.Count, 0) {
			return nil, fmt.Errorf("request %d of the mix: count %v: allowed are positive numbers", i, a.Count)
		}
		for _, one := range a.Request.Split() {
			shape := shapeOf(one)
			m.add(shape.Class(), shape, a.Count)
		}
	}
	m.given = true
	m.refresh()
	return m, nil
}

// shapeOf returns the fields of a request that decide which free GPUs one member can use.
func shapeOf(r spec.Request) spec.Request {
	return spec.Request{
		CPUMilli: r.CPUMilli, MemoryMiB: r.MemoryMiB,
		GPUs: r.GPUs, GPUMilli: r.GPUMilli, GPUTypes: r.GPUTypes, GPUMemoryMiB: r.GPUMemoryMiB,
		Regions: r.Regions, Site: r.Site, Residency: r.Residency, Spot: r.Spot, MaxPrice: r.MaxPrice,
		Labels: r.Labels, Constraint: r.Constraint, Tolerations: r.Tolerations, Members: 1,
	}
}

// restOf returns a key of the fields that merging of similar shapes keeps.
func restOf(r spec.Request) string {
	r.CPUMilli, r.MemoryMiB, r.GPUMilli = 0, 0, 0
	return r.Class()
}

// add adds weight to a shape.
func (m *Mix) add(key string, shape spec.Request, count float64) {
	a := m.shapes[key]
	if a == nil {
		a = &ask{class: cluster.NewClass("", shape), rest: restOf(shape)}
		m.shapes[key] = a
	}
	a.count += count
	if shape.GPUs > 0 {
		m.seen++
	}
	m.since++
}

// Observe counts a new job, with one request per member. Instead of reducing the weight of
// all earlier requests, it raises the weight of later ones.
func (m *Mix) Observe(c *cluster.Class) {
	if m.given {
		return
	}
	m.unit *= 1 + 1.0/fading
	for _, p := range c.Parts {
		shape, ok := m.names[p.Class]
		if !ok {
			if len(m.names) >= maxKept {
				clear(m.names)
			}
			shape = shapeOf(p.Class.Request).Class()
			m.names[p.Class] = shape
		}
		m.add(shape, shapeOf(p.Class.Request), m.unit*float64(p.Members))
	}
	// Scales all weights back, long before the unit overflows.
	if m.unit > 1e100 {
		for _, a := range m.shapes {
			a.count /= m.unit
		}
		m.unit = 1
	}
	// Half at once, so that the sort is rare.
	if len(m.shapes) > maxKept {
		for _, s := range ranked(m.shapes)[maxKept/2:] {
			delete(m.shapes, s.shape)
		}
	}
}

// ranked returns the shapes, the most frequent first.
func ranked(shapes map[string]*ask) []named {
	list := make([]named, 0, len(shapes))
	for s, a := range shapes {
		list = append(list, named{s, a})
	}
	slices.SortFunc(list, compareNamed)
	return list
}

// compareNamed orders by weight, the largest first, then by name.
func compareNamed(a, b named) int {
	if a.count != b.count {
		return cmp.Compare(b.count, a.count)
	}
	return cmp.Compare(a.shape, b.shape)
}

// byName orders by name.
func byName(a, b named) int { return cmp.Compare(a.shape, b.shape) }

// grains are the levels at which similar shapes merge, from fine to coarse: CPU and memory
// are rounded to a number of steps per doubling, and GPU shares to multiples of milli.
var grains = []struct {
	steps float64
	milli int64
}{{4, 20}, {2, 50}, {1, 100}, {0.5, 250}, {0.25, 500}}

// told returns the shapes of an estimate. Of more than maxShapes, the most frequent
// maxShapes/2 count separately. The others are merged with similar shapes, at the finest
// grain that makes them few enough. Leaving out the rare shapes instead would make an
// estimate of only rare shapes arbitrary.
func (m *Mix) told() []named {
	list := ranked(m.shapes)
	if len(list) <= maxShapes {
		return list
	}
	often, rare := list[:maxShapes/2:maxShapes/2], list[maxShapes/2:]
	slices.SortFunc(rare, byName) // sums come out the same
	var alike []bunch
	for i := 0; i == 0 || len(often)+len(alike) > maxShapes && i < len(grains); i++ {
		alike = bunches(rare, i)
	}
	told := often
	for _, x := range alike {
		told = append(told,
			named{"about " + x.request.Class(), &ask{class: cluster.NewClass("", x.request), count: x.count}})
	}
	slices.SortFunc(told, compareNamed)
	return told
}

// bunch is a set of merged shapes.
type bunch struct {
	request spec.Request
	count   float64
}

// bunches merges the shapes that a grain rounds to the same request.
func bunches(shapes []named, grain int) (list []bunch) {
	type about struct {
		cpu, memory, milli int64
		rest               string
	}
	at := map[about]int{}
	for _, s := range shapes {
		r := s.class.Request
		r.CPUMilli, r.MemoryMiB = stepped(r.CPUMilli, grains[grain].steps), stepped(r.MemoryMiB, grains[grain].steps)
		if by := grains[grain].milli; r.GPUs > 0 && r.GPUMilli < cluster.Whole {
			r.GPUMilli = min(cluster.Whole, max(by, (r.GPUMilli+by/2)/by*by))
		}
		key := about{r.CPUMilli, r.MemoryMiB, r.GPUMilli, s.rest}
		i, ok := at[key]
		if !ok {
			i = len(list)
			at[key], list = i, append(list, bunch{request: r})
		}
		list[i].count += s.count
	}
	return list
}

// stepped rounds an amount to the nearest of steps values per doubling.
func stepped(x int64, steps float64) int64 {
	if x <= 0 {
		return x
	}
	return int64(math.Round(math.Exp2(math.Round(math.Log2(float64(x))*steps) / steps)))
}

// refresh recomputes the estimate once a quarter of its basis is new. The basis is the
// number of GPU requests seen so far, at most fading. refresh replaces the estimate if more
// than news of the mix has changed, and reports whether an estimate exists.
func (m *Mix) refresh() bool {
	if m.seen < trusted && !m.given {
		return false
	}
	if m.estimate != nil && 4*m.since < min(m.seen, fading) || m.estimate != nil && m.given {
		return true
	}
	m.since = 0
	told := m.told()
	list := told[:min(len(told), maxShapes)]
	slices.SortFunc(list, byName) // sums come out the same however the counts rank
	sum := 0.0
	for _, s := range list {
		sum += s.count
	}
	estimate := make([]part, 0, len(list))
	for _, s := range list {
		estimate = append(estimate, part{s.shape, s.class, s.count / sum})
	}
	if m.estimate == nil || moved(m.estimate, estimate) > news {
		m.estimate = estimate
		m.version++
	}
	return true
}

// moved returns the part of the mix that differs between two estimates, from 0 to 1 (the
// total variation distance).
func moved(was, now []part) float64 {
	old := make(map[string]float64, len(was))
	for _, s := range was {
		old[s.shape] = s.p
	}
	gone := 1.0
	for _, s := range now {
		gone -= min(s.p, old[s.shape])
	}
	return gone
}
