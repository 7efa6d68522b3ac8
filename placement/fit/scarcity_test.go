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

// gpu returns a request of one whole GPU of one of the given models; none: of any model.
func gpu(models ...string) spec.Request {
	return spec.Request{CPUMilli: 4000, MemoryMiB: 8 << 10, GPUs: 1, GPUMilli: 1000, GPUTypes: models}
}

// twoModels returns a state with few machines of model A and more of model B, 8 GPUs each.
func twoModels(t *testing.T, a, b int, mix ...Asked) bench {
	t.Helper()
	s := newBench()
	for i := range a + b {
		model := "A"
		if i >= a {
			model = "B"
		}
		s.Cluster.Upsert(gpuMachine(i, 96_000, slices.Repeat([]string{model}, 8)...))
	}
	for _, m := range mix {
		s.define(m.Request)
	}
	s.Packer.Use(given(t, mix))
	return s
}

// start places a job and keeps its capacity in use. It returns the model of its GPU.
func (s bench) start(t *testing.T, r spec.Request) string {
	t.Helper()
	grants, ok := s.place(s.define(r))
	if !ok {
		return ""
	}
	n := s.Cluster.Nodes[grants[0].Machine]
	s.Cluster.Upsert(used(n.Machine, grants[0]))
	return n.GPUs[0].Model
}

func TestJobsWithAChoiceKeepOffScarceGPUs(t *testing.T) {
	t.Parallel()
	half := func(models ...string) spec.Request {
		r := gpu(models...)
		r.GPUMilli = 500
		return r
	}
	// A tenth of the machines has model A, and half of the demand needs it. A half-used GPU of A
	// would be the tightest place for any half.
	s := twoModels(t, 1, 9, Asked{half("A"), 4}, Asked{half(), 2}, Asked{gpu(), 1})
	for i := range 15 {
		if model := s.start(t, half("A")); model != "A" {
			t.Fatalf("job %d that needs A got %q", i, model)
		}
		for range 4 {
			if model := s.start(t, half()); model != "B" {
				t.Fatalf("after %d jobs that need A a job that may use any GPU got %q", i+1, model)
			}
		}
	}
}

// TestNoModelIsUsedUpWhereOthersMayBecomeBound: no job is bound to B, and hardly any to C, but jobs bound
// to A show that jobs may be bound. So jobs with a choice leave as much of B as of C.
func TestNoModelIsUsedUpWhereOthersMayBecomeBound(t *testing.T) {
	t.Parallel()
	s := newBench()
	for i := range 12 {
		s.Cluster.Upsert(gpuMachine(i, 96_000, slices.Repeat([]string{[]string{"A", "B", "C"}[i%3]}, 8)...))
	}
	mix := []Asked{{gpu("A"), 4}, {gpu(), 20}, {gpu("C"), 0.001}} // the last makes C a set of its own
	for _, m := range mix {
		s.define(m.Request)
	}
	s.Packer.Use(given(t, mix))
	got := map[string]int{}
	for range 32 {
		got[s.start(t, gpu())]++
	}
	if got["B"] < 11 || got["C"] < 11 {
		t.Errorf("of 32 jobs with a choice the models got %v", got)
	}
}

func TestScarceGPUsAreUsedOnceNothingElseIsFree(t *testing.T) {
	t.Parallel()
	s := twoModels(t, 1, 2, Asked{gpu("A"), 1}, Asked{gpu(), 1})
	got := map[string]int{}
	for range 24 {
		got[s.start(t, gpu())]++
	}
	if got["A"] != 8 || got["B"] != 16 {
		t.Errorf("24 jobs on 24 GPUs: %v", got)
	}
}

func TestGPUsThatNobodyIsBoundToHaveNoPrice(t *testing.T) {
	t.Parallel()
	s := twoModels(t, 3, 3, Asked{gpu(), 3}, Asked{spec.Request{CPUMilli: 8000, MemoryMiB: 1024, GPUs: 2, GPUMilli: 1000}, 1})
	s.Packer.Appraise()
	if s.Packer.fleet.scarcity != nil {
		t.Error("there are prices though all requests may use all GPUs")
	}
}

func TestJobsWithoutGPUsLeaveScarceGPUsTheirCPU(t *testing.T) {
	t.Parallel()
	cpu := spec.Request{CPUMilli: 16_000, MemoryMiB: 1024}
	s := twoModels(t, 1, 1, Asked{gpu("A"), 3}, Asked{gpu(), 9}, Asked{cpu, 1})
	got := map[string]int{}
	for range 9 { // 144 of 192 cores
		got[s.start(t, cpu)]++
	}
	// The 8 GPUs of A need 32 of the 96 cores of their machine.
	if got["A"] > 4 || got[""] > 0 {
		t.Errorf("of 9 jobs of 16 cores the machines got %v", got)
	}
	for i := range 8 {
		if model := s.start(t, gpu("A")); model != "A" {
			t.Fatalf("job %d that needs A got %q", i, model)
		}
	}
}

func TestScarceGPUsAreNamedToJobsWithAChoice(t *testing.T) {
	t.Parallel()
	s := twoModels(t, 1, 3, Asked{gpu("A"), 1}, Asked{gpu(), 1})
	s.Packer.Appraise()
	got := s.Packer.Scarce(s.define(gpu()))
	if got == nil || !slices.Equal(got.Models, []string{"A"}) || got.Requested != 0.5 || got.Free != 0.25 {
		t.Errorf("kept off %+v, want A with half of the requests and a quarter of the free GPUs", got)
	}
	for name, r := range map[string]spec.Request{
		"bound to A": gpu("A"), "bound to B": gpu("B"), "no GPU": {CPUMilli: 1000, MemoryMiB: 1024},
	} {
		if got := s.Packer.Scarce(s.define(r)); got != nil {
			t.Errorf("%s: kept off %+v, want nothing", name, got)
		}
	}
}

// TestLoadsAreBalanced: no demand has a part on a set while another of its sets has a lower load,
// and all of each demand is distributed.
func TestLoadsAreBalanced(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := randomModels(t, r)
		s.Packer.Appraise()
		sc := s.Packer.fleet.scarcity
		if sc == nil {
			continue
		}
		sc.refresh()
		supply := 0.0
		for g := range sc.sets {
			supply += float64(sc.supply[g])
		}
		for _, d := range sc.demands {
			sum, least := 0.0, math.Inf(1)
			for k, g := range d.sets {
				sum, least = sum+d.flow[k], min(least, sc.load[g])
			}
			if want := d.amount * supply / sc.total; math.Abs(sum-want) > 1e-6*want {
				t.Errorf("seed %d: %g of a demand of %g is distributed", seed, sum, want)
			}
			for k, g := range d.sets {
				if d.flow[k] > 0.01*float64(sc.supply[g]) && sc.load[g] > least*1.05+0.01 {
					t.Errorf("seed %d: a demand uses a set of load %g and may use one of %g", seed, sc.load[g], least)
				}
			}
		}
	}
}

// randomModels returns a state of some models with requests bound to some of them.
func randomModels(t *testing.T, r *rand.Rand) bench {
	t.Helper()
	s := newBench()
	models := []string{"A", "B", "C", "D", "E"}[:2+r.IntN(4)]
	for i := range 4 + r.IntN(20) {
		var gpus []string
		for range 1 + r.IntN(8) {
			gpus = append(gpus, models[i%len(models)])
		}
		if r.IntN(4) == 0 { // a machine with two models
			gpus[0] = models[r.IntN(len(models))]
		}
		s.Cluster.Upsert(gpuMachine(i, int64(8+r.IntN(96))*1000, gpus...))
	}
	mix := []Asked{{gpu(), 1 + r.Float64()*5}}
	for range 1 + r.IntN(5) {
		q := gpu(models[r.IntN(len(models))], models[r.IntN(len(models))])
		q.CPUMilli = int64(1+r.IntN(12)) * 1000
		if r.IntN(2) == 0 {
			q.GPUMilli = int64(100 * (1 + r.IntN(9)))
		}
		if r.IntN(4) == 0 {
			q.GPUs, q.GPUMilli = 2+2*r.IntN(2), 1000
		}
		mix = append(mix, Asked{q, 0.1 + r.Float64()*3})
	}
	for _, m := range mix {
		s.define(m.Request)
	}
	s.Packer.Use(given(t, mix))
	return s
}

// TestKeptPricesAreFreshPrices: after any changes, prices equal the prices of a state that was built
// from the same machines.
func TestKeptPricesAreFreshPrices(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 2))
		s := randomModels(t, r)
		for step := range 60 {
			s.change(t, r)
			if step%5 > 0 {
				continue
			}
			fresh := newBench()
			for _, id := range s.Cluster.MachineIDs() {
				fresh.Cluster.Upsert(s.Cluster.Nodes[id].Machine)
			}
			for _, c := range s.Cluster.Classes {
				fresh.define(c.Request)
			}
			mix := *s.Packer.Mix
			fresh.Packer.Use(&mix)
			if got, want := s.prices(), fresh.prices(); got != want {
				t.Fatalf("seed %d, step %d: kept prices\n%s\nfresh prices\n%s", seed, step, got, want)
			}
		}
	}
}

// change starts a job, empties a machine, or lets a machine come or leave.
func (s bench) change(t *testing.T, r *rand.Rand) {
	t.Helper()
	ids := s.Cluster.MachineIDs()
	id := ids[r.IntN(len(ids))]
	switch r.IntN(8) {
	case 0:
		m := s.Cluster.Nodes[id].Machine
		m.Used = berth.Capacity{}
		m.GPUs = slices.Clone(m.GPUs)
		for i := range m.GPUs {
			m.GPUs[i].UsedMilli = 0
		}
		s.Cluster.Upsert(m)
	case 1:
		m := s.Cluster.Nodes[id].Machine
		if m.State = berth.MachineReady; r.IntN(2) == 0 {
			m.State = berth.MachineDraining
		}
		s.Cluster.Upsert(m)
	default:
		for _, c := range s.Cluster.Classes { // any
			s.start(t, c.Request)
			break
		}
	}
}

// prices renders the price of every machine's free capacity.
func (s bench) prices() (text string) {
	if !s.Packer.Appraise() || s.Packer.fleet.scarcity == nil {
		return "none"
	}
	s.Packer.fleet.scarcity.refresh()
	for _, id := range s.Cluster.MachineIDs() {
		if g := s.Packer.fleet.of(s.Cluster.Nodes[id]); g != nil {
			text += fmt.Sprintf("%s %x\n", id, s.Packer.fleet.scarcity.priceOf(&g.remnant))
		}
	}
	return text
}

// TestPricesOutliveANewClass: a class that reads another label has the kinds of machines built
// again. The prices of the plan in which that happens stay.
func TestPricesOutliveANewClass(t *testing.T) {
	t.Parallel()
	s := twoModels(t, 1, 2, Asked{gpu("A"), 2}, Asked{gpu(), 1})
	r := gpu()
	r.Labels = map[string]string{"disk": "fast"}
	s.Cluster.Define(cluster.NewClass(r.Class(), r))
	p, finish := s.placer()
	defer finish()
	s.Cluster.Settle(nil)
	if p.packer.fleet.scarcity == nil {
		t.Error("the plan has no prices")
	}
}

// TestASurchargeIsNeverNegative: on a machine with two scarce models, the CPU that one GPU takes
// from the others may be worth less than the CPU that it no longer needs.
func TestASurchargeIsNeverNegative(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		s := randomModels(t, r)
		if !s.Packer.Appraise() || s.Packer.fleet.scarcity == nil {
			continue
		}
		f := s.Packer.fleet
		f.scarcity.refresh()
		for _, c := range s.Cluster.Classes {
			for _, m := range c.Matches {
				for _, x := range f.groupsOf(m.Kind).free {
					loss, where := f.price(x.group, c, m.Devices)
					if loss == never {
						continue
					}
					if total, _ := f.total(x.group, c, m.Devices, loss, where); total < loss-0.01 {
						t.Errorf("seed %d: with the surcharge a place costs %g, without %g", seed, total, loss)
					}
				}
			}
		}
	}
}
