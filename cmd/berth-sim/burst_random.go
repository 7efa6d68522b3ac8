package main

import "math/bits"

// mersenne is the generator MT19937 of Matsumoto and Nishimura. Published experiments draw from it,
// so a repetition needs it bit for bit.
type mersenne struct {
	state [624]uint32
	next  int
}

// newMersenne seeds as init_genrand does (NumPy's RandomState).
func newMersenne(seed uint32) *mersenne {
	r := &mersenne{next: 624}
	r.state[0] = seed
	for i := 1; i < 624; i++ {
		r.state[i] = 1812433253*(r.state[i-1]^(r.state[i-1]>>30)) + uint32(i)
	}
	return r
}

// newPythonRandom seeds as init_by_array does with one word (Python's random.Random).
func newPythonRandom(seed uint32) *mersenne {
	r := newMersenne(19650218)
	i := 1
	wrap := func() {
		if i++; i >= 624 {
			r.state[0] = r.state[623]
			i = 1
		}
	}
	for range 624 {
		r.state[i] = (r.state[i] ^ ((r.state[i-1] ^ (r.state[i-1] >> 30)) * 1664525)) + seed
		wrap()
	}
	for range 623 {
		r.state[i] = (r.state[i] ^ ((r.state[i-1] ^ (r.state[i-1] >> 30)) * 1566083941)) - uint32(i)
		wrap()
	}
	r.state[0] = 0x80000000
	return r
}

// word returns the next 32 bits.
func (r *mersenne) word() uint32 {
	if r.next >= 624 {
		for k := range 624 {
			y := (r.state[k] & 0x80000000) | (r.state[(k+1)%624] & 0x7fffffff)
			v := r.state[(k+397)%624] ^ (y >> 1)
			if y&1 == 1 {
				v ^= 0x9908b0df
			}
			r.state[k] = v
		}
		r.next = 0
	}
	y := r.state[r.next]
	r.next++
	y ^= y >> 11
	y ^= (y << 7) & 0x9d2c5680
	y ^= (y << 15) & 0xefc60000
	return y ^ (y >> 18)
}

// float returns a number from 0 to 1 with 53 bits.
func (r *mersenne) float() float64 {
	a, b := r.word()>>5, r.word()>>6
	return (float64(a)*67108864 + float64(b)) / 9007199254740992
}

// below returns a whole number from 0 to n-1, as Python's randrange does.
func (r *mersenne) below(n int) int {
	for {
		if x := int(r.word() >> (32 - bits.Len(uint(n)))); x < n {
			return x
		}
	}
}
