package fit

import (
	"slices"

	"berth/placement/cluster"
)

// hole is what is left of one device: the position of its variant in the kind,
// and how much of it is free in thousandths.
type hole uint16

func newHole(variant int, free int64) hole { return hole(variant<<10 | int(free)) }

func (h hole) free() int64 { return int64(h & (1<<10 - 1)) }

func (h hole) variant() int { return int(h >> 10) }

// remnant is the free part of a machine as the usable share sees it: its kind and
// its free capacity. Machines with equal remnants are equally good for every job.
type remnant struct {
	kind        *cluster.Kind
	cpu, memory int64
	holes       []hole // falling; devices in full use are left out
}

func (s *remnant) left() int64 {
	sum := int64(0)
	for _, h := range s.holes {
		sum += h.free()
	}
	return sum
}

// scarce is the CPU that jobs want per GPU, as part of what the cluster has per
// GPU, above which CPU is what runs out first. A twentieth is left for what no
// packing can use.
const scarce = 0.95

const (
	bucketWidth = 8
	buckets     = cluster.Whole/bucketWidth + 1
)

// value computes the expected usable share of free capacity under one mix of
// requests: the GPU share that later jobs can be expected to take of it. See
// docs/design/placement.md for the rule and its reasons.
//
//	usable(s) = sum over the holes h of s of E[ best of eight offers for h ]
//	offer    = fill * limit, of a shape drawn from the mix
//	fill     = floor(h / milli) * milli          what copies of it take of h
//	limit    = min(k, cpu/cpu', memory/memory')/k    which part of the k copies
//	           that all holes hold by GPU has CPU and memory here
//
// Where CPU is scarce the best offer is the one with the largest fill, and
// counts with its limit: such a cluster cannot pick the jobs that want little.
type value struct {
	shapes  []shape
	sizes   []size
	wantCPU float64
	wantGPU float64
	scarce  bool
	devices map[*cluster.Kind][]uint64 // by shape: the devices it may use, as Match.Devices

	// Scratch of usable.
	limits []float64
	copies []int64
}

// shape is one that asks for GPUs.
type shape struct {
	class       *cluster.Class
	cpu, memory int64
	gpus        int64
	size        int
	p           float64
}

// size is what the shapes with one GPU request have in common.
type size struct {
	gpus, milli int64
	fill        [cluster.Whole + 1]int16
}

// newValue takes the mix and what the cluster has of CPU and of GPU, both in
// thousandths.
func newValue(mix []part, cpu, gpu int64) *value {
	v := &value{devices: map[*cluster.Kind][]uint64{}}
	index := map[[2]int64]int{}
	sum := 0.0
	for _, m := range mix {
		r := m.class.Request
		v.wantCPU += m.p * float64(r.CPUMilli)
		v.wantGPU += m.p * float64(m.class.Capacity.GPUMilli)
		if r.GPUs == 0 {
			continue // fills no hole
		}
		key := [2]int64{int64(r.GPUs), r.GPUMilli}
		at, ok := index[key]
		if !ok {
			at = len(v.sizes)
			index[key] = at
			v.sizes = append(v.sizes, newSize(int64(r.GPUs), r.GPUMilli))
		}
		v.shapes = append(v.shapes, shape{m.class, r.CPUMilli, r.MemoryMiB, int64(r.GPUs), at, m.p})
		sum += m.p
	}
	for i := range v.shapes {
		v.shapes[i].p /= sum
	}
	v.weigh(cpu, gpu)
	v.limits = make([]float64, len(v.shapes))
	v.copies = make([]int64, len(v.sizes))
	return v
}

func newSize(gpus, milli int64) size {
	z := size{gpus: gpus, milli: milli}
	for h := range z.fill {
		z.fill[h] = int16(int64(h) / milli * milli)
	}
	return z
}

// weigh decides whether CPU is scarce in a cluster of this size.
func (v *value) weigh(cpu, gpu int64) bool {
	v.scarce = v.wantGPU > 0 && cpu > 0 && v.wantCPU/v.wantGPU*float64(gpu)/float64(cpu) > scarce
	return v.scarce
}

// usable is the expected usable share of a machine's free capacity, in thousandths
// of a GPU.
func (v *value) usable(s *remnant) float64 {
	if len(s.holes) == 0 {
		return 0
	}
	devices := v.limit(s)
	sum, last := 0.0, 0.0
	for i, h := range s.holes {
		if i == 0 || h != s.holes[i-1] {
			last = v.offer(h, devices)
		}
		sum += last
	}
	return sum
}

// limit works out every shape's limit.
func (v *value) limit(s *remnant) (devices []uint64) {
	devices = v.devicesOf(s.kind)
	for i := range v.sizes {
		v.copies[i] = v.sizes[i].copies(s.holes, ^uint64(0))
	}
	every := uint64(1)<<min(len(s.kind.Variants), cluster.MaxVariants) - 1
	for i := range v.shapes {
		c := &v.shapes[i]
		v.limits[i] = 0
		if devices[i] == 0 {
			continue
		}
		k := v.copies[c.size]
		if devices[i] != every {
			k = v.sizes[c.size].copies(s.holes, devices[i])
		}
		if k == 0 {
			continue
		}
		n := k
		if n*c.cpu > s.cpu {
			n = max(0, s.cpu/c.cpu)
		}
		if n*c.memory > s.memory {
			n = max(0, s.memory/c.memory)
		}
		switch {
		case c.gpus > 1:
			v.limits[i] = float64(n*c.gpus) / float64(wholes(s.holes, devices[i]))
		case n == k:
			v.limits[i] = 1
		default:
			v.limits[i] = float64(n) / float64(k)
		}
	}
	return devices
}

// copies is how many jobs of the size the holes hold.
func (z *size) copies(holes []hole, devices uint64) int64 {
	if z.gpus > 1 {
		return wholes(holes, devices) / z.gpus
	}
	sum := int64(0)
	for _, h := range holes {
		if devices>>h.variant()&1 != 0 {
			sum += int64(z.fill[h.free()])
		}
	}
	return sum / z.milli
}

func wholes(holes []hole, devices uint64) int64 {
	n := int64(0)
	for _, h := range holes {
		if h.free() == cluster.Whole && devices>>h.variant()&1 != 0 {
			n++
		}
	}
	return n
}

// devicesOf tells which devices of a kind each shape may use.
func (v *value) devicesOf(k *cluster.Kind) []uint64 {
	list, ok := v.devices[k]
	if !ok {
		list = make([]uint64, len(v.shapes))
		for i := range v.shapes {
			if m, ok := v.shapes[i].class.Match(k); ok {
				list[i] = m.Devices
			}
		}
		v.devices[k] = list
	}
	return list
}

// offer is the best of eight offers for one hole that is to be expected, by the
// limits worked out last. Offers are sorted into narrow buckets; in one their
// mean counts.
func (v *value) offer(h hole, devices []uint64) float64 {
	var p, pu [buckets]float64
	none := 0.0
	top := -1
	free, variant := h.free(), h.variant()
	for i := range v.shapes {
		c := &v.shapes[i]
		fill := float64(v.sizes[c.size].fill[free])
		take := fill * v.limits[i]
		if take == 0 || devices[i]>>variant&1 == 0 {
			none += c.p
			continue
		}
		key := take
		if v.scarce {
			key = fill
		}
		b := int(key) / bucketWidth
		p[b] += c.p
		pu[b] += c.p * take
		top = max(top, b)
	}
	below, expected := pow8(none), 0.0
	upto := none
	for b := range top + 1 {
		if p[b] == 0 {
			continue
		}
		upto += p[b]
		at := pow8(upto)
		expected += pu[b] / p[b] * (at - below)
		below = at
	}
	return expected
}

// pow8 is the chance that eight offers are all among those of chance z. Eight
// is how picky a hole may be. With one, a hole that the average job cannot use
// would have no value (the fragmentation measure of Weng et al., USENIX ATC
// '23); with very many, every hole would wait for its perfect job, though there
// are fewer such jobs than holes. Between 4 and 16 results hardly differ.
func pow8(z float64) float64 {
	z *= z
	z *= z
	return z * z
}

// remnantOf reads what a machine has left, into holes' memory.
func remnantOf(n *cluster.Node, holes []hole) remnant {
	holes = holes[:0]
	for i, free := range n.FreeMilli {
		if v := n.Variants[i]; free > 0 && v < cluster.MaxVariants {
			holes = append(holes, newHole(v, free))
		}
	}
	slices.SortFunc(holes, func(a, b hole) int { return int(b) - int(a) })
	return remnant{n.Kind, n.Free.CPUMilli, n.Free.MemoryMiB, holes}
}
