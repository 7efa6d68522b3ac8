package cluster

import (
	"cmp"
	"slices"
)

// Ranking lists machines of a kind by a lower bound, the least first. A search ends
// at the first machine that its bound alone rules out. A Ranking is kept from plan to plan.
type Ranking []Standing

// Standing is a machine in a ranking, by its place in the roster of its kind.
type Standing struct {
	Key   uint64
	Place int32
}

// CompareStandings orders by key, then by place.
func CompareStandings(a, b Standing) int {
	return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Place, b.Place))
}

// Renew drops the standings for which stays returns false and inserts the fresh ones. It
// sorts fresh in place.
func (x *Ranking) Renew(fresh []Standing, stays func(place int32) bool) {
	list := slices.DeleteFunc([]Standing(*x), func(o Standing) bool { return !stays(o.Place) })
	slices.SortFunc(fresh, CompareStandings)
	i, j := len(list)-1, len(fresh)-1
	list = append(list, fresh...)
	for k := len(list) - 1; j >= 0; k-- { // merged from the back
		if i >= 0 && CompareStandings(list[i], fresh[j]) > 0 {
			list[k] = list[i]
			i--
		} else {
			list[k] = fresh[j]
			j--
		}
	}
	*x = list
}

// TimeKey returns a key that orders by time.
func TimeKey(t Tick) uint64 { return uint64(uint32(t) ^ 1<<31) }

// KeyTime is the inverse of TimeKey.
func KeyTime(key uint64) Tick { return Tick(uint32(key) ^ 1<<31) }
