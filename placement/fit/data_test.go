package fit

import (
	"math/rand/v2"
	"slices"
	"testing"

	"berth"
	"berth/spec"
)

// TestDataCostsLittleRoom fills a cluster with jobs that all need data, of which
// machines hold what they have run: hardly less has room than where nobody needs
// any, and much more need not be fetched.
func TestDataCostsLittleRoom(t *testing.T) {
	t.Parallel()
	const seeds = 6
	var more, better float64
	for seed := range uint64(seeds) {
		room, _ := filled(t, seed, false)
		with, found := filled(t, seed, true)
		_, chance := filledAs(t, seed, true, false)
		t.Logf("seed %d: %.2f %% of the GPUs placed, with data %.2f %%; found %.1f %% of the data, by chance %.1f %%", seed, 100*room, 100*with, 100*found, 100*chance)
		if with < room-0.01 {
			t.Errorf("seed %d: with data %.4f of the GPUs are placed, without %.4f", seed, with, room)
		}
		more, better = more+(with-room)/seeds, better+(found-chance)/seeds
	}
	if more < -0.003 || better < 0.04 {
		t.Errorf("with data %.4f more of the GPUs are placed, and %.3f more of the data is found", more, better)
	}
}

func filled(t *testing.T, seed uint64, data bool) (placed, found float64) {
	t.Helper()
	return filledAs(t, seed, data, data)
}

// filledAs fills 60 machines until 1.2 times their GPUs were asked for; machines
// tell of their caches or do not. It returns the part of the GPUs that was placed
// and the part of the data that was there.
func filledAs(t *testing.T, seed uint64, data, told bool) (placed, found float64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 7))
	list := asked()
	total := 0.0
	for _, a := range list {
		total += a.Count
	}
	draw := func() spec.Request {
		x := r.Float64() * total
		for _, a := range list {
			if x -= a.Count; x < 0 {
				return a.Request
			}
		}
		return list[0].Request
	}
	s := newBench()
	s.Packer.Use(given(t, list))
	const machines = 60
	owned := 0.0
	for i := range machines {
		model := []string{"A", "B"}[i%2]
		m := gpuMachine(i, 96000, model, model, model, model, model, model, model, model)
		owned += float64(len(m.GPUs))
		s.Cluster.Upsert(m)
	}
	holds := map[berth.MachineID][]spec.CachedData{}
	wanted, taken, asks, hits := 0.0, 0.0, 0.0, 0.0
	for wanted < 1.2*owned {
		request, key := draw(), spec.DataKey(1+r.IntN(30))
		c := s.define(request)
		var wants []spec.DataKey
		if data {
			wants = []spec.DataKey{key}
		}
		ranks, _ := s.place(c, wants...)
		gpus := float64(c.Capacity.GPUMilli) / 1000
		wanted += gpus
		for _, g := range ranks {
			taken += gpus
			s.Cluster.Upsert(used(s.Cluster.Nodes[g.Machine].Machine, g))
			asks++
			had := false
			for _, d := range holds[g.Machine] {
				had = had || d.Key == key
			}
			if had {
				hits++
				continue
			}
			holds[g.Machine] = append(slices.Clone(holds[g.Machine]), spec.CachedData{Key: key, MiB: 32 << 10})
			if told {
				s.Caches.Set(g.Machine, holds[g.Machine])
			}
		}
	}
	return taken / owned, hits / asks
}

// TestForgottenCachesLeaveNothing: what is kept of caches is what was told last.
func TestForgottenCachesLeaveNothing(t *testing.T) {
	t.Parallel()
	s := newBench()
	r := rand.New(rand.NewPCG(3, 3))
	ids := []berth.MachineID{"a", "b", "c", "d"}
	for range 500 {
		var list []spec.CachedData
		for _, k := range r.Perm(6)[:r.IntN(6)] {
			list = append(list, spec.CachedData{Key: spec.DataKey(1 + k), MiB: r.Int64N(3)})
		}
		s.Caches.Set(ids[r.IntN(len(ids))], list)
		for key := range spec.DataKey(7) {
			got := s.Caches.find([]spec.DataKey{key}, nil)
			count := 0
			for _, id := range ids {
				for _, d := range s.Caches.of[id] {
					if d.Key == key {
						count++
					}
				}
			}
			for i, one := range got {
				if i > 0 && compareStocks(got[i-1], one) >= 0 {
					t.Fatalf("key %d is held by %v", key, got)
				}
			}
			if len(got) != count {
				t.Fatalf("key %d is held by %v, of %v", key, got, s.Caches.of)
			}
		}
	}
	for _, id := range ids {
		s.Caches.Set(id, nil)
	}
	if len(s.Caches.of)+len(s.Caches.where) > 0 {
		t.Errorf("left over: %+v", s.Caches)
	}
}
