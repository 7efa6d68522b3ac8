package placement

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// barren reports whether no machine has room for one member of the class, held
// room aside. It stays so for the epoch, and for every class that may
// use the same machines and asks for no less.
func (r *placer) barren(c *class) bool {
	m := r.memory.of(c)
	if m.barren == r.epoch {
		return true
	}
	r.cluster.settle(c)
	known := r.barrens[c.like]
	if !slices.ContainsFunc(known, c.asksForAll) {
		s := search{class: c}
		if s.any() {
			return false
		}
		r.barrens[c.like] = append(known, c)
	}
	m.barren = r.epoch
	return true
}

// asksForAll reports whether the class asks for all that another one asks for.
func (c *class) asksForAll(o *class) bool {
	return o.capacity.Fits(c.capacity) && o.request.GPUs <= c.request.GPUs && o.request.GPUMilli <= c.request.GPUMilli
}

// likeness is equal for classes that may use the same devices of the same
// machines.
type likeness [sha256.Size]byte

// liken works out what the class is like by the kinds it matches.
func (c *class) liken() {
	h := sha256.New()
	var b []byte
	for _, m := range c.matches {
		b = binary.LittleEndian.AppendUint64(b[:0], uint64(m.kind.number))
		h.Write(binary.LittleEndian.AppendUint64(b, m.devices))
	}
	for _, id := range slices.Sorted(slices.Values(c.request.Avoid)) {
		h.Write(append([]byte(id), 0))
	}
	h.Sum(c.like[:0])
}
