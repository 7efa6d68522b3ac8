package placement

import (
	"cmp"
	"math"
	"slices"
)

// ranking lists machines of a herd by a key below what they are worth a look
// for, the least first: a look for the best of them ends where the key alone says
// that no other is better. It is kept from plan to plan.
type ranking []standing

// standing is a machine in a ranking, by its place in the herd.
type standing struct {
	key   uint64
	place int32
}

func compareStandings(a, b standing) int {
	return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.place, b.place))
}

// renew drops those that do not stay and puts in others, which it sorts.
func (x *ranking) renew(fresh []standing, stays func(place int32) bool) {
	list := slices.DeleteFunc([]standing(*x), func(o standing) bool { return !stays(o.place) })
	slices.SortFunc(fresh, compareStandings)
	i, j := len(list)-1, len(fresh)-1
	list = append(list, fresh...)
	for k := len(list) - 1; j >= 0; k-- { // merged from the back
		if i >= 0 && compareStandings(list[i], fresh[j]) > 0 {
			list[k] = list[i]
			i--
		} else {
			list[k] = fresh[j]
			j--
		}
	}
	*x = list
}

// timeKey orders by time.
func timeKey(t second) uint64 { return uint64(uint32(t) ^ 1<<31) }

// keyTime is the time that a key was made of.
func keyTime(key uint64) second { return second(uint32(key) ^ 1<<31) }

// costKey orders by band, then by cost.
func costKey(band int32, cost float32) uint64 {
	return uint64(uint32(band)^1<<31)<<32 | uint64(math.Float32bits(max(0, cost)))
}

// bound is the band and the cost that a key was made of.
func (x standing) bound() bound {
	return bound{int(int32(uint32(x.key>>32) ^ 1<<31)), float64(math.Float32frombits(uint32(x.key)))}
}
