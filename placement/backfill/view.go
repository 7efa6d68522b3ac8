package backfill

import (
	"slices"
	"time"

	"berth/placement/cluster"
)

// view summarizes one machine for reservations: upper bounds on its free capacity over
// time, as its occupants end. By these bounds a search skips machines without reading
// their occupants. Amounts and times are 32-bit numbers, so that a search reads many views
// quickly.
type view struct {
	moved   bool // the rankings do not include this version of the view yet
	steps   [viewSteps]viewStep
	whole   int32                // number of unused devices
	devices [viewed]cluster.Tick // the ends of the first grants of devices, by time
}

// viewStep is an upper bound on a machine's free capacity until a time.
type viewStep struct {
	cluster.Glance
	until cluster.Tick
}

// viewSteps is the number of steps in a view. Step i bounds the free capacity after the
// first viewAfter[i] occupants have ended. The steps are further apart later, where they
// rarely decide.
const viewSteps = 4

var viewAfter = [viewSteps]int{0, 1, 3, 7}

// viewed is the number of releases of devices that a view contains.
const viewed = 8

// forKind holds the views of one kind, by place in its roster.
type forKind struct {
	kind       *cluster.Kind
	generation int           // of the roster; a view of another generation is invalid
	assume     time.Duration // the assumption about jobs without limits
	freshAt    int           // the plan that read the feed
	views      []view
	seen       []int32                     // places of views with moved set
	byTime     [1 + viewed]cluster.Ranking // by number of devices, see byTime; empty until first used
}

// forKind returns the views of a kind. A new entry has a generation that no roster has,
// so that its views are computed before their first use.
func (x *Index) forKind(k *cluster.Kind) *forKind {
	if k.Index >= len(x.kinds) {
		x.kinds = append(x.kinds, make([]*forKind, k.Index+1-len(x.kinds))...)
	}
	if f := x.kinds[k.Index]; f == nil || f.kind != k {
		x.kinds[k.Index] = &forKind{kind: k, generation: -1}
	}
	return x.kinds[k.Index]
}

// views returns the views of a kind, and first recomputes the views of machines that have
// changed since the last plan. A machine that the plan itself has touched is left out, since its
// state may never be committed: the plan reads the node instead of the view, and the
// machine stays in the feed for the next plan.
func (r *Reservations) views(k *cluster.Kind) *forKind {
	k.Refresh(r.Number)
	f := r.index.forKind(k)
	void := f.generation != k.Generation || f.assume != r.policy.AssumeRun
	if !void && f.freshAt == r.Number {
		return f
	}
	f.freshAt = r.Number
	r.index.changed = k.Changes(cluster.ReleaseFeed, r.index.changed)
	changed := r.index.changed
	if void {
		f.generation, f.assume = k.Generation, r.policy.AssumeRun
		f.seen, f.byTime = f.seen[:0], [1 + viewed]cluster.Ranking{}
		f.views = slices.Grow(f.views[:0], len(k.Members))[:len(k.Members)]
		clear(f.views)
		changed = k.Members
	}
	for _, n := range changed {
		if n.Touched == r.Number {
			n.OutdateFor(cluster.ReleaseFeed)
			continue
		}
		r.see(f, n)
	}
	return f
}

// byTime ranks the machines of a kind by a lower bound on their openings for members that
// need the given number of whole devices and have no room now; see view.soonest. A need
// beyond viewed devices uses the ranking for 0, whose bound is weaker.
func (r *Reservations) byTime(k *cluster.Kind, devices int32) (views []view, rank cluster.Ranking) {
	f := r.views(k)
	views = f.views
	if len(f.seen) > 0 {
		for i := range f.byTime {
			if len(f.byTime[i]) > 0 {
				fresh := r.index.ranks[:0]
				for _, place := range f.seen {
					fresh = append(fresh,
						cluster.Standing{Key: cluster.TimeKey(views[place].soonest(int32(i))), Place: place})
				}
				f.byTime[i].Renew(fresh, func(place int32) bool { return !views[place].moved })
				r.index.ranks = fresh
			}
		}
		for _, place := range f.seen {
			views[place].moved = false
		}
		f.seen = f.seen[:0]
	}
	if devices > viewed {
		devices = 0
	}
	x := &f.byTime[devices]
	if len(*x) == 0 {
		for i := range views {
			*x = append(*x, cluster.Standing{Key: cluster.TimeKey(views[i].soonest(devices)), Place: int32(i)})
		}
		slices.SortFunc(*x, cluster.CompareStandings)
	}
	return views, *x
}

// see computes the view of a machine, which the plan must not have touched.
func (r *Reservations) see(f *forKind, n *cluster.Node) {
	v := &f.views[n.Place]
	if !v.moved {
		f.seen = append(f.seen, int32(n.Place))
	}
	*v = view{whole: int32(n.Room.Whole), moved: true}
	ends := r.index.ends[:0] // of the occupants: the time's key above, the place in the list below
	for i := range n.On.List {
		if at := n.On.List[i].Leaves(r.policy.AssumeRun); at != cluster.Unknown {
			ends = append(ends, cluster.TimeKey(cluster.TickAt(at))<<32|uint64(i))
		}
	}
	slices.Sort(ends)
	r.index.ends = ends
	free, given := n.Free, 0
	for i := range v.steps {
		for ; given < min(viewAfter[i], len(ends)); given++ {
			free = free.Add(n.On.List[uint32(ends[given])].Frees)
		}
		v.steps[i] = viewStep{cluster.GlanceOf(free), cluster.NoTick}
		if given < len(ends) {
			v.steps[i].until = cluster.KeyTime(ends[given] >> 32)
		}
	}
	i := 0
	for _, x := range ends {
		for range n.On.List[uint32(x)].Devices {
			if i < viewed {
				v.devices[i] = cluster.KeyTime(x >> 32)
				i++
			}
		}
	}
	for ; i < viewed; i++ {
		v.devices[i] = cluster.NoTick
	}
}

// wish is the request of one member of a class, in 32-bit numbers.
type wish struct {
	cluster.Glance
	devices int32 // number of whole devices; 0 for shares of devices
}

// wishOf returns the wish of a class.
func wishOf(c *cluster.Class) wish {
	w := wish{Glance: cluster.GlanceOf(c.Capacity)}
	if c.Request.GPUMilli >= cluster.Whole {
		w.devices = int32(c.Request.GPUs)
	}
	return w
}

// soonest returns a lower bound on the machine's opening for a member that needs the given
// number of whole devices and has no room on the machine now: the release of the last
// missing device, as far as the view contains it, otherwise the first release of anything.
func (v *view) soonest(devices int32) cluster.Tick {
	if i := devices - v.whole - 1; i >= 0 && i < viewed {
		return v.devices[i]
	}
	return v.steps[0].until
}

// opens returns a lower bound on the machine's opening for the wish, AtOnce if it may have
// room now.
func (v *view) opens(w wish) cluster.Tick {
	at := cluster.AtOnce
	for i := range v.steps {
		x := &v.steps[i]
		if w.Within(x.Glance) {
			break
		}
		at = x.until
	}
	if i := w.devices - v.whole - 1; i >= 0 && i < viewed {
		at = max(at, v.devices[i])
	}
	return at
}
