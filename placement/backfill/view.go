package backfill

import (
	"slices"
	"time"

	"berth/placement/cluster"
)

// view is a machine as reservations see it at a glance, in a list of its kind:
// what is free of it at most, step by step as those that hold room give it back.
// Amounts and times are short, so that many views are read quickly.
type view struct {
	moved   bool // the rankings do not go by this yet
	steps   [viewSteps]viewStep
	whole   int32 // devices of which nothing is used
	devices [viewed]cluster.Tick
}

// viewStep is what is free at most until some time.
type viewStep struct {
	cluster.Glance
	until cluster.Tick
}

// viewSteps is how many steps a view tells, and viewAfter after how many of those
// who hold room have gone each of them begins.
const viewSteps = 4

var viewAfter = [viewSteps]int{0, 1, 3, 7}

// viewed is for how many devices a view tells when one more of them is touched
// by a release.
const viewed = 8

// forKind is the views of one kind, by place in its roster.
type forKind struct {
	kind       *cluster.Kind
	generation int           // of the roster; the views of another one are void
	assume     time.Duration // the assumption about jobs without limits
	freshAt    int           // the plan that read the feed
	views      []view
	seen       []int32                     // places of views that the rankings do not go by yet
	byTime     [1 + viewed]cluster.Ranking // by view.soonest; empty until it is asked for
}

// forKind returns the views of a kind; void is true if every one must be made.
func (x *Index) forKind(k *cluster.Kind) *forKind {
	if k.Index >= len(x.kinds) {
		x.kinds = append(x.kinds, make([]*forKind, k.Index+1-len(x.kinds))...)
	}
	if f := x.kinds[k.Index]; f == nil || f.kind != k {
		x.kinds[k.Index] = &forKind{kind: k, generation: -1}
	}
	return x.kinds[k.Index]
}

// views lists the machines of a kind for reserved starts. It renews the entries
// of machines that changed since the last plan. The plan itself reads a machine
// that it has touched from the node, and renews its entry in the next plan.
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

// byTime ranks the machines of a kind by the first second at which they may have
// the given number of devices for a job that has no room there now.
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

// see makes the view of a machine that the plan has not touched.
func (r *Reservations) see(f *forKind, n *cluster.Node) {
	v := &f.views[n.Place]
	if !v.moved {
		f.seen = append(f.seen, int32(n.Place))
	}
	*v = view{whole: int32(n.Room.Whole), moved: true}
	ends := r.index.ends[:0] // of the occupants, each with its place in the list
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

// wish is what a member of a class asks for, told shortly.
type wish struct {
	cluster.Glance
	devices int32 // of which nothing is used
}

func wishOf(c *cluster.Class) wish {
	w := wish{Glance: cluster.GlanceOf(c.Capacity)}
	if c.Request.GPUMilli >= cluster.Whole {
		w.devices = int32(c.Request.GPUs)
	}
	return w
}

// soonest is a tick before which there is no room on the machine for anybody
// who asks for so many devices and has none there now.
func (v *view) soonest(devices int32) cluster.Tick {
	if i := devices - v.whole - 1; i >= 0 && i < viewed {
		return v.devices[i]
	}
	return v.steps[0].until
}

// opens is a tick before which the machine has no room for the wish.
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
