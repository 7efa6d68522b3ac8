package fit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"berth"
	"berth/placement/cluster"
	"berth/spec"
)

// Requests as clusters see them: shares, whole GPUs, several, bound to models.
func asked() []Asked {
	return []Asked{
		{spec.Request{CPUMilli: 3152, MemoryMiB: 5600, GPUs: 1, GPUMilli: 810}, 10},
		{spec.Request{CPUMilli: 11400, MemoryMiB: 49152, GPUs: 1, GPUMilli: 1000}, 20},
		{spec.Request{CPUMilli: 8000, MemoryMiB: 30517, GPUs: 1, GPUMilli: 470}, 8},
		{spec.Request{CPUMilli: 4000, MemoryMiB: 15258, GPUs: 1, GPUMilli: 160, GPUTypes: []string{"B"}}, 3},
		{spec.Request{CPUMilli: 88000, MemoryMiB: 327680, GPUs: 8, GPUMilli: 1000}, 1},
		{spec.Request{CPUMilli: 16000, MemoryMiB: 65536, GPUs: 2, GPUMilli: 1000}, 1},
		{spec.Request{CPUMilli: 12500, MemoryMiB: 57344}, 5},
	}
}

func given(t *testing.T, list []Asked) *Mix {
	t.Helper()
	m, err := GivenMix(list)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func gpuMachine(id int, cpu int64, models ...string) cluster.Machine {
	m := cluster.Machine{
		ID: berth.MachineID(fmt.Sprintf("m%02d", id)), Epoch: 1, State: berth.MachineReady,
		Total: berth.Capacity{CPUMilli: cpu, MemoryMiB: 4 * cpu, GPUMilli: int64(len(models)) * 1000},
	}
	for i, model := range models {
		m.GPUs = append(m.GPUs, cluster.Device{Index: i, Model: model, Healthy: true})
	}
	return m
}

// bench is a state without a queue: jobs are placed one by one.
type bench struct{ *State }

func newBench() bench { return bench{NewState(cluster.New())} }

// define returns the class of a request, ready for a search.
func (s bench) define(r spec.Request) *cluster.Class {
	c := s.Cluster.Classes[r.Class()]
	if c == nil {
		c = cluster.NewClass(r.Class(), r)
		s.Cluster.Define(c)
		s.Memory.Reset(c)
	}
	s.Packer.Appraise()
	s.Cluster.Settle(c)
	return c
}

// placer returns the placer of a new plan, and a function that ends the plan.
func (s bench) placer() (p *Placer, finish func()) {
	at := &cluster.Moment{Number: s.Cluster.NextPlan()}
	l := cluster.NewLedger(at, s.Cluster)
	p = NewPlacer(at, s.State, l)
	p.ByUsable = s.Packer.Appraise()
	return p, l.Finish
}

// place returns the place of a job alone in a plan, which wants data.
func (s bench) place(c *cluster.Class, wants ...spec.DataKey) ([]berth.Grant, bool) {
	p, finish := s.placer()
	defer finish()
	p.Wants = wants
	return p.Gang(c, nil, "")
}

// exact is the usable share by its definition: every one of the eight offers to each
// hole drawn from the mix, without buckets.
func exact(v *value, s *remnant) float64 {
	devices := v.limit(s)
	limits := slices.Clone(v.limits)
	sum := 0.0
	for _, h := range s.holes {
		type offer struct{ take, p float64 }
		var offers []offer
		for i, c := range v.shapes {
			o := offer{0, c.p}
			if devices[i]>>h.variant()&1 != 0 {
				z := v.sizes[c.size]
				o.take = float64(h.free()/z.milli*z.milli) * limits[i]
			}
			offers = append(offers, o)
		}
		slices.SortFunc(offers, func(a, b offer) int { return int(math.Copysign(1, a.take-b.take)) })
		below := 0.0
		for _, o := range offers {
			sum += o.take * (math.Pow(below+o.p, 8) - math.Pow(below, 8))
			below += o.p
		}
	}
	return sum
}

// TestWorthIsTheBestOfEightOffers compares it with its definition; buckets may
// blur each hole by their width.
func TestWorthIsTheBestOfEightOffers(t *testing.T) {
	t.Parallel()
	s := newBench()
	s.Packer.Use(given(t, asked()))
	s.Cluster.Upsert(gpuMachine(1, 96000, "A", "A", "A", "A", "A", "A", "A", "B"))
	if !s.Packer.Appraise() {
		t.Fatal("a given mix is not trusted")
	}
	v, n := s.Packer.fleet.value, s.Cluster.Nodes["m01"]
	v.scarce = false
	r := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		for i := range n.FreeMilli {
			n.FreeMilli[i] = int64(r.IntN(5)) * 250
			if r.IntN(3) == 0 {
				n.FreeMilli[i] = int64(r.IntN(1001))
			}
		}
		n.Free.CPUMilli, n.Free.MemoryMiB = r.Int64N(96000), r.Int64N(393216)
		at := remnantOf(n, nil)
		if got, want := v.usable(&at), exact(v, &at); math.Abs(got-want) > bucketWidth*float64(len(at.holes)) {
			t.Fatalf("worth %.1f, by definition %.1f, of %v", got, want, at)
		}
	}
}

// TestWorthOfWhatNobodyCanUseIsNothing: no CPU left, or only models that no
// request allows.
func TestWorthOfWhatNobodyCanUseIsNothing(t *testing.T) {
	t.Parallel()
	s := newBench()
	s.Packer.Use(given(t, []Asked{{spec.Request{CPUMilli: 4000, MemoryMiB: 100, GPUs: 1, GPUMilli: 500, GPUTypes: []string{"B"}}, 1}}))
	s.Cluster.Upsert(gpuMachine(1, 8000, "A"))
	s.Cluster.Upsert(gpuMachine(2, 3999, "B"))
	s.Cluster.Upsert(gpuMachine(3, 8000, "B"))
	s.Cluster.Upsert(gpuMachine(4, 4000, "B"))
	s.Packer.Appraise()
	for id, want := range map[berth.MachineID]float64{"m01": 0, "m02": 0, "m03": 1000, "m04": 500} {
		at := remnantOf(s.Cluster.Nodes[id], nil)
		if got := s.Packer.fleet.value.usable(&at); got != want {
			t.Errorf("machine %s is worth %.1f, want %.1f", id, got, want)
		}
	}
}

// TestScarceCPUIsWhatTheMixWantsOfWhatThereIs: 10 cores per GPU are wanted.
func TestScarceCPUIsWhatTheMixWantsOfWhatThereIs(t *testing.T) {
	t.Parallel()
	for cpu, want := range map[int64]bool{20_000: true, 21_500: false} {
		s := newBench()
		s.Packer.Use(given(t, []Asked{
			{spec.Request{CPUMilli: 5000, GPUs: 1, GPUMilli: 1000}, 2},
			{spec.Request{CPUMilli: 10000}, 1},
		}))
		s.Cluster.Upsert(gpuMachine(1, cpu, "A", "A"))
		s.Packer.Appraise()
		if got := s.Packer.fleet.value.scarce; got != want {
			t.Errorf("2 GPUs with %d milli CPU: scarce %v, want %v", cpu, got, want)
		}
		// A machine of CPUs alone makes CPU plentiful.
		s.Cluster.Upsert(gpuMachine(2, 64_000))
		s.Packer.Appraise()
		if s.Packer.fleet.value.scarce {
			t.Error("CPU is scarce beside an empty machine of 64 cores")
		}
	}
}

// TestWorthFallsLeastWhereAJobGoes looks at every machine and device for each
// of many jobs, with jobs that end in between: grouping and keeping costs
// change nothing.
func TestWorthFallsLeastWhereAJobGoes(t *testing.T) {
	t.Parallel()
	for _, cores := range []int64{96000, 40000} { // CPU plentiful, scarce
		r := rand.New(rand.NewPCG(uint64(cores), 2))
		list := asked()
		s := newBench()
		s.Packer.Use(given(t, list))
		var empty []cluster.Machine
		for i := range 40 {
			model := []string{"A", "B"}[i%2]
			m := gpuMachine(i, cores, model, model, model, model, model, model, model, model)
			switch i % 5 {
			case 0:
				m = gpuMachine(i, 104000, "A", "B") // devices differ
			case 1:
				m.GPUs[3].Healthy = false
			}
			empty = append(empty, m)
			s.Cluster.Upsert(m)
		}
		placed := 0
		for step := range 2000 {
			request := list[r.IntN(len(list))].Request
			c := s.define(request)
			want, fits := s.leastLoss(c)
			ranks, ok := s.place(c)
			if ok != fits {
				t.Fatalf("step %d: placed is %v, fits is %v", step, ok, fits)
			}
			if !fits { // the jobs of a machine have ended
				s.Cluster.Upsert(empty[r.IntN(len(empty))])
				continue
			}
			placed++
			n := s.Cluster.Nodes[ranks[0].Machine]
			before := remnantOf(n, nil)
			priced := s.Packer.fleet.scarcity.priceOf(&before)
			n.Subtract(ranks[0])
			after := remnantOf(n, nil)
			priced -= s.Packer.fleet.scarcity.priceOf(&after)
			n.Add(ranks[0])
			s.Cluster.Upsert(used(n.Machine, ranks[0]))
			if got := s.costOf(&before, &after, priced); got-want > 0.01 {
				t.Fatalf("step %d: %+v costs %.3f on %s, least is %.3f", step, request, got, n.ID, want)
			}
		}
		if placed < 500 {
			t.Fatalf("only %d of the jobs were placed", placed)
		}
	}
}

func used(m cluster.Machine, g berth.Grant) cluster.Machine {
	m.Used = m.Used.Add(g.Capacity)
	m.GPUs = slices.Clone(m.GPUs)
	for _, d := range g.GPUs {
		m.GPUs[d.Index].UsedMilli += d.Milli
	}
	return m
}

// costOf returns the loss of usable share between two remnants plus a surcharge.
func (s bench) costOf(before, after *remnant, surcharge float64) float64 {
	v := s.Packer.fleet.value
	return v.usable(before) - v.usable(after) + surcharge
}

func (s bench) leastLoss(c *cluster.Class) (least float64, fits bool) {
	least = math.Inf(1)
	sc := s.Packer.fleet.scarcity
	sc.refresh()
	for _, m := range c.Matches {
		for _, n := range s.Cluster.Nodes {
			devices, ok := Devices(c, n, m.Devices)
			if n.Kind != m.Kind || !ok {
				continue
			}
			places := [][]int{devices}
			if c.Request.GPUs == 1 && c.Request.GPUMilli < cluster.Whole {
				places = nil
				for i, free := range n.FreeMilli {
					if free >= c.Request.GPUMilli && admitted(n, i, m.Devices) {
						places = append(places, []int{i})
					}
				}
			}
			before := remnantOf(n, nil)
			for _, p := range places {
				g := Grant(c, n, p)
				n.Subtract(g)
				after := remnantOf(n, nil)
				n.Add(g)
				least = min(least, s.costOf(&before, &after, sc.priceOf(&before)-sc.priceOf(&after)))
				fits = true
			}
		}
	}
	return least, fits
}

// TestMixFollowsWhatIsAskedFor: what was asked for long ago fades, and the
// estimate rests while little has moved.
func TestMixFollowsWhatIsAskedFor(t *testing.T) {
	t.Parallel()
	m := NewMix()
	old := cluster.NewClass("old", spec.Request{CPUMilli: 1000, GPUs: 1, GPUMilli: 500})
	young := cluster.NewClass("young", spec.Request{CPUMilli: 2000, GPUs: 1, GPUMilli: 1000})
	for range 20 * fading {
		m.Observe(old)
		m.refresh()
	}
	if m.version != 1 {
		t.Errorf("%d estimates of a mix that did not change", m.version)
	}
	for range 2 * fading {
		m.Observe(young)
		m.refresh()
	}
	for _, s := range m.estimate {
		if want := math.Exp(-2); s.shape == m.names[old] && math.Abs(s.p-want) > 2*news {
			t.Errorf("after twice the memory the old requests are %.3f of the mix, want about %.3f", s.p, want)
		}
	}
	if m.version < 3 || len(m.estimate) != 2 {
		t.Errorf("%d estimates of a mix that turned over, %d shapes", m.version, len(m.estimate))
	}
}

// TestMixIsBounded: of ever new shapes it keeps the frequent ones as they are, and
// the others, of which there are too many, as what they are like.
func TestMixIsBounded(t *testing.T) {
	t.Parallel()
	m := NewMix()
	often := cluster.NewClass("", spec.Request{CPUMilli: 1, GPUs: 1, GPUMilli: 500})
	m.names[often] = "often"
	for i := range 5000 {
		c := cluster.NewClass("", spec.Request{CPUMilli: int64(i + 2), GPUs: 1, GPUMilli: 1000})
		m.names[c] = fmt.Sprint(i)
		m.Observe(c)
		m.Observe(often)
	}
	m.refresh()
	if len(m.shapes) > maxKept || len(m.estimate) > maxShapes {
		t.Errorf("%d shapes kept, %d in the estimate", len(m.shapes), len(m.estimate))
	}
	if !slices.ContainsFunc(m.estimate, func(p part) bool { return p.shape == "often" && p.p > 0.4 && p.p < 0.7 }) {
		t.Errorf("the frequent shape is not what half of them ask for: %+v", m.estimate)
	}
}

// TestFleetIsBounded: remnants come and go, and what is kept of them does not
// grow without end.
func TestFleetIsBounded(t *testing.T) {
	t.Parallel()
	s := newBench()
	s.Packer.Use(given(t, asked()))
	m := gpuMachine(1, 96000, "A", "A")
	s.Cluster.Upsert(m)
	c := s.define(spec.Request{CPUMilli: 1, GPUs: 1, GPUMilli: 1})
	for i := range maxDead {
		m.Used.CPUMilli = int64(i)
		s.Cluster.Upsert(m)
		if _, ok := s.place(c); !ok {
			t.Fatalf("round %d: the job has no room", i)
		}
	}
	if f := s.Packer.fleet; len(f.groups) > minDead+8 || f.slots > minDead+12 || f.dead != len(f.groups)-1 {
		t.Errorf("%d groups, %d of them dead, %d slots, for one machine", len(f.groups), f.dead, f.slots)
	}
}

// TestSpentPlanGoesOnWithBestFit: a plan looks at no more costs than it may, and
// starts everything that fits all the same.
func TestSpentPlanGoesOnWithBestFit(t *testing.T) {
	t.Parallel()
	s := newBench()
	s.Packer.Use(given(t, asked()))
	s.Cluster.Upsert(gpuMachine(1, 96000, "A", "A"))
	c := s.define(spec.Request{CPUMilli: 1000, GPUs: 1, GPUMilli: 250})
	p, finish := s.placer()
	defer finish()
	p.looks = maxLooks + 1
	for i := range 8 {
		if _, ok := p.Gang(c, nil, ""); !ok {
			t.Fatalf("%d jobs of 8 that fit were placed", i)
		}
	}
	if p.looks != maxLooks+1 {
		t.Errorf("a spent plan looked %d times more", p.looks-maxLooks-1)
	}
}
