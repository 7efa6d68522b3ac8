package placement

import (
	"cmp"
	"slices"
)

// ranking lists machines of a kind by a lower bound, the least first: a search ends
// at the first machine whose bound alone rules it out. It is kept from plan to plan.
type ranking []standing

// standing is a machine in a ranking, by its place in the roster of its kind.
type standing struct {
	key   uint64
	place int32
}

// compareStandings orders by key, then by place.
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
func timeKey(t tick) uint64 { return uint64(uint32(t) ^ 1<<31) }

// keyTime is the time that a key was made of.
func keyTime(key uint64) tick { return tick(uint32(key) ^ 1<<31) }
