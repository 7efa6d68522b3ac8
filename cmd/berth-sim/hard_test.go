package main

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"

	"berth"
	"berth/placement"
	"berth/spec"
)

// Hard lists: part of the GPU demand is bound to models, memory sizes, regions or labels, and the
// demand for each of these is between half and twice of its supply. In the family of family_test.go
// demand is bound in proportion to supply, so that nothing is ever short.

// hardList is one sort of list. Each draw with another seed is another list of the sort.
type hardList struct {
	name    string
	nodes   func(r *rand.Rand, openb []placement.Machine) []placement.Machine
	targets func(nodes []placement.Machine) []target
	// Pods before they are bound.
	pods func(r *rand.Rand, pods []pod, nodes []placement.Machine) []pod
	// Part of the GPU demand that is bound.
	bound float64
	// Equal demand for each target, regardless of its supply.
	even  bool
	drift drift
}

// drift is how the bound part changes while the list runs.
type drift int

const (
	steady  drift = iota
	turning       // other conditions from one moment to the next, halfway
	sliding       // other conditions, ever more of them from beginning to end
)

// judged reports whether a list belongs to the half on which results are judged. The other half
// is for the choice of numbers. The half follows from the name alone.
func (l *hardList) judged() bool {
	h := fnv.New32a()
	h.Write([]byte(l.name))
	return h.Sum32()>>8&1 == 1
}

// target is a condition that binds a pod to some machines.
type target struct {
	name string
	bind func(r *spec.Request)
}

// models returns a target for each model of the machines.
func models(nodes []placement.Machine) []target {
	var list []target
	for _, m := range modelsOf(nodes) {
		list = append(list, target{m, func(r *spec.Request) { r.GPUTypes = []string{m} }})
	}
	return list
}

// pairs returns a target for each model and for each two models.
func pairs(nodes []placement.Machine) []target {
	list := models(nodes)
	names := modelsOf(nodes)
	for i, a := range names {
		for _, b := range names[:i] {
			list = append(list, target{a + "|" + b, func(r *spec.Request) { r.GPUTypes = []string{a, b} }})
		}
	}
	return list
}

// conditionsOf returns targets of all kinds, alone and together.
func conditionsOf(nodes []placement.Machine) []target {
	list := models(nodes)
	add := func(name string, bind ...func(r *spec.Request)) {
		list = append(list, target{name, func(r *spec.Request) {
			for _, b := range bind {
				b(r)
			}
		}})
	}
	memory := func(gib int64) func(r *spec.Request) {
		return func(r *spec.Request) { r.GPUMemoryMiB = gib << 10 }
	}
	west := func(r *spec.Request) { r.Regions = []string{"west"} }
	linked := func(r *spec.Request) { r.Labels = map[string]string{"link": "fast"} }
	add("memory 24", memory(24))
	add("memory 32", memory(32))
	add("memory 80", memory(80))
	add("west", west)
	add("fast link", linked)
	add("west and fast link", west, linked)
	add("west, memory 24", west, memory(24))
	return list
}

func modelsOf(nodes []placement.Machine) []string {
	var list []string
	for _, n := range nodes {
		for _, d := range n.GPUs {
			if !slices.Contains(list, d.Model) {
				list = append(list, d.Model)
			}
		}
	}
	slices.Sort(list)
	return list
}

// gpuMemory is the memory of each model in GiB; the undisclosed ones of openb have assumed sizes.
var gpuMemory = map[string]int64{
	"A10": 24, "A100": 40, "G2": 24, "G3": 80, "H100": 80, "P100": 16, "T4": 16, "V100M16": 16, "V100M32": 32,
}

// described gives the machines memory sizes, a region each and a label on some.
func described(nodes []placement.Machine) []placement.Machine {
	list, _ := emptied(nodes)
	r := rand.New(rand.NewPCG(99, 0))
	for i := range list {
		m := &list[i]
		for d := range m.GPUs {
			m.GPUs[d].MemoryMiB = gpuMemory[m.GPUs[d].Model] << 10
		}
		if m.Region = "east"; r.Float64() < 0.2 {
			m.Region = "west"
		}
		if len(m.GPUs) >= 4 && r.Float64() < 0.25 {
			m.Labels = map[string]string{"link": "fast"}
		}
	}
	return list
}

// openb returns the machines of Alibaba's list, in its order.
func openb(_ *rand.Rand, nodes []placement.Machine) []placement.Machine { return described(nodes) }

// fewNew returns a cluster of a few new GPUs and many older ones, in random order.
func fewNew(r *rand.Rand, _ []placement.Machine) []placement.Machine {
	var list []placement.Machine
	add := func(count, gpus int, model string, cpus, memory int64) {
		for range count {
			m := placement.Machine{Epoch: 1, State: berth.MachineReady,
				Total: berth.Capacity{CPUMilli: cpus * 1000, MemoryMiB: memory << 10, GPUMilli: int64(gpus) * 1000}}
			for i := range gpus {
				m.GPUs = append(m.GPUs, placement.Device{Index: i, Model: model, Healthy: true})
			}
			list = append(list, m)
		}
	}
	add(40, 8, "H100", 192, 1024)
	add(150, 8, "A100", 128, 768)
	add(300, 4, "T4", 96, 384)
	add(60, 4, "V100M32", 64, 384)
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for i := range list {
		list[i].ID = nodeName(i)
	}
	return described(list)
}

func asTheyAre(_ *rand.Rand, pods []pod, _ []placement.Machine) []pod { return pods }

// hardLists are all sorts of lists.
var hardLists = func() []hardList {
	var list []hardList
	add := func(l hardList, format string, percents ...int) {
		for _, p := range percents {
			x := l
			x.name, x.bound = fmt.Sprintf(format, p), float64(p)/100
			if x.nodes == nil {
				x.nodes = openb
			}
			if x.targets == nil {
				x.targets = models
			}
			if x.pods == nil {
				x.pods = asTheyAre
			}
			list = append(list, x)
		}
	}
	add(hardList{even: true}, "%d %% bound, each model equally", 10, 20, 25, 33)
	add(hardList{}, "%d %% bound to models", 5, 10, 15, 20, 25, 33, 45, 60)
	add(hardList{targets: pairs}, "%d %% bound to one or two models", 10, 25, 40, 60)
	add(hardList{targets: conditionsOf}, "%d %% bound by several conditions", 10, 25, 40, 60)
	add(hardList{drift: turning}, "%d %% bound to models, others from the middle on", 10, 25, 40)
	add(hardList{drift: sliding}, "%d %% bound to models, others little by little", 10, 25, 40)
	add(hardList{pods: redrawn("shared", 0.6)}, "%d %% bound to models, shared GPUs 60 %%", 20, 40)
	add(hardList{pods: redrawn("several", 0.4)}, "%d %% bound to models, several GPUs 40 %%", 20, 40)
	add(hardList{pods: hungry(1.25, 1)}, "%d %% bound to models, CPU x 1.25", 20, 40)
	add(hardList{nodes: fewNew}, "few new GPUs, %d %% bound to models", 5, 10, 20, 33, 60)
	add(hardList{nodes: fewNew, targets: conditionsOf}, "few new GPUs, %d %% bound by several conditions", 20, 40, 60)
	add(hardList{nodes: fewNew, drift: turning}, "few new GPUs, %d %% bound, others from the middle on", 15, 33)
	return list
}()

// hardDraw is one list: machines, arrivals, and the pods that the arrivals are drawn from.
type hardDraw struct {
	nodes         []placement.Machine
	arrivals, mix []pod
}

// draw makes the list of a seed.
func (l *hardList) draw(seed uint64, nodes []placement.Machine, pods []pod) hardDraw {
	r := rand.New(rand.NewPCG(seed, 14))
	d := hardDraw{nodes: l.nodes(r, nodes)}
	_, capacity := emptied(d.nodes)
	base := l.pods(r, pods, d.nodes)
	if l.drift == steady {
		d.mix = l.bind(r, base, d.nodes)
		d.arrivals = cut(arriving(r, d.mix, capacity, 1.32), capacity, 1.32)
		// Arrivals and mix have the same shapes.
		d.mix = shaped(d.mix)
		return d
	}
	first := arriving(r, l.bind(r, base, d.nodes), capacity, 1.32)
	second := arriving(r, l.bind(r, base, d.nodes), capacity, 1.32)
	asked := int64(0)
	for i := 0; i < min(len(first), len(second)) && float64(asked) < 1.32*float64(capacity); i++ {
		done := float64(asked) / (1.32 * float64(capacity))
		p := first[i]
		if l.drift == turning && done >= 0.5 || l.drift == sliding && r.Float64() < done {
			p = second[i]
		}
		p.name = fmt.Sprint(i)
		d.arrivals, asked = append(d.arrivals, p), asked+gpuMilli(p)
	}
	d.mix = d.arrivals
	return d
}

// cut returns the arrivals until the share of the capacity has been asked for.
func cut(arrivals []pod, capacity int64, share float64) []pod {
	asked := int64(0)
	for i, p := range arrivals {
		if asked += gpuMilli(p); float64(asked) >= share*float64(capacity) {
			return arrivals[:i+1]
		}
	}
	return arrivals
}

// shaped returns the pods with the shapes that arrivals have.
func shaped(pods []pod) []pod {
	list := slices.Clone(pods)
	for i := range list {
		list[i].shape = fmt.Sprintf("%+v", list[i].request)
	}
	return list
}

// bind binds the list's part of the GPU demand. Targets come in random order, each with a demand
// of 50 to 200 % of its supply, until the part is reached; see needs.
func (l *hardList) bind(r *rand.Rand, pods []pod, nodes []placement.Machine) []pod {
	list := slices.Clone(pods)
	demand := 0.0
	for i := range list {
		list[i].request.GPUTypes = nil
		demand += float64(gpuMilli(list[i]))
	}
	targets := l.targets(nodes)
	r.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	need := l.needs(r, demand, targets, nodes)
	for _, i := range r.Perm(len(list)) {
		p := &list[i]
		if p.request.GPUs == 0 {
			continue
		}
		// A target is drawn by the demand that it still lacks.
		sum := 0.0
		for _, n := range need {
			sum += n
		}
		x := r.Float64() * sum
		for k, t := range targets {
			if x -= need[k]; x > 0 || need[k] <= 0 {
				continue
			}
			q := p.request
			t.bind(&q)
			// A pod that no machine of the target could hold stays free.
			if slices.ContainsFunc(nodes, func(m placement.Machine) bool { return fits(&m, q) }) {
				p.request = q
				need[k] -= float64(gpuMilli(*p))
			}
			break
		}
	}
	return list
}

// needs returns the GPU milli to bind to each target. The demand of the whole list stands for one
// cluster, so that a multiple of a target's supply is the same multiple of its part of the demand.
func (l *hardList) needs(r *rand.Rand, demand float64, targets []target, nodes []placement.Machine) []float64 {
	need, supply := make([]float64, len(targets)), make([]float64, len(targets))
	left := l.bound * demand
	if l.even {
		for i := range need {
			need[i] = left / float64(len(targets))
		}
		return need
	}
	_, capacity := emptied(nodes)
	for i, t := range targets {
		for j := range nodes {
			if admits(&nodes[j], bare(t)) {
				supply[i] += float64(nodes[j].Total.GPUMilli) * demand / float64(capacity)
			}
		}
		// A target that the rest of the part would leave below half of its supply is passed over.
		if x := (0.5 + 1.5*r.Float64()) * supply[i]; left >= 0.5*supply[i] {
			need[i] = min(left, x)
			left -= need[i]
		}
	}
	// The rest goes where there is already demand, up to twice the supply, and then to the
	// smallest target.
	smallest := 0
	for i := range targets {
		if need[i] > 0 {
			more := min(left, 2*supply[i]-need[i])
			need[i], left = need[i]+more, left-more
		}
		if supply[i] < supply[smallest] {
			smallest = i
		}
	}
	need[smallest] += left
	return need
}

// bare returns a request of one GPU with the condition of a target alone.
func bare(t target) spec.Request {
	r := spec.Request{GPUs: 1, GPUMilli: 1000}
	t.bind(&r)
	return r
}

// TestHardListsAreHard: a list has the bound part that it is named for, and in half of the lists
// at least one model is so short that no policy can place all that arrives.
func TestHardListsAreHard(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 3))
	var pods []pod
	for range 6000 {
		p := pod{request: spec.Request{CPUMilli: 4000, MemoryMiB: 8 << 10, GPUs: 1, GPUMilli: 1000, Members: 1}}
		if r.IntN(2) == 0 {
			p.request.GPUMilli = int64(100 * (1 + r.IntN(9)))
		}
		pods = append(pods, p)
	}
	nodes := fewNew(r, nil)
	short := 0
	for _, l := range hardLists {
		l.nodes = func(*rand.Rand, []placement.Machine) []placement.Machine { return nodes }
		l.pods = asTheyAre
		bound := l.bind(r, pods, nodes)
		part, total := 0.0, 0.0
		for _, p := range bound {
			total += float64(gpuMilli(p))
			if conditions(p.request) != conditions(spec.Request{}) {
				part += float64(gpuMilli(p))
			}
		}
		if part/total < l.bound-0.03 || part/total > l.bound+0.03 {
			t.Errorf("%s: %.2f of the demand is bound", l.name, part/total)
		}
		d := l.draw(1, nil, pods)
		_, capacity := emptied(d.nodes)
		if most(d.nodes, cut(d.arrivals, capacity, 1)) < 99.5 {
			short++
		}
	}
	if short < len(hardLists)/2 {
		t.Errorf("in %d of %d lists a model is short", short, len(hardLists))
	}
}
