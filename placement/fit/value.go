package fit

import (
	"cmp"
	"slices"

	"berth/placement/cluster"
)

// hole is the free part of one device: from high to low bits the position of its variant in the
// kind, its free share in thousandths in 10 bits, and in 16 bits its owner. The value of a hole
// depends on the first two alone, as if every tenant could use it.
type hole uint32

// newHole returns the hole of a device with the given free share, in thousandths.
func newHole(variant int, free int64, by cluster.Sharer) hole {
	return hole(variant<<26 | int(free)<<16 | int(by))
}

// free returns the free share, in thousandths.
func (h hole) free() int64 { return int64(h >> 16 & (1<<10 - 1)) }

// variant returns the position of the device's variant in Kind.Variants.
func (h hole) variant() int { return int(h >> 26) }

// admits reports whether a class may use the hole, as far as the tenants of the device decide.
func (h hole) admits(c *cluster.Class) bool {
	return c.Sharer == cluster.NoSharer || h.free() == cluster.Whole ||
		c.Sharer != cluster.Several && cluster.Sharer(h) == c.Sharer
}

// remnant is the kind and the free capacity of a machine, the input of the usable share.
// Machines with equal remnants are equally good for every job.
type remnant struct {
	kind        *cluster.Kind
	cpu, memory int64  // free thousandths of a core, and free MiB
	holes       []hole // in falling order; devices in full use are left out
}

// left returns the free GPU share of all devices, in thousandths.
func (s *remnant) left() int64 {
	sum := int64(0)
	for _, h := range s.holes {
		sum += h.free()
	}
	return sum
}

// scarce is the ratio above which CPU runs out before GPUs: the CPU that jobs request per
// GPU, relative to the CPU that the cluster has per GPU. The missing twentieth allows for
// capacity that no packing can use.
const scarce = 0.95

// Offers are counted in buckets by the GPU share that they use, each bucketWidth thousandths of
// a GPU wide. So the best offer is found in one pass over the shapes, without a sort.
const (
	bucketWidth = 8
	buckets     = cluster.Whole/bucketWidth + 1
)

// value computes the expected usable share of free capacity under one mix of requests: the
// GPU share that later jobs are expected to use. See docs/design/placement.md for the rule
// and its reasons.
//
//	usable(s) = sum over the holes h of s of E[ best of eight offers for h ]
//	offer     = fill * limit, of a shape drawn from the mix
//	fill      = floor(h / milli) * milli            GPU share that copies of it take of h
//	limit     = min(k, cpu/cpu', memory/memory')/k  part of the k copies that all holes
//	            have GPU share for, which also has CPU and memory on the machine
//
// Here cpu and memory are free on the machine, and cpu' and memory' are requested by the
// shape. Where CPU is scarce, the best offer is the one with the largest fill, and counts
// with its limit: such a cluster cannot fill up with jobs of low CPU alone.
//
// A value is not safe for concurrent use, since usable reuses buffers.
type value struct {
	shapes  []shape                    // shapes with GPUs; frequencies sum to 1
	sizes   []size                     // GPU requests of the shapes, each once
	wantCPU float64                    // mean CPU request, in thousandths of a core, of all shapes
	wantGPU float64                    // mean GPU request, in thousandths of a GPU, of all shapes
	scarce  bool                       // CPU runs out before GPUs; see weigh
	devices map[*cluster.Kind][]uint64 // by shape: bitmap of usable variants, as Match.Devices

	// Buffers of usable, for the present remnant.
	limits []float64 // by shape
	copies []int64   // by size: copies for which the holes have GPU share
}

// shape is a request shape of the mix with GPUs.
type shape struct {
	class       *cluster.Class
	cpu, memory int64   // per member: thousandths of a core, and MiB
	gpus        int64   // devices per member
	size        int     // index in value.sizes
	p           float64 // frequency among the shapes with GPUs
}

// size is a GPU request: the number of devices and the share of each. Shapes with equal GPU
// requests have one size.
type size struct {
	gpus, milli int64                    // devices, and thousandths of each
	fill        [cluster.Whole + 1]int16 // by free share: floor(h/milli)*milli
}

// newValue returns the value of a mix. cpu and gpu are the totals of the cluster, both in
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
			continue // such jobs fill no hole
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

// newSize returns a size with its table of fills.
func newSize(gpus, milli int64) size {
	z := size{gpus: gpus, milli: milli}
	for h := range z.fill {
		z.fill[h] = int16(int64(h) / milli * milli)
	}
	return z
}

// weigh reports whether CPU is scarce in a cluster with these totals, in thousandths, and
// remembers the answer.
func (v *value) weigh(cpu, gpu int64) bool {
	v.scarce = v.wantGPU > 0 && cpu > 0 && v.wantCPU/v.wantGPU*float64(gpu)/float64(cpu) > scarce
	return v.scarce
}

// usable returns the expected usable share of a machine's free capacity, in thousandths of
// a GPU.
func (v *value) usable(s *remnant) float64 {
	if len(s.holes) == 0 {
		return 0
	}
	devices := v.limit(s)
	sum, last := 0.0, 0.0
	for i, h := range s.holes {
		// Equal holes follow each other and have the same value.
		if i == 0 || h != s.holes[i-1] {
			last = v.offer(h, devices)
		}
		sum += last
	}
	return sum
}

// limit computes the limit of every shape on a remnant, and returns the devices that each
// shape may use.
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
		// A shape that may not use every device counts only the holes that it may use.
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

// copies returns the number of members of the size for which the holes have GPU share.
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

// wholes returns the number of unused devices among the holes.
func wholes(holes []hole, devices uint64) int64 {
	n := int64(0)
	for _, h := range holes {
		if h.free() == cluster.Whole && devices>>h.variant()&1 != 0 {
			n++
		}
	}
	return n
}

// devicesOf returns the devices of a kind that each shape may use, as bitmaps of variants.
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

// offer returns the expected best of eight offers for one hole, in thousandths of a GPU,
// with the present limits. Offers are sorted into narrow buckets; within a bucket their
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
		// Per bucket: the probability of an offer, and the sum of probability times take.
		b := int(key) / bucketWidth
		p[b] += c.p
		pu[b] += c.p * take
		top = max(top, b)
	}
	below, expected := pow8(none), 0.0
	upto := none
	// The best of eight is in bucket b with the chance that all eight are in buckets up to
	// b, less the chance that all are below b.
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

// pow8 returns z^8: the chance that all of eight offers are from a set of chance z.
//
// Eight is the number of jobs among which a hole can choose. With one, a hole that the
// average job cannot use would have no value (the fragmentation measure of Weng et al.,
// USENIX ATC '23). With very many, every hole would wait for its perfect job, though there
// are fewer such jobs than holes. Between 4 and 16 results hardly differ.
func pow8(z float64) float64 {
	z *= z
	z *= z
	return z * z
}

// remnantOf returns the remnant of a machine, with its holes in the memory of holes.
func remnantOf(n *cluster.Node, holes []hole) remnant {
	holes = holes[:0]
	for i, free := range n.FreeMilli {
		if v := n.Variants[i]; free > 0 && v < cluster.MaxVariants {
			holes = append(holes, newHole(v, free, n.SharerOf(i)))
		}
	}
	slices.SortFunc(holes, func(a, b hole) int { return cmp.Compare(b, a) })
	return remnant{n.Kind, n.Free.CPUMilli, n.Free.MemoryMiB, holes}
}
