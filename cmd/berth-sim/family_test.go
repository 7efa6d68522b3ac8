package main

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth"
	"berth/placement"
	"berth/spec"
)

var traces = flag.String("traces", "", "folder with openb/, for BenchmarkFamily")

// sort of a pod, by which lists of the family differ.
func sortOf(p pod) string {
	switch r := p.request; {
	case r.GPUs == 0:
		return "none"
	case r.GPUMilli < 1000:
		return "shared"
	case r.GPUs == 1:
		return "one"
	}
	return "several"
}

func gpuMilli(p pod) int64 { return int64(p.request.GPUs) * p.request.GPUMilli }

// member makes another list of the family from the default one.
type member struct {
	name string
	make func(r *rand.Rand, pods []pod, nodes []placement.Machine) []pod
}

// redrawn draws pods anew so that one sort has a part of the GPU demand; the
// others share the rest as they did, and work without GPUs stays as it is.
func redrawn(sort string, part float64) func(*rand.Rand, []pod, []placement.Machine) []pod {
	return func(r *rand.Rand, pods []pod, _ []placement.Machine) []pod {
		by, demand, total := map[string][]pod{}, map[string]float64{}, 0.0
		for _, p := range pods {
			by[sortOf(p)] = append(by[sortOf(p)], p)
			demand[sortOf(p)] += float64(gpuMilli(p))
			total += float64(gpuMilli(p))
		}
		list := slices.Clone(by["none"])
		for _, s := range []string{"shared", "one", "several"} {
			want := part * total
			if s != sort {
				want = (1 - part) * total * demand[s] / (total - demand[sort])
			}
			for sum := 0.0; sum < want; {
				p := by[s][r.IntN(len(by[s]))]
				list, sum = append(list, p), sum+float64(gpuMilli(p))
			}
		}
		return list
	}
}

// bound lets a part of the pods for GPUs go to one or two models only, drawn by
// how many GPUs there are of each.
func bound(part float64) func(*rand.Rand, []pod, []placement.Machine) []pod {
	return func(r *rand.Rand, pods []pod, nodes []placement.Machine) []pod {
		var models []string
		largest := map[string]int{}
		for _, n := range nodes {
			for _, d := range n.GPUs {
				models = append(models, d.Model)
				largest[d.Model] = max(largest[d.Model], len(n.GPUs))
			}
		}
		list := slices.Clone(pods)
		for i, p := range list {
			if p.request.GPUs == 0 {
				continue
			}
			list[i].request.GPUTypes = nil
			if r.Float64() >= part {
				continue
			}
			types := []string{}
			for len(types) < 1+r.IntN(2) {
				if m := models[r.IntN(len(models))]; largest[m] >= p.request.GPUs && !slices.Contains(types, m) {
					types = append(types, m)
				}
			}
			list[i].request.GPUTypes = types
		}
		return list
	}
}

// more makes work without GPUs so many times as frequent.
func more(times int) func(*rand.Rand, []pod, []placement.Machine) []pod {
	return func(_ *rand.Rand, pods []pod, _ []placement.Machine) []pod {
		list := slices.Clone(pods)
		for _, p := range pods {
			for range times - 1 {
				if p.request.GPUs == 0 {
					list = append(list, p)
				}
			}
		}
		return list
	}
}

// hungry lets pods for GPUs want more CPU and memory; those for four and more are
// capped at what the largest such machine has.
func hungry(cpu, memory float64) func(*rand.Rand, []pod, []placement.Machine) []pod {
	return func(_ *rand.Rand, pods []pod, _ []placement.Machine) []pod {
		list := slices.Clone(pods)
		for i := range list {
			r := &list[i].request
			if r.GPUs == 0 {
				continue
			}
			r.CPUMilli, r.MemoryMiB = int64(float64(r.CPUMilli)*cpu), int64(float64(r.MemoryMiB)*memory)
			if r.GPUs >= 4 {
				r.CPUMilli, r.MemoryMiB = min(r.CPUMilli, 96_000), min(r.MemoryMiB, 384<<10)
			}
		}
		return list
	}
}

var family = func() []member {
	list := []member{{"default, shuffled anew", func(_ *rand.Rand, p []pod, _ []placement.Machine) []pod { return p }}}
	add := func(name string, f func(*rand.Rand, []pod, []placement.Machine) []pod) {
		list = append(list, member{name, f})
	}
	for _, percent := range []int{40, 60, 80, 100} {
		add(fmt.Sprintf("shared GPUs %d %% of the demand", percent), redrawn("shared", float64(percent)/100))
	}
	for _, percent := range []int{10, 20, 33} {
		add(fmt.Sprintf("%d %% bound to models", percent), bound(float64(percent)/100))
	}
	for _, percent := range []int{20, 30, 40, 50} {
		add(fmt.Sprintf("several GPUs %d %% of the demand", percent), redrawn("several", float64(percent)/100))
	}
	add("work without GPUs x 2", more(2))
	add("work without GPUs x 4", more(4))
	for _, times := range []float64{1.25, 1.5, 2} {
		add(fmt.Sprintf("CPU of GPU work x %g", times), hungry(times, 1))
	}
	add("memory of GPU work x 1.5", hungry(1, 1.5))
	return list
}()

// arriving brings a list into a random order, and draws from it again until the
// share of all GPUs has been asked for.
func arriving(r *rand.Rand, pods []pod, capacity int64, share float64) []pod {
	list := slices.Clone(pods)
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	asked := int64(0)
	for i := range list {
		list[i].name = fmt.Sprint(i)
		list[i].shape = fmt.Sprintf("%+v", list[i].request)
		asked += gpuMilli(list[i])
	}
	for n := len(list); float64(asked) < share*float64(capacity); {
		p := list[r.IntN(n)]
		p.name = fmt.Sprint(len(list))
		list, asked = append(list, p), asked+gpuMilli(p)
	}
	return list
}

// marks are the shares of GPUs placed when 100 and 130 % were asked for, each the
// mean over the arrivals that round to it.
type marks struct{ sum, count [2]float64 }

func (m *marks) note(asked, placed, capacity int64) {
	for i, mark := range []float64{100, 130} {
		if math.Round(float64(asked)/float64(capacity)*100) == mark {
			m.sum[i] += float64(placed) / float64(capacity) * 100
			m.count[i]++
		}
	}
}

func (m *marks) mean(i int) float64 { return m.sum[i] / m.count[i] }

// packed lets the engine place the arrivals.
func packed(nodes []placement.Machine, arrivals []pod, pack placement.Pack, mix *placement.Mix) *marks {
	c := newCluster(nodes, mix)
	c.engine = placement.Planner{MaxStarts: 1, Pack: pack}
	m := &marks{}
	for _, p := range arrivals {
		c.arrive(p)
		m.note(c.asked, c.placed, c.capacity)
	}
	return m
}

// BenchmarkFamily prints how much of the GPUs first fit, best fit and worth place
// of each list of the family, three seeds each: the table of docs/design/placement.md.
func BenchmarkFamily(b *testing.B) {
	if *traces == "" {
		b.Skip("say where the lists are: -args -traces FOLDER")
	}
	nodes, err := readNodes(filepath.Join(*traces, "openb/openb_node_list_gpu_node.csv"))
	if err != nil {
		b.Fatal(err)
	}
	pods, err := readMix(filepath.Join(*traces, "openb/openb_pod_list_default.csv"))
	if err != nil {
		b.Fatal(err)
	}
	capacity := int64(0)
	for _, n := range nodes {
		capacity += n.Total.GPUMilli
	}
	var table strings.Builder
	for b.Loop() {
		table.Reset()
		fmt.Fprintf(&table, "| list | first fit 100 %% | 130 %% | best fit 100 %% | 130 %% | worth 100 %% | 130 %% |\n")
		for _, x := range family {
			var sums [6]float64
			for seed := range uint64(3) {
				r := rand.New(rand.NewPCG(42+seed, 0))
				list := x.make(r, pods, nodes)
				arrivals := arriving(r, list, capacity, 1.32)
				mix, err := mixOf(arrivals[:len(list)])
				if err != nil {
					b.Fatal(err)
				}
				for i, m := range []*marks{firstFit(nodes, arrivals), packed(nodes, arrivals, placement.BestFit, nil), packed(nodes, arrivals, placement.LeastFragmentation, mix)} {
					sums[2*i] += m.mean(0) / 3
					sums[2*i+1] += m.mean(1) / 3
				}
			}
			fmt.Fprintf(&table, "| %s | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f |\n", x.name, sums[0], sums[1], sums[2], sums[3], sums[4], sums[5])
			if sums[4] < sums[0] || sums[5] < sums[1] || sums[4] < sums[2] || sums[5] < sums[3] {
				b.Errorf("%s: worth places less than first fit or best fit", x.name)
			}
		}
	}
	b.Log("\n" + table.String())
}

// TestTheFamilyIsWhatItIsCalled: lists have the parts that they are named for, and
// of one with more shapes than worth is told from it places no less than first fit.
func TestTheFamilyIsWhatItIsCalled(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 1))
	var nodes []placement.Machine
	for i := range 40 {
		m := placement.Machine{ID: nodeName(i), Epoch: 1, State: berth.MachineReady, Total: berth.Capacity{CPUMilli: 96_000, MemoryMiB: 384 << 10, GPUMilli: 8000}}
		for d := range 8 {
			m.GPUs = append(m.GPUs, placement.Device{Index: d, Model: []string{"A", "B"}[i%2], Healthy: true})
		}
		nodes = append(nodes, m)
	}
	var pods []pod
	for i := range 900 {
		p := pod{name: fmt.Sprint(i), request: spec.Request{CPUMilli: 1000 * int64(1+r.IntN(8)), MemoryMiB: 1024 * int64(1+r.IntN(32)), Members: 1, Execution: spec.AtLeastOnce}}
		switch r.IntN(4) {
		case 0:
			p.request.GPUs, p.request.GPUMilli = 1, int64(100*(1+r.IntN(9)))
		case 1:
			p.request.GPUs, p.request.GPUMilli = 1, 1000
		case 2:
			p.request.GPUs, p.request.GPUMilli = 1<<(1+r.IntN(3)), 1000
		}
		pods = append(pods, p)
	}
	for _, sort := range []string{"shared", "several"} {
		for _, want := range []float64{0.4, 0.5} {
			part, total := 0.0, 0.0
			for _, p := range redrawn(sort, want)(r, pods, nodes) {
				total += float64(gpuMilli(p))
				if sortOf(p) == sort {
					part += float64(gpuMilli(p))
				}
			}
			if math.Abs(part/total-want) > 0.02 {
				t.Errorf("%s: has %.2f of the demand, want %.2f", sort, part/total, want)
			}
		}
	}
	// Hardly two of these are alike: what is rare counts all the same.
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 9))
		list := redrawn("shared", 0.6)(r, pods, nodes)
		arrivals := arriving(r, list, 40*8000, 1.32)
		mix, err := mixOf(arrivals[:len(list)])
		if err != nil {
			t.Fatal(err)
		}
		if first, worth := firstFit(nodes, arrivals), packed(nodes, arrivals, placement.LeastFragmentation, mix); !(worth.mean(0) >= first.mean(0)-0.2) {
			t.Errorf("seed %d: worth places %.2f %%, first fit %.2f %%", seed, worth.mean(0), first.mean(0))
		}
	}
}
