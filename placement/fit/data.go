package fit

import (
	"cmp"
	"slices"
	"strings"

	"berth"
	"berth/placement/cluster"
	"berth/spec"
)

// What a job needs and a machine holds already need not be fetched. A job goes by
// that only once it has a place: if a machine that holds more of its data would
// be about as good a place, by the measure that chose the first one, it goes
// there. So data never decides whether, or when, a job starts. A job that names
// none, or none that any machine holds, costs nothing.

// By how much worse a place may be, where all of fullGain need not be fetched;
// for less, in proportion.
const (
	fullGain   = 16 << 10   // MiB
	lossSlack  = 1. / 100   // of the GPU share of the member, so that packing loses no more than that
	scoreSlack = 50.        // of a score: a twentieth of a machine's CPU, or memory, left over
	maxStocks  = 256        // machines that are looked at for a job, the first by name of those that hold most
	minStocks  = 4          // for each key of a job with many
	maxPriced  = candidates // of them, how many are compared
)

// Near is a member that starts on another machine for its job's data.
type Near struct {
	Job     berth.JobID
	Machine berth.MachineID
	MiB     int64           // of the job's data that the machine holds
	Instead berth.MachineID // which it would have been given otherwise
}

// MachineData is the amount of a job's data on one machine.
type MachineData struct {
	Machine berth.MachineID `json:"machine"`
	MiB     int64           `json:"mib"`
	Chosen  bool            `json:"chosen,omitempty"` // the job would start there, and somewhere else without it
}

// Caches is the cache contents of all machines, and the holders of each key.
type Caches struct {
	of    map[berth.MachineID][]spec.CachedData
	where map[spec.DataKey][]stock // the most first, then by name
}

func newCaches() *Caches {
	return &Caches{of: map[berth.MachineID][]spec.CachedData{}, where: map[spec.DataKey][]stock{}}
}

// stock is what one machine holds.
type stock struct {
	machine berth.MachineID
	mib     int64
}

func compareStocks(a, b stock) int {
	return cmp.Or(cmp.Compare(b.mib, a.mib), strings.Compare(string(a.machine), string(b.machine)))
}

// Set replaces the cache contents of a machine; see Snapshot.SetCache.
func (x *Caches) Set(id berth.MachineID, holds []spec.CachedData) {
	before := x.of[id]
	for _, d := range before {
		if !slices.Contains(holds, d) {
			x.take(d.Key, stock{id, d.MiB})
		}
	}
	for _, d := range holds {
		if !slices.Contains(before, d) {
			x.put(d.Key, stock{id, d.MiB})
		}
	}
	if x.of[id] = holds; len(holds) == 0 {
		delete(x.of, id)
	}
}

// put and take look at no more of a list than they must: of an image, all machines
// may be in it.
func (x *Caches) put(key spec.DataKey, one stock) {
	i, _ := slices.BinarySearchFunc(x.where[key], one, compareStocks)
	x.where[key] = slices.Insert(x.where[key], i, one)
}

func (x *Caches) take(key spec.DataKey, one stock) {
	list := x.where[key]
	if i, ok := slices.BinarySearchFunc(list, one, compareStocks); ok {
		list = slices.Delete(list, i, i+1)
	}
	if x.where[key] = list; len(list) == 0 {
		delete(x.where, key)
	}
}

// on is how much the machine holds of what is wanted.
func (x *Caches) on(id berth.MachineID, wants []spec.DataKey) (mib int64) {
	for _, d := range x.of[id] {
		if slices.Contains(wants, d.Key) {
			mib += d.MiB
		}
	}
	return mib
}

// find lists the machines that hold anything of what is wanted, the most first.
func (x *Caches) find(wants []spec.DataKey, into []stock) []stock {
	list := into[:0]
	for _, key := range wants {
		where := x.where[key]
		list = append(list, where[:min(len(where), max(minStocks, maxStocks/len(wants)))]...)
	}
	if len(wants) > 1 {
		slices.SortFunc(list, func(a, b stock) int { return strings.Compare(string(a.machine), string(b.machine)) })
		list = slices.CompactFunc(list, func(a, b stock) bool { return a.machine == b.machine })
		for i := range list {
			list[i].mib = x.on(list[i].machine, wants)
		}
		slices.SortFunc(list, compareStocks)
	}
	return list
}

// nearer is the place for one member on the machine that holds most of its job's
// data, of those where it is about as good; found if there is none. Of places
// that cost the same by usable share the fuller ones are taken for good reason: what an
// emptier machine keeps together stays together.
func (r *Placer) nearer(c *cluster.Class, avoid []berth.MachineID, group string, found cluster.Choice) cluster.Choice {
	x := r.caches
	r.stocks = x.find(r.Wants, r.stocks)
	if found.Brief || len(r.stocks) == 0 {
		return found
	}
	have := x.on(found.Node.ID, r.Wants)
	if r.stocks[0].mib <= have {
		return found
	}
	look := Search{Class: c, avoid: avoid, Group: group}
	byUsable := r.ByUsable && !spreads(c) && r.packer.fleet.of(found.Node) != nil
	least, taken, ok := r.costs(c, found.Node, found.Allowed, byUsable)
	if !ok {
		return found
	}
	best, most, at := found, have, least
	priced := 0
	for _, one := range r.stocks {
		if one.mib <= have || one.mib < most || priced == maxPriced {
			break
		}
		n := r.cluster.Nodes[one.machine]
		if n == nil || !n.Offered() || !look.Allows(n) || n.Kind.HasDevices() != found.Node.Kind.HasDevices() {
			continue
		}
		i := slices.IndexFunc(c.Matches, func(m cluster.Match) bool { return m.Kind == n.Kind })
		if i < 0 || !Fits(c, n, c.Matches[i].Devices) {
			continue
		}
		priced++
		slack := slack(c, byUsable, one.mib-have)
		cost, devices, ok := r.costs(c, n, c.Matches[i].Devices, byUsable)
		if !ok || cost-least > slack ||
			byUsable && float64(r.packer.fleet.of(n).gpu-r.packer.fleet.of(found.Node).gpu) > slack ||
			breaks(c, n, devices) && !breaks(c, found.Node, taken) {
			continue
		}
		if best.Node == found.Node || cost < at {
			best = cluster.Choice{Node: n, Allowed: c.Matches[i].Devices, Grant: Grant(c, n, devices)}
			most, at = one.mib, cost
		}
	}
	if best.Node != found.Node {
		r.Moved = append(r.Moved, Near{Machine: best.Node.ID, MiB: most, Instead: found.Node.ID})
	}
	return best
}

// costs is what a member costs on the machine, by the measure that chose a place
// for it, and its devices there; ok is false where it does not fit.
func (r *Placer) costs(
	c *cluster.Class, n *cluster.Node, allowed uint64, byUsable bool,
) (cost float64, devices []int, ok bool) {
	if !byUsable {
		if devices, ok = Devices(c, n, allowed); !ok {
			return 0, nil, false
		}
		return float64(score(c, n, devices)), devices, true
	}
	r.looks++
	loss, where := r.packer.fleet.price(r.packer.fleet.of(n), c, allowed)
	if loss == never {
		return 0, nil, false
	}
	devices, ok = devicesAt(c, n, allowed, where)
	return float64(loss), devices, ok
}

// slack is by how much a place may be worse where so much need not be fetched.
func slack(c *cluster.Class, byUsable bool, gain int64) float64 {
	most := scoreSlack
	if byUsable {
		most = lossSlack * float64(c.Capacity.GPUMilli)
	}
	return most * min(1, float64(gain)/fullGain)
}

// breaks reports whether a share would be cut out of a device of which nothing is
// used.
func breaks(c *cluster.Class, n *cluster.Node, devices []int) bool {
	return len(devices) == 1 && c.Request.GPUMilli < cluster.Whole && n.FreeMilli[devices[0]] == cluster.Whole
}

// maxTold bounds how many machines an explanation names.
const maxTold = 5

// Show lists the machines with the most data of a job. moved are the members that would
// start on another machine without that data.
func (x *Caches) Show(c *cluster.Cluster, wants []spec.DataKey, moved []Near) []MachineData {
	var list []MachineData
	for _, one := range x.find(wants, nil) {
		if c.Nodes[one.machine] == nil {
			continue
		}
		chosen := slices.ContainsFunc(moved, func(m Near) bool { return m.Machine == one.machine })
		if list = append(list, MachineData{one.machine, one.mib, chosen}); len(list) == maxTold {
			break
		}
	}
	return list
}
