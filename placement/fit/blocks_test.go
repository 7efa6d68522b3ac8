package fit

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"berth/spec"
)

// fewWhole returns a state with one machine of eight GPUs and little CPU, and 30 of seven GPUs and
// much CPU. The mix has many jobs with much CPU (fat), few with little CPU (thin), and very few for
// eight GPUs, which need more of the free GPUs than there are together on one machine. Some jobs
// are bound to a model that one further machine has.
func fewWhole(t *testing.T) (s bench, thin, eight spec.Request) {
	t.Helper()
	s = newBench()
	for i := range 30 {
		s.Cluster.Upsert(gpuMachine(i, 96_000, slices.Repeat([]string{"B"}, 7)...))
	}
	s.Cluster.Upsert(gpuMachine(30, 16_000, slices.Repeat([]string{"B"}, 8)...))
	s.Cluster.Upsert(gpuMachine(31, 96_000, slices.Repeat([]string{"A"}, 4)...))
	fat, bound := gpu(), gpu("A")
	thin, eight = gpu(), gpu("B")
	thin.MemoryMiB, eight.MemoryMiB = 1024, 1024
	fat.CPUMilli, bound.CPUMilli, thin.CPUMilli = 12_000, 12_000, 1000
	eight.CPUMilli, eight.GPUs = 8000, 8
	mix := []Asked{{fat, 190}, {thin, 9}, {eight, 1}, {bound, 4}}
	for _, m := range mix {
		s.define(m.Request)
	}
	s.Packer.Use(given(t, mix))
	return s, thin, eight
}

// TestSmallJobsLeaveWholeMachines: jobs for one GPU keep off the machine that a job for eight needs,
// although the jobs with much CPU would lose less there.
func TestSmallJobsLeaveWholeMachines(t *testing.T) {
	t.Parallel()
	s, thin, eight := fewWhole(t)
	for i := range 5 {
		if s.start(t, thin) == "" {
			t.Fatalf("job %d for one GPU got no place", i)
		}
	}
	if s.start(t, eight) == "" {
		t.Error("the job for eight GPUs got no place")
	}
}

// TestWholeMachinesAreUsedOnceNothingElseIsFree: a price makes no job wait.
func TestWholeMachinesAreUsedOnceNothingElseIsFree(t *testing.T) {
	t.Parallel()
	s, thin, _ := fewWhole(t)
	for i := range 30*7 + 8 + 4 {
		if s.start(t, thin) == "" {
			t.Fatalf("job %d for one GPU got no place", i)
		}
	}
}

// TestWholeMachinesAreNamedToSmallJobs: an explanation names the machines that a job is kept off.
func TestWholeMachinesAreNamedToSmallJobs(t *testing.T) {
	t.Parallel()
	s, thin, eight := fewWhole(t)
	s.Packer.Appraise()
	got := s.Packer.ScarceBlocks(s.define(thin))
	if got == nil || got.GPUs != 8 || math.Abs(got.Requested-8.0/211) > 1e-9 || math.Abs(got.Free-8.0/222) > 1e-9 {
		t.Errorf("kept off %+v, want machines with eight GPUs: 8 of 222 free ones, for 8 of 211 requested", got)
	}
	for name, r := range map[string]spec.Request{
		"eight GPUs": eight, "bound to A": gpu("A"), "no GPU": {CPUMilli: 1000, MemoryMiB: 1024},
	} {
		if got := s.Packer.ScarceBlocks(s.define(r)); got != nil {
			t.Errorf("%s: kept off %+v, want nothing", name, got)
		}
	}
	if s.start(t, eight) == "" {
		t.Fatal("the job for eight GPUs got no place")
	}
	s.Packer.Appraise()
	if got := s.Packer.ScarceBlocks(s.define(thin)); got != nil {
		t.Errorf("with no eight GPUs left on one machine: kept off %+v, want nothing", got)
	}
}

// TestTheFastSurchargeIsTheSlowOne: on machines of one model, the surcharge by sums equals the
// difference of the prices of two remnants.
func TestTheFastSurchargeIsTheSlowOne(t *testing.T) {
	t.Parallel()
	compared, dear := 0, 0
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 4))
		s := randomModels(t, r)
		for range 10 {
			s.change(t, r)
		}
		if !s.Packer.Appraise() || s.Packer.fleet.scarcity == nil {
			continue
		}
		f := s.Packer.fleet
		f.scarcity.refresh()
		for _, c := range s.Cluster.Classes {
			for _, m := range c.Matches {
				set, uniform := f.scarcity.uniform(m.Kind)
				if !uniform || set < 0 {
					continue
				}
				for _, x := range f.groupsOf(m.Kind).free {
					g := x.group
					loss, where := f.price(g, c, m.Devices)
					if loss == never {
						continue
					}
					left := g.without(nil, c.Request.GPUs, m.Devices)
					if c.Request.GPUMilli < 1000 {
						left = g.with(nil, slices.Index(g.holes, where), c)
					}
					fast, slow := f.fastSurcharge(set, g, c, where), f.surcharge(g, c, left)
					if math.Abs(float64(fast-slow)) > 1e-2 {
						t.Errorf("seed %d, %s: the surcharge is %g, by remnants %g", seed, c.Name, fast, slow)
					}
					compared++
					if slow > 0 {
						dear++
					}
				}
			}
		}
	}
	if compared < 100 || dear < 20 {
		t.Errorf("%d places were compared, %d of them with a surcharge: too few to prove anything", compared, dear)
	}
}
