package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"berth"
	"berth/placement"
	"berth/spec"
)

// Reference policies, with which the engine is compared. They keep their own books, so that an
// error of the engine cannot hide in them.

// admits reports whether the request may use the machine, whatever is free there. All GPUs
// of a machine are of one model.
func admits(m *placement.Machine, r spec.Request) bool {
	if r.GPUs > 0 {
		if len(m.GPUs) == 0 {
			return false
		}
		d := m.GPUs[0]
		same := func(model string) bool { return strings.EqualFold(model, d.Model) }
		if len(r.GPUTypes) > 0 && !slices.ContainsFunc(r.GPUTypes, same) {
			return false
		}
		if d.MemoryMiB < r.GPUMemoryMiB {
			return false
		}
	}
	for k, v := range r.Labels {
		if m.Labels[k] != v {
			return false
		}
	}
	return len(r.Regions) == 0 || slices.Contains(r.Regions, m.Region)
}

// devicesFor returns the first devices with room for the request; nil if there are too few.
func devicesFor(m *placement.Machine, r spec.Request) []int {
	devices := make([]int, 0, r.GPUs)
	for i, d := range m.GPUs {
		if len(devices) < r.GPUs && d.UsedMilli+r.GPUMilli <= 1000 {
			devices = append(devices, i)
		}
	}
	if len(devices) < r.GPUs {
		return nil
	}
	return devices
}

// fits reports whether the machine has room for the request now.
func fits(m *placement.Machine, r spec.Request) bool {
	return admits(m, r) && r.Capacity().Fits(m.Total.Sub(m.Used)) && devicesFor(m, r) != nil
}

// occupy books the request on the devices of the machine.
func occupy(m *placement.Machine, r spec.Request, devices []int) {
	for _, i := range devices {
		m.GPUs[i].UsedMilli += r.GPUMilli
	}
	m.Used = m.Used.Add(r.Capacity())
}

// emptied returns a copy of the machines, and the GPU milli of all of them.
func emptied(nodes []placement.Machine) (list []placement.Machine, capacity int64) {
	list = slices.Clone(nodes)
	for i := range list {
		list[i].GPUs = slices.Clone(list[i].GPUs)
		capacity += list[i].Total.GPUMilli
	}
	return list, capacity
}

// firstFit places each arrival on the first machine and the first GPUs with room.
func firstFit(nodes []placement.Machine, arrivals []pod) *marks {
	list, capacity := emptied(nodes)
	m := &marks{}
	asked, placed := int64(0), int64(0)
	for _, p := range arrivals {
		asked += gpuMilli(p)
		for i := range list {
			if fits(&list[i], p.request) {
				occupy(&list[i], p.request, devicesFor(&list[i], p.request))
				placed += gpuMilli(p)
				break
			}
		}
		m.note(asked, placed, capacity)
	}
	return m
}

// gradient is fragmentation gradient descent (FGD): Weng et al., «Beware of Fragmentation»,
// USENIX ATC '23, section 4, with the scores of the authors' scheduler: whole numbers from 0
// to 100, the first machine among equals.
type gradient struct {
	nodes  []placement.Machine
	shapes []gradientShape
	now    []float64          // fragmentation by machine
	scores map[string][]score // by shape of the arrival, by machine
	stamp  []int              // by machine: placements so far
}

// gradientShape is one request of the mix.
type gradientShape struct {
	request spec.Request
	p       float64
}

// score is a cached score of one machine for one shape.
type score struct {
	stamp  int // of the machine, plus one
	value  int // from 0 to 100; -1: no room
	device int // for a share
}

func newGradient(nodes []placement.Machine, mix []pod) *gradient {
	g := &gradient{scores: map[string][]score{}}
	g.nodes, _ = emptied(nodes)
	at := map[string]int{}
	for _, p := range mix {
		i, ok := at[p.shape]
		if !ok {
			i = len(g.shapes)
			at[p.shape] = i
			g.shapes = append(g.shapes, gradientShape{request: p.request})
		}
		g.shapes[i].p += 1 / float64(len(mix))
	}
	for i := range g.nodes {
		g.now = append(g.now, g.fragmentation(&g.nodes[i]))
	}
	g.stamp = make([]int, len(g.nodes))
	return g
}

// fragmentation returns the expected GPU milli of the machine that a request of the mix
// cannot use: all that is free where the request does not fit, and otherwise the free parts
// that are too small for it.
func (g *gradient) fragmentation(m *placement.Machine) float64 {
	free := m.Total.GPUMilli - m.Used.GPUMilli
	sum := 0.0
	for _, s := range g.shapes {
		unusable := free
		if s.request.GPUs > 0 && s.request.CPUMilli <= m.Total.CPUMilli-m.Used.CPUMilli && admits(m, s.request) {
			large, usable := 0, int64(0)
			for _, d := range m.GPUs {
				if rest := 1000 - d.UsedMilli; rest >= s.request.GPUMilli {
					large++
					usable += rest
				}
			}
			if large >= s.request.GPUs {
				unusable = free - usable
			}
		}
		sum += s.p * float64(unusable)
	}
	return sum
}

// score returns the score of a machine for an arrival, and for a share the best device.
func (g *gradient) score(i int, r spec.Request) (value, device int) {
	m := &g.nodes[i]
	if !fits(m, r) {
		return -1, 0
	}
	try := func(devices []int) int {
		was := m.Used
		occupy(m, r, devices)
		delta := g.now[i] - g.fragmentation(m)
		for _, d := range devices {
			m.GPUs[d].UsedMilli -= r.GPUMilli
		}
		m.Used = was
		return int(100 / (1 + math.Exp(-delta/1000)))
	}
	if r.GPUs != 1 || r.GPUMilli == 1000 {
		return try(devicesFor(m, r)), 0
	}
	value = -1
	for d := range m.GPUs {
		if m.GPUs[d].UsedMilli+r.GPUMilli <= 1000 {
			if v := try([]int{d}); v > value {
				value, device = v, d
			}
		}
	}
	return value, device
}

// arrive places one arrival on the machine with the highest score.
func (g *gradient) arrive(p pod) bool {
	row := g.scores[p.shape]
	if row == nil {
		row = make([]score, len(g.nodes))
		g.scores[p.shape] = row
	}
	best := -1
	for i := range row {
		if row[i].stamp != g.stamp[i]+1 {
			v, d := g.score(i, p.request)
			row[i] = score{g.stamp[i] + 1, v, d}
		}
		if row[i].value >= 0 && (best < 0 || row[i].value > row[best].value) {
			best = i
		}
	}
	if best < 0 {
		return false
	}
	devices := []int{row[best].device}
	if p.request.GPUs != 1 || p.request.GPUMilli == 1000 {
		devices = devicesFor(&g.nodes[best], p.request)
	}
	occupy(&g.nodes[best], p.request, devices)
	g.now[best] = g.fragmentation(&g.nodes[best])
	g.stamp[best]++
	return true
}

// descended places the arrivals by fragmentation gradient descent, with the mix given.
func descended(nodes []placement.Machine, arrivals, mix []pod) *marks {
	g := newGradient(nodes, mix)
	_, capacity := emptied(nodes)
	m := &marks{}
	asked, placed := int64(0), int64(0)
	for _, p := range arrivals {
		asked += gpuMilli(p)
		if g.arrive(p) {
			placed += gpuMilli(p)
		}
		m.note(asked, placed, capacity)
	}
	return m
}

// most returns an upper bound on the share of the GPUs, in percent, that any policy can have
// placed of these arrivals: the largest flow from requests to the machines that they may use,
// where GPUs can be divided at will and CPU and memory are free.
func most(nodes []placement.Machine, arrivals []pod) float64 {
	demand, supply := map[string]int64{}, map[string]int64{}
	edges := map[[2]string]bool{}
	var requests []spec.Request
	samples := map[string]*placement.Machine{}
	for _, p := range arrivals {
		if p.request.GPUs == 0 {
			continue
		}
		key := conditions(p.request)
		if _, ok := demand[key]; !ok {
			requests = append(requests, p.request)
		}
		demand[key] += gpuMilli(p)
	}
	capacity := int64(0)
	for i := range nodes {
		m := &nodes[i]
		var key strings.Builder
		for _, r := range requests {
			r.CPUMilli, r.MemoryMiB = 0, 0
			if admits(m, r) {
				key.WriteByte('x')
			} else {
				key.WriteByte('-')
			}
		}
		supply[key.String()] += m.Total.GPUMilli
		samples[key.String()] = m
		capacity += m.Total.GPUMilli
	}
	for key, m := range samples {
		for _, r := range requests {
			if admits(m, r) {
				edges[[2]string{conditions(r), key}] = true
			}
		}
	}
	return float64(largestFlow(demand, supply, edges)) / float64(capacity) * 100
}

// conditions returns a key of what a request demands of a machine, regardless of amounts.
func conditions(r spec.Request) string {
	only := spec.Request{GPUTypes: r.GPUTypes, GPUMemoryMiB: r.GPUMemoryMiB, Regions: r.Regions, Labels: r.Labels}
	return only.Class()
}

// largestFlow returns the largest flow from demands to supplies along the edges, by
// augmenting paths (Edmonds and Karp, J. ACM 19, 1972).
func largestFlow(demand, supply map[string]int64, edges map[[2]string]bool) int64 {
	left := map[string]int64{}
	for d, n := range demand {
		left["d"+d] = n
	}
	for s, n := range supply {
		left["s"+s] = n
	}
	flow := map[[2]string]int64{} // from demand to supply
	next := map[string][]string{}
	for e := range edges {
		next["d"+e[0]] = append(next["d"+e[0]], "s"+e[1])
		next["s"+e[1]] = append(next["s"+e[1]], "d"+e[0])
	}
	total := int64(0)
	for {
		from := map[string]string{}
		var queue []string
		for d := range demand {
			if left["d"+d] > 0 {
				queue, from["d"+d] = append(queue, "d"+d), ""
			}
		}
		slices.Sort(queue)
		end := ""
		for len(queue) > 0 && end == "" {
			at := queue[0]
			queue = queue[1:]
			for _, to := range next[at] {
				if _, seen := from[to]; seen || at[0] == 's' && flow[[2]string{to, at}] == 0 {
					continue
				}
				from[to] = at
				queue = append(queue, to)
				if to[0] == 's' && left[to] > 0 {
					end = to
					break
				}
			}
		}
		if end == "" {
			return total
		}
		amount, start := left[end], end
		for at := end; from[at] != ""; at = from[at] {
			if prev := from[at]; at[0] == 'd' {
				amount = min(amount, flow[[2]string{at, prev}])
			}
			start = from[at]
		}
		amount = min(amount, left[start])
		for at := end; from[at] != ""; at = from[at] {
			if prev := from[at]; at[0] == 's' {
				flow[[2]string{prev, at}] += amount
			} else {
				flow[[2]string{at, prev}] -= amount
			}
		}
		left[start] -= amount
		left[end] -= amount
		total += amount
	}
}

// referenceNodes returns two machines of one model and one of another.
func referenceNodes() []placement.Machine {
	var list []placement.Machine
	for i, model := range []string{"A", "A", "B"} {
		m := placement.Machine{ID: nodeName(i), Epoch: 1, State: berth.MachineReady,
			Total: berth.Capacity{CPUMilli: 8000, MemoryMiB: 64 << 10, GPUMilli: 2000}}
		for d := range 2 {
			m.GPUs = append(m.GPUs, placement.Device{Index: d, Model: model, Healthy: true})
		}
		list = append(list, m)
	}
	return list
}

// wanting returns a pod for one GPU or a part of it.
func wanting(milli int64, models ...string) pod {
	return pod{shape: fmt.Sprint(milli, models),
		request: spec.Request{CPUMilli: 1000, MemoryMiB: 1024, GPUs: 1, GPUMilli: milli, GPUTypes: models, Members: 1}}
}

// TestTheBoundIsTheLargestFlow: demand for a model beyond its supply is lost, and unbound demand
// gives way to it.
func TestTheBoundIsTheLargestFlow(t *testing.T) {
	t.Parallel()
	free, a, b := wanting(1000), wanting(1000, "A"), wanting(1000, "B")
	for _, c := range []struct {
		name     string
		arrivals []pod
		want     float64 // of six GPUs
	}{
		{"nothing", nil, 0},
		{"three for a model of two", []pod{b, b, b}, 2},
		{"unbound ones give way", []pod{free, free, free, free, b, b}, 6},
		{"parts add up", []pod{wanting(500, "B"), wanting(500, "B"), wanting(500)}, 1.5},
		{"either model", []pod{wanting(1000, "A", "B"), a, a, a, a}, 5},
	} {
		if got := most(referenceNodes(), c.arrivals) * 6 / 100; math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: at most %.2f GPUs, want %.2f", c.name, got, c.want)
		}
	}
}

// TestTheGradientKeepsPartsTogether: a half GPU goes next to another half, where a whole one
// stays usable, and nothing is placed without room.
func TestTheGradientKeepsPartsTogether(t *testing.T) {
	t.Parallel()
	mix := []pod{wanting(500), wanting(1000)}
	g := newGradient(referenceNodes()[:1], mix)
	for i, step := range []struct {
		pod  pod
		want bool
	}{
		{wanting(500), true}, {wanting(500), true}, {wanting(1000), true},
		{wanting(500), false}, {wanting(1000, "B"), false},
	} {
		if got := g.arrive(step.pod); got != step.want {
			t.Errorf("arrival %d: placed %v, want %v", i, got, step.want)
		}
	}
}
