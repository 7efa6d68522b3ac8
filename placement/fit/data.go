package fit

import (
	"cmp"
	"slices"
	"strings"

	"berth"
	"berth/placement/cluster"
	"berth/spec"
)

// Data on a machine need not be fetched. Berth considers it only after the choice of a
// place: if a machine with more of the job's data is about as good a place, by the measure
// that chose the first one, the member goes to that machine. So data never decides whether,
// or when, a job starts. A job without data, or with data that no machine holds, costs
// nothing.

// The allowed loss of a place at which fullGain MiB or more need not be fetched. For less
// data it is proportionally smaller.
const (
	fullGain   = 16 << 10   // MiB
	lossSlack  = 1. / 100   // of the member's GPU share, so packing loses no more than that
	scoreSlack = 50.        // thousandths: a twentieth of a machine's CPU or memory left over
	maxStocks  = 256        // machines considered per job, the largest holders first, then by name
	minStocks  = 4          // machines considered for each key of a job with many keys
	maxPriced  = candidates // machines whose costs are compared
)

// Near is a member that starts on another machine because that machine holds its job's
// data.
type Near struct {
	Job     berth.JobID
	Machine berth.MachineID
	MiB     int64           // amount of the job's data on Machine
	Instead berth.MachineID // the machine that was chosen without regard to data
}

// MachineData is the amount of a job's data on one machine.
type MachineData struct {
	Machine berth.MachineID `json:"machine"`
	MiB     int64           `json:"mib"`
	Chosen  bool            `json:"chosen,omitempty"` // without the data: elsewhere
}

// Caches holds the cache contents of all machines, with an index of the holders of each
// key.
type Caches struct {
	of    map[berth.MachineID][]spec.CachedData
	where map[spec.DataKey][]stock // by amount, the largest first, then by name
}

// newCaches returns empty Caches.
func newCaches() *Caches {
	return &Caches{of: map[berth.MachineID][]spec.CachedData{}, where: map[spec.DataKey][]stock{}}
}

// stock is the amount of data, of one key or several, on one machine.
type stock struct {
	machine berth.MachineID
	mib     int64
}

// compareStocks orders by amount, the largest first, then by name.
func compareStocks(a, b stock) int {
	return cmp.Or(cmp.Compare(b.mib, a.mib), strings.Compare(string(a.machine), string(b.machine)))
}

// Set replaces the cache contents of a machine; see Snapshot.SetCache. Only changed entries
// touch the index, since most reports repeat most entries.
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

// put adds a machine to the holders of a key. The list is sorted, and put and take search
// it by halves: all machines may hold a common image.
func (x *Caches) put(key spec.DataKey, one stock) {
	i, _ := slices.BinarySearchFunc(x.where[key], one, compareStocks)
	x.where[key] = slices.Insert(x.where[key], i, one)
}

// take removes a machine from the holders of a key, and the key with its last holder.
func (x *Caches) take(key spec.DataKey, one stock) {
	list := x.where[key]
	if i, ok := slices.BinarySearchFunc(list, one, compareStocks); ok {
		list = slices.Delete(list, i, i+1)
	}
	if x.where[key] = list; len(list) == 0 {
		delete(x.where, key)
	}
}

// on returns the amount of the wanted data that the machine holds, in MiB.
func (x *Caches) on(id berth.MachineID, wants []spec.DataKey) (mib int64) {
	for _, d := range x.of[id] {
		if slices.Contains(wants, d.Key) {
			mib += d.MiB
		}
	}
	return mib
}

// find returns the machines with any of the wanted data, the largest amount first, in the
// memory of into. It considers at most maxStocks machines, or minStocks per key.
func (x *Caches) find(wants []spec.DataKey, into []stock) []stock {
	list := into[:0]
	for _, key := range wants {
		where := x.where[key]
		list = append(list, where[:min(len(where), max(minStocks, maxStocks/len(wants)))]...)
	}
	// Machines that hold several keys are listed once, with their sum.
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

// nearer returns the place for one member on the machine with the most of its job's data,
// among the machines that are about as good as found, and found itself without such a
// machine. Among places of equal fragmentation cost the packer prefers fuller ones, since
// the free capacity of an emptier machine stays together; therefore a move to a much
// emptier machine is also refused.
func (r *Placer) nearer(c *cluster.Class, avoid []berth.MachineID, group string, found cluster.Choice) cluster.Choice {
	x := r.caches
	r.stocks = x.find(r.Wants, r.stocks)
	// A brief place stays: the held capacity is on that machine.
	if found.Brief || len(r.stocks) == 0 {
		return found
	}
	have := x.on(found.Node.ID, r.Wants)
	if r.stocks[0].mib <= have {
		return found
	}
	look := r.search(c, avoid, group)
	byUsable := r.ByUsable && !spreads(c) && r.packer.fleet.of(found.Node) != nil
	least, taken, ok := r.costs(c, found.Node, found.Allowed, byUsable)
	if !ok {
		return found
	}
	best, most, at := found, have, least
	priced := 0
	for _, one := range r.stocks {
		// stocks fall by amount: once a place is found, only ties can replace it.
		if one.mib <= have || one.mib < most || priced == maxPriced {
			break
		}
		n := r.cluster.Nodes[one.machine]
		if n == nil || !n.Offered() || !look.Allows(n) || n.Kind.HasDevices() != found.Node.Kind.HasDevices() {
			continue
		}
		m, ok := c.MatchOf(n.Kind)
		if !ok || !Fits(c, n, m.Devices) {
			continue
		}
		priced++
		slack := slack(c, byUsable, one.mib-have)
		cost, devices, ok := r.costs(c, n, m.Devices, byUsable)
		// Three losses are refused: a higher cost, an emptier machine, and the first share
		// cut out of an unused device.
		if !ok || cost-least > slack ||
			byUsable && float64(r.packer.fleet.of(n).gpu-r.packer.fleet.of(found.Node).gpu) > slack ||
			breaks(c, n, devices) && !breaks(c, found.Node, taken) {
			continue
		}
		if best.Node == found.Node || cost < at {
			best = cluster.Choice{Node: n, Allowed: m.Devices, Grant: Grant(c, n, devices)}
			most, at = one.mib, cost
		}
	}
	if best.Node != found.Node {
		r.Moved = append(r.Moved, Near{Machine: best.Node.ID, MiB: most, Instead: found.Node.ID})
	}
	return best
}

// costs returns the cost of one member on a machine, by the measure that chose its place,
// and its devices. That is a loss of usable share in thousandths of a GPU, or a score. ok
// is false if the member does not fit.
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
	if f := r.packer.fleet; f.scarcity != nil {
		f.scarcity.refresh()
		loss, where = f.total(f.of(n), c, allowed, loss, where)
	}
	devices, ok = devicesAt(c, n, allowed, where)
	return float64(loss), devices, ok
}

// slack returns the allowed loss of a place where gain MiB fewer need to be fetched.
func slack(c *cluster.Class, byUsable bool, gain int64) float64 {
	most := scoreSlack
	if byUsable {
		most = lossSlack * float64(c.Capacity.GPUMilli)
	}
	return most * min(1, float64(gain)/fullGain)
}

// breaks reports whether the member would take a share of an unused device.
func breaks(c *cluster.Class, n *cluster.Node, devices []int) bool {
	return len(devices) == 1 && c.Request.GPUMilli < cluster.Whole && n.FreeMilli[devices[0]] == cluster.Whole
}

// maxTold bounds the number of machines in an explanation.
const maxTold = 5

// Show lists the machines with the most data of a job, for explanations. moved are the
// members that would start on another machine without that data.
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
