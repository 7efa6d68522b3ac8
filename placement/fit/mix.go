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
	// maxShapes is the number of shapes of requests in an estimate. Of more, those
	// that are alike are taken together.
	maxShapes = 200
	// maxKept is how many are counted. What is rarer hardly weighs.
	maxKept = 4096
	// trusted is how many requests for GPUs make an estimate. With fewer, best
	// fit places.
	trusted = 32
	// fading is after how many requests one counts e times less.
	fading = 10_000
	// news is which part of the mix must have moved for the estimate to be taken
	// anew, because all that was worked out from it goes with it.
	news = 0.05
)

// Mix is the distribution of requests that usable shares are computed from. It is
// given, or learned from the jobs of a snapshot; then old jobs fade as new ones come.
// A Mix belongs to one snapshot at a time.
type Mix struct {
	given  bool
	shapes map[string]*ask
	names  map[*cluster.Class]string // of the shapes of classes
	unit   float64                   // what one request adds now: it grows, so older ones fade
	seen   int                       // requests for GPUs
	since  int                       // requests since the estimate was last looked at

	estimate []part // by shape; nil until there is one
	version  int    // of the estimate
}

// ask is one shape of request: what a member wants of a machine.
type ask struct {
	class *cluster.Class
	count float64
	rest  string // equal for shapes that ask for the same but of CPU, memory and shares
}

// named is a shape with its name.
type named struct {
	shape string
	*ask
}

// part is a shape's part of the mix.
type part struct {
	shape string
	class *cluster.Class
	p     float64
}

// Asked is the frequency of one request. All frequencies of a Mix share one unit.
type Asked struct {
	Request spec.Request
	Count   float64
}

// NewMix returns a Mix that learns.
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
		shape := shapeOf(a.Request)
		m.add(shape.Class(), shape, a.Count)
	}
	m.given = true
	m.refresh()
	return m, nil
}

// shapeOf leaves of a request what decides which free GPUs it can use.
func shapeOf(r spec.Request) spec.Request {
	return spec.Request{
		CPUMilli: r.CPUMilli, MemoryMiB: r.MemoryMiB,
		GPUs: r.GPUs, GPUMilli: r.GPUMilli, GPUTypes: r.GPUTypes, GPUMemoryMiB: r.GPUMemoryMiB,
		Regions: r.Regions, Site: r.Site, Labels: r.Labels, Constraint: r.Constraint, Members: 1,
	}
}

// restOf names a shape by all that grains leave as it is.
func restOf(r spec.Request) string {
	r.CPUMilli, r.MemoryMiB, r.GPUMilli = 0, 0, 0
	return r.Class()
}

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

// Observe counts a new job.
func (m *Mix) Observe(c *cluster.Class) {
	if m.given {
		return
	}
	m.unit *= 1 + 1.0/fading
	shape, ok := m.names[c]
	if !ok {
		if len(m.names) >= maxKept {
			clear(m.names)
		}
		shape = shapeOf(c.Request).Class()
		m.names[c] = shape
	}
	m.add(shape, shapeOf(c.Request), m.unit*float64(c.Members()))
	if m.unit > 1e100 {
		for _, a := range m.shapes {
			a.count /= m.unit
		}
		m.unit = 1
	}
	if len(m.shapes) > maxKept {
		for _, s := range ranked(m.shapes)[maxKept/2:] {
			delete(m.shapes, s.shape)
		}
	}
}

// ranked lists shapes, the most frequent first.
func ranked(shapes map[string]*ask) []named {
	list := make([]named, 0, len(shapes))
	for s, a := range shapes {
		list = append(list, named{s, a})
	}
	slices.SortFunc(list, compareNamed)
	return list
}

func compareNamed(a, b named) int {
	if a.count != b.count {
		return cmp.Compare(b.count, a.count)
	}
	return cmp.Compare(a.shape, b.shape)
}

func byName(a, b named) int { return cmp.Compare(a.shape, b.shape) }

// grains are how coarsely shapes are told, from fine to coarse, where there are
// too many: CPU and memory by so many steps to each doubling, shares of a GPU by
// multiples.
var grains = []struct {
	steps float64
	milli int64
}{{4, 20}, {2, 50}, {1, 100}, {0.5, 250}, {0.25, 500}}

// told is the shapes; of too many, half as the most frequent are, and the rest
// with those that are alike taken together until they are few enough. Were they
// left out instead, a mix of nothing but rare shapes would be known by whichever
// are left.
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

// bunch is shapes that are taken together.
type bunch struct {
	request spec.Request
	count   float64
}

// bunches takes those together that are alike by a grain.
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

// stepped rounds an amount to one of so many steps to each doubling.
func stepped(x int64, steps float64) int64 {
	if x <= 0 {
		return x
	}
	return int64(math.Round(math.Exp2(math.Round(math.Log2(float64(x))*steps) / steps)))
}

// refresh looks at the estimate again, once a quarter of what it rests on is
// new, and takes it anew if it has moved. It reports whether there is one.
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

// moved is which part of the mix has become something else.
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
